"""What needs a fresh process, or looks at processes: the start-up time of a run, and memory on Linux.

The parent runs `python -m benchmarks.child start` and takes the time, or `… memory DEVICES`, which writes its
peak in bytes to standard output. Children import only what they measure.
"""

import multiprocessing
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The root of the repository, from which `benchmarks` and `tests` can be imported."""

DEMO = ("rounds.global=1", "rounds.edge=1", "rounds.local=1", "simulation.evaluate_samples=10")
IMPORT_TORCH = "import torch"


def measure_startup(repeats: int) -> float:
    """Seconds from process start to the end of the first local step, minus those of `import torch`.

    The child reads the demo experiment, loads its data and trains. Both times are minima over the repeats.
    """
    torch, start = [], []
    for _ in range(repeats):
        torch.append(_time_process("-c", IMPORT_TORCH))
        start.append(_time_process("-m", "benchmarks.child", "start"))
    return min(start) - min(torch)


def measure_peak_memory(devices: int) -> int:
    """Peak memory in bytes of a round with the small CNN on that many devices, workers included."""
    return int(_run_python("-m", "benchmarks.child", "memory", str(devices)))


def _time_process(*arguments: str) -> float:
    begin = time.perf_counter()
    _run_python(*arguments)
    return time.perf_counter() - begin


def _run_python(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT).stdout


def run_first_step() -> None:
    """Runs one edge round of one local step of the demo."""
    from cfel.experiment import preset_experiment
    from cfel.simulation.executors import PoolExecutor
    from cfel.simulation.loop import run_edge_round
    from cfel.simulation.state import initial_state

    experiment = preset_experiment("demo", DEMO)
    world = experiment.build_world()
    parameters = experiment.resolve(world).simulation
    with PoolExecutor(world, parameters) as executor:
        run_edge_round(world, executor, initial_state(world), 0)


def run_one_round(devices: int) -> int:
    """Runs one global round of one step on all devices; returns the peak memory in bytes."""
    from benchmarks.settings import SMALL, build_bench_parameters, build_bench_world
    from benchmarks.simulation import open_timed_rounds

    setting = replace(SMALL, devices=devices, samples=SMALL.batch, local_steps=1, present=None)
    world = build_bench_world(setting)
    with open_timed_rounds(world, build_bench_parameters(setting, world)) as rounds:
        next(rounds)
        # Workers are forked and share most of their memory with this process.
        workers = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
        private = sum(read_memory(pid, "Private_") for pid in workers)
    return read_peak_bytes() + private


def read_peak_bytes() -> int:
    """Peak resident memory of this process.

    Not from `getrusage`: its value survives exec, so it may be that of a larger parent process.
    """
    return _sum_lines(Path("/proc/self/status"), "VmHWM:")


def read_memory(pid: int, kind: str) -> int:
    """Memory of a process in bytes; 0 if it has ended.

    Args:
        pid: process id.
        kind: "Rss:" for all its pages, "Pss:" for shared pages divided by the number of processes that share
            them, "Private_" for pages of this process alone.
    """
    try:
        return _sum_lines(Path(f"/proc/{pid}/smaps_rollup"), kind)
    except OSError:
        return 0


def find_parent(pid: int) -> int:
    """The parent of a process; 0 if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0
    # The name of the program may contain spaces and brackets, so split after the last bracket.
    return int(text.rpartition(")")[2].split()[1])


def read_cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, without its children; 0 if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _sum_lines(file: Path, prefix: str) -> int:
    """Bytes in all lines with that prefix; the kernel counts in kibibytes."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(prefix))


if __name__ == "__main__":
    if sys.argv[1] == "start":
        run_first_step()
    else:
        sys.stdout.write(str(run_one_round(int(sys.argv[2]))))
