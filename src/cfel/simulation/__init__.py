"""Virtual time: an experiment run in one process, devices' seconds and joules counted, not waited for.

`loop` is the round loop, `executors` where devices' work is done, `state` what a run carries from round to
round, `run` the run directory around it all.
"""

from cfel.simulation.executors import Executor, PoolExecutor
from cfel.simulation.loop import simulate
from cfel.simulation.run import Watch, run_in_directory
from cfel.simulation.state import RoundOutcome, RunState, initial_state

__all__ = [
    "Executor",
    "PoolExecutor",
    "RoundOutcome",
    "RunState",
    "Watch",
    "initial_state",
    "run_in_directory",
    "simulate",
]
