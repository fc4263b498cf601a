"""Models: their builders, their flat layout, and their files."""
