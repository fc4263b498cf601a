"""One round of a fleet of named devices: read its table, plan it, say what limits each device."""
