"""Which edge server coordinates: a leader vote after Raft. `rules` decides, `vote_file` stores a vote."""
