"""What people look at and click on: live views in the notebook, each with a static form that is kept in its file."""
