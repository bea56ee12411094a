"""Replies that were given before, and small results in general: kept by joblib over files that run no code."""
