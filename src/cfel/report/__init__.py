"""Figures, tables and the self-contained HTML page, from run directories and nothing else.

Every number comes from a log; only means, intervals and ratios are computed here. `load`, `summary` and
`table` do without Matplotlib.
"""
