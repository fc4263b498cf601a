"""How P2 is solved: to a proven optimum, or by the paper's Algorithm 3."""
