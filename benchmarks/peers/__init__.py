"""Other ways to keep a prompt's state over a restart, measured beside ours: `make bench-peers`."""
