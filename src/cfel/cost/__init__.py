"""What a round costs: seconds and joules, pure functions."""
