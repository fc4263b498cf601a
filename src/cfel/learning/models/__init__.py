"""Models: builders, their flat layout, and their files."""
