"""Plans in whole steps: for every device a step count and a share θ from a list, and a clock to match.

`step_table.py` is the list, `step_grid.py` what it costs each device, `whole_steps.py` the choice.
The price of energy is searched as for P2 (`control/solver/dual_search.py`); the gap is proven for the list.
"""
