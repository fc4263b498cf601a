"""Compression of uploads: compressors, exact top-k, and the wire format of updates."""
