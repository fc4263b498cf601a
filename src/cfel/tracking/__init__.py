"""Reports runs to experiment trackers; `event_files` writes TensorBoard's files."""

from cfel.tracking.trackers import TRACKERS, RunEnd, RunSink, TrackedRun, Tracker, choose_trackers, follow_run

__all__ = ["TRACKERS", "RunEnd", "RunSink", "TrackedRun", "Tracker", "choose_trackers", "follow_run"]
