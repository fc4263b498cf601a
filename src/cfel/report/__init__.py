"""Figures, tables and the self-contained HTML page, from run directories and nothing else.

Every number comes from a log; only means, intervals and ratios are computed here. The names below are
imported on first use, so that a process that only reads runs does not load Matplotlib.
"""

from typing import TYPE_CHECKING

from cfel.extras import import_on_use

if TYPE_CHECKING:
    from cfel.report.load import Run, load_run, load_runs
    from cfel.report.page import write_report
    from cfel.report.pictures import export_results
    from cfel.report.summary import summarise, write_summary

__all__ = [
    "Run",
    "export_results",
    "load_run",
    "load_runs",
    "summarise",
    "write_report",
    "write_summary",
]

_MODULES = {
    "Run": "load",
    "export_results": "pictures",
    "load_run": "load",
    "load_runs": "load",
    "summarise": "summary",
    "write_report": "page",
    "write_summary": "summary",
}

if not TYPE_CHECKING:
    # Hidden from type checkers, which would otherwise accept any name.
    __getattr__, __dir__ = import_on_use(__name__, _MODULES)
