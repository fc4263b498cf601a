"""Data sets: what is learned from, in memory, and the loaders that fetch it from local files."""
