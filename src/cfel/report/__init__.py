"""Figures, tables and the self-contained HTML page, from run directories and nothing else.

Every number comes from a log; only means, intervals and ratios are computed here. The names below are
imported on first use, so that a process that only reads runs does not load Matplotlib.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cfel.report.load import Run, load_run, load_runs
    from cfel.report.page import write_report
    from cfel.report.pictures import export_figures
    from cfel.report.summary import summarise, write_summary
    from cfel.report.tensorboard import write_events

__all__ = [
    "Run",
    "export_figures",
    "load_run",
    "load_runs",
    "summarise",
    "write_events",
    "write_report",
    "write_summary",
]

_MODULES = {
    "Run": "load",
    "export_figures": "pictures",
    "load_run": "load",
    "load_runs": "load",
    "summarise": "summary",
    "write_events": "tensorboard",
    "write_report": "page",
    "write_summary": "summary",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
