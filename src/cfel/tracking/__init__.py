"""Reports runs to experiment trackers: TensorBoard, MLflow, Weights & Biases, trackio, or a sink of your own.

    sink      what a tracker is told: the start of a run, every round, its end
    follow    tells the trackers of a run, in a thread of its own; an error ends tracking, never the run
    choose    which trackers there are, and whether their packages are installed

One module per tracker. Each imports its package when a run starts, so that nobody else waits for it.
"""

from cfel.tracking.follow import TRACKERS, RunEnd, RunSink, TrackedRun, Tracker, choose_trackers, follow_run

__all__ = ["TRACKERS", "RunEnd", "RunSink", "TrackedRun", "Tracker", "choose_trackers", "follow_run"]
