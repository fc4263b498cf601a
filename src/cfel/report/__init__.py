"""Showing: figures and the self-contained page, from run directories and nothing else.

No number is computed here that is not in a log already, but for means, intervals and ratios.
"""

from cfel.report.load import Run, load_run, load_runs
from cfel.report.page import write_report
from cfel.report.summary import summarise, write_summary
from cfel.report.tensorboard import write_events

__all__ = ["Run", "load_run", "load_runs", "summarise", "write_events", "write_report", "write_summary"]
