"""Which edge server coordinates: a leader vote after Raft. `rules` decides, `member` takes part."""
