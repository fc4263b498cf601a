"""Who does how much: the round's optimisation problem, its solution, and the schemes built on it."""
