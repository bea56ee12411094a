"""Tiny random GGUF models: each architecture family in some hundred kilobytes, the same bytes every time."""

from tiny.build import ARCHS, build

__all__ = ["ARCHS", "build"]
