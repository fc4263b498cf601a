"""Fuzzing: run directories and wire messages, changed at random until something is not rejected by name."""
