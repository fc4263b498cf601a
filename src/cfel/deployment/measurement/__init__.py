"""Seconds and joules measured on real devices, and plans made with them."""
