"""Whole federations under random schedules of faults, each from a seed; see `__main__`."""
