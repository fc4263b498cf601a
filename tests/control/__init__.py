"""Tests of the controller; a package so that its test files can share `instances` and `reference`."""
