"""Reports runs to experiment trackers: TensorBoard, MLflow, Weights & Biases, trackio, or a sink of your own.

sinks          what a tracker is told, the four trackers, and whether their packages are installed
follow         tells the trackers of a run, in a thread of its own
event_files    TensorBoard's files
"""

from cfel.tracking.follow import follow_run
from cfel.tracking.sinks import TRACKERS, RunEnd, RunSink, TrackedRun, Tracker, choose_trackers

__all__ = ["TRACKERS", "RunEnd", "RunSink", "TrackedRun", "Tracker", "choose_trackers", "follow_run"]
