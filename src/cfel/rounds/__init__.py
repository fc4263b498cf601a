"""The round kernel: observe, plan, count, record, and whether the run is over.

Dry run, simulator and coordinator all drive this code, so a round means the same in each. Pure functions of a
`Setting` and a `ControlState`; no executor, clock or network.
"""
