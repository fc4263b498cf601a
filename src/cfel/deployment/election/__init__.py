"""Who coordinates: a leader vote in the manner of Raft."""
