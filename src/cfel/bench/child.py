"""Measurements in a process of their own: how long a run takes to begin, how much memory a fleet needs.

A child is `python -m cfel.bench.child start` or `… memory DEVICES`; the latter writes its peak in
bytes to standard output, of the former the parent keeps the time.
"""

import multiprocessing
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

DEMO = ("rounds.global=1", "rounds.edge=1", "rounds.local=1", "simulation.evaluate_samples=10")
IMPORT_TORCH = "import torch"


def seconds_to_first_step(repeats: int) -> float:
    """From nothing to the end of the first local step, beyond what `import torch` takes; least of each.

    The child reads the demo experiment, loads its data and trains; the step itself is part of the time.
    """
    torch, start = [], []
    for _ in range(repeats):
        torch.append(_seconds(["-c", IMPORT_TORCH]))
        start.append(_seconds(["-m", "cfel.bench.child", "start"]))
    return min(start) - min(torch)


def peak_bytes(devices: int) -> int:
    """Peak resident memory of a round with the small CNN on that many devices, workers included."""
    command = [sys.executable, "-m", "cfel.bench.child", "memory", str(devices)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 — ourselves
    return int(done.stdout)


def _seconds(arguments: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)  # noqa: S603 — ourselves
    return time.perf_counter() - begin


def take_first_step() -> None:
    """One local step of the demo's devices, no longer than it takes the first of them."""
    from cfel.experiment import preset_experiment
    from cfel.simulation import PoolExecutor, initial_state
    from cfel.simulation.loop import run_edge_round

    experiment = preset_experiment("demo", DEMO)
    world = experiment.world()
    parameters = experiment.resolved(world).simulation
    with PoolExecutor(world, parameters) as executor:
        run_edge_round(world, executor, parameters, initial_state(world), 0)


def take_a_round(devices: int) -> int:
    """One global round of one edge round and one step with everybody there; gives the peak in bytes."""
    from cfel.bench.settings import SMALL, bench_parameters, bench_world
    from cfel.bench.simulation import timed_rounds

    setting = replace(SMALL, devices=devices, samples=SMALL.batch, local_steps=1, present=None)
    world = bench_world(setting)
    with timed_rounds(world, bench_parameters(setting, world)) as rounds:
        next(rounds)
        workers = sum(_own_bytes(child.pid) for child in multiprocessing.active_children())
    return peak_resident_bytes() + workers


def peak_resident_bytes() -> int:
    """Of this process so far; `getrusage` gives that of the one it was started from, if that was larger."""
    return _kilobytes("/proc/self/status", "VmHWM:") * 1024


def _own_bytes(process: int | None) -> int:
    """What a process has to itself: workers share most of their memory with the one they came from."""
    return _kilobytes(f"/proc/{process}/smaps_rollup", "Private_") * 1024


def _kilobytes(file: str, name: str) -> int:
    """The sum of the lines that begin so."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(name))


if __name__ == "__main__":
    if sys.argv[1] == "start":
        take_first_step()
    else:
        sys.stdout.write(str(take_a_round(int(sys.argv[2]))))
