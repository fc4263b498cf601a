"""How a federation is doing, as one edge server sees it: who is there, and what is wrong; values only."""
