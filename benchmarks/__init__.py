"""What ipyllama costs, measured against llama.cpp's own llama-bench and against its own targets: `make bench`."""
