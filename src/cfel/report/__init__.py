"""Showing: figures and the self-contained page, from run directories and nothing else; the live dashboard.

No number is computed here that is not in a log already, but for means, intervals and ratios. The names below
are imported when they are first used: an edge server that serves its dashboard has no use for Matplotlib.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cfel.report.load import Run, load_run, load_runs
    from cfel.report.page import write_report
    from cfel.report.summary import summarise, write_summary
    from cfel.report.tensorboard import write_events

__all__ = ["Run", "load_run", "load_runs", "summarise", "write_events", "write_report", "write_summary"]

_HOMES = {
    "Run": "load",
    "load_run": "load",
    "load_runs": "load",
    "summarise": "summary",
    "write_events": "tensorboard",
    "write_report": "page",
    "write_summary": "summary",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
