"""The operations behind the commands: plan a fleet, run, compare, export, evaluate Theorem 1."""
