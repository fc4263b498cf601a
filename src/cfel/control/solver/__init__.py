"""How P2 is solved: to a proven optimum ("joint"), or by the paper's Algorithm 3 ("alternating").

Step by step, from a `RoundProblem` to a `Solution`:

1. `solve.py`: `solve` runs the steps below and hands every plan to `control/solution.py` for its proof.
2. `feasible_limits.py`: caps that even the lower bounds of ρ and θ break are relaxed, and reported.
3. `segment_limits.py`: per device, the limits on time and battery become segments in the (ρ, θ) plane.
4. `device_segments.py`: along a segment, cost and energy have closed forms, and so has the best ρ at a price.
5. `priced_fleet.py`: all devices together; given a price of energy λ, each one responds with its best (ρ, θ).
6. `dual_search.py`: `search_energy_price` finds the λ at which the fleet just uses the energy cap. It returns
   two responses, one on each side of the cap, and a lower bound on every plan's objective.
7. `joint.py`: makes one plan out of the two responses and improves it until its gap to the bound is small,
   with `energy_exchange.py` (move energy between devices) and `free_device_search.py` (search one device).
8. `bound_by_cases.py`: raises the lower bound where the plan cannot be improved any more.
9. `project_feasible.py`: takes back what rounding put over a limit. Then `solution.prove` checks the plan.

`alternating.py` is Algorithm 3. `control/grid/` solves the problem of HCEF+, by the same steps 2, 6 and 9.
"""
