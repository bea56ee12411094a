"""Where blocks lie: the file of a block, kinds of stores and what stands on them, who writes and what goes first."""
