"""Compressors: an update in, a smaller one out, with its exact size on the wire."""
