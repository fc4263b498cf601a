"""Virtual time: an experiment run in one process, devices' seconds and joules counted, not waited for.

`loop` is the round loop, `executors` where devices' work is done, `state` what a run has come to, `run` the
run directory around it all.
"""

from cfel.rounds import ENGINES, SimulationParameters, chosen_engine
from cfel.simulation.executors import Executor, PoolExecutor
from cfel.simulation.loop import simulate
from cfel.simulation.outcome import RoundOutcome
from cfel.simulation.run import Progress, Watch, run_in_directory
from cfel.simulation.state import RunState, initial_state

__all__ = [
    "ENGINES",
    "Executor",
    "PoolExecutor",
    "Progress",
    "RoundOutcome",
    "RunState",
    "SimulationParameters",
    "Watch",
    "chosen_engine",
    "initial_state",
    "run_in_directory",
    "simulate",
]
