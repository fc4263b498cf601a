"""One file per scheme."""
