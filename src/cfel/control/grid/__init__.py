"""The problem of HCEF+: θ from a list, clocks that may slow down, and steps that may have to be whole.

`theta_grid.py` and `grid_solver.py` leave ρ free; `step_grid.py` and `whole_steps.py` choose whole steps.
Both search the price of energy as P2 does (`control/solver/dual_search.py`) and prove a gap for their list.
"""
