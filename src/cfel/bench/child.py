"""Measurements that need a fresh process: the start-up time of a run, and the memory of a fleet.

The parent runs `python -m cfel.bench.child start` and takes the time, or `… memory DEVICES`, which writes its
peak in bytes to standard output.
"""

import multiprocessing
import subprocess
import sys
import time
from dataclasses import replace

from cfel.bench.process_memory import read_memory, read_peak_bytes

DEMO = ("rounds.global=1", "rounds.edge=1", "rounds.local=1", "simulation.evaluate_samples=10")
IMPORT_TORCH = "import torch"


def measure_startup(repeats: int) -> float:
    """Seconds from process start to the end of the first local step, minus those of `import torch`.

    The child reads the demo experiment, loads its data and trains. Both times are minima over the repeats.
    """
    torch, start = [], []
    for _ in range(repeats):
        torch.append(_time_process(["-c", IMPORT_TORCH]))
        start.append(_time_process(["-m", "cfel.bench.child", "start"]))
    return min(start) - min(torch)


def measure_peak_memory(devices: int) -> int:
    """Peak memory in bytes of a round with the small CNN on that many devices, workers included."""
    command = [sys.executable, "-m", "cfel.bench.child", "memory", str(devices)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 — ourselves
    return int(done.stdout)


def _time_process(arguments: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)  # noqa: S603 — ourselves
    return time.perf_counter() - begin


def run_first_step() -> None:
    """Runs one edge round of one local step of the demo."""
    from cfel.experiment import preset_experiment
    from cfel.simulation import PoolExecutor, initial_state
    from cfel.simulation.loop import run_edge_round

    experiment = preset_experiment("demo", DEMO)
    world = experiment.build_world()
    parameters = experiment.resolve(world).simulation
    with PoolExecutor(world, parameters) as executor:
        run_edge_round(world, executor, parameters, initial_state(world), 0)


def run_one_round(devices: int) -> int:
    """Runs one global round of one step on all devices; returns the peak memory in bytes."""
    from cfel.bench.settings import SMALL, build_bench_parameters, build_bench_world
    from cfel.bench.simulation import open_timed_rounds

    setting = replace(SMALL, devices=devices, samples=SMALL.batch, local_steps=1, present=None)
    world = build_bench_world(setting)
    with open_timed_rounds(world, build_bench_parameters(setting, world)) as rounds:
        next(rounds)
        # Workers are forked and share most of their memory with this process.
        workers = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
        private = sum(read_memory(pid, "Private_") for pid in workers)
    return read_peak_bytes() + private


if __name__ == "__main__":
    if sys.argv[1] == "start":
        run_first_step()
    else:
        sys.stdout.write(str(run_one_round(int(sys.argv[2]))))
