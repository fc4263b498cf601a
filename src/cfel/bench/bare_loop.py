"""The baseline of `cfel bench simulation`: a bare PyTorch training loop, as fast as we can write it.

It has the same model, batches, augmentation, loss and optimiser as the devices, and nothing else: one model,
batches drawn in advance, channels-last memory, the fused optimiser. It runs with all cores on one batch, with
one torch thread in each of several Python threads, and in each of several processes; the fastest one counts.
"""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection

import torch
import torch.nn.functional as F  # noqa: N812 — the name every torch reader knows
from torch import Tensor

from cfel.bench.settings import SEED, BenchSetting, make_random_data
from cfel.learning.data.augment import augmentation
from cfel.learning.local.iterations import draw_batches
from cfel.learning.models.builders import model_builder
from cfel.learning.worker_threads import prepare_process, prepare_thread
from cfel.seeding import make_generator

MeasureSteps = Callable[[], float]
"""Runs a fixed number of steps and returns the seconds it took."""


class BareLoop:
    """One model and its optimiser, trained on random data of a setting.

    Args:
        setting: model and data.
        steps: steps per measurement.
        worker: number of this loop; each draws its own batches.
    """

    def __init__(self, setting: BenchSetting, steps: int, worker: int = 0) -> None:
        self._data = make_random_data(setting)
        self._augment = augmentation(setting.augment)
        self._draw = make_generator(SEED, "bare loop", worker)
        module = model_builder(setting.model)(setting.shape, setting.classes)
        self._module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimiser = torch.optim.SGD(self._module.parameters(), 0.01, momentum=0.9, fused=True)
        self._batches = _draw_batches(setting, steps, worker)

    def run(self) -> float:
        """Runs all steps and returns the seconds."""
        begin = time.perf_counter()
        for places in self._batches:
            self._step(places)
        return time.perf_counter() - begin

    def _step(self, places: Tensor) -> None:
        inputs = self._data.train_inputs.index_select(0, places)
        targets = self._data.train_targets.index_select(0, places)
        if self._augment is not None:
            inputs = self._augment(inputs, self._draw)
        loss = F.cross_entropy(self._module(self._data.scale(inputs)), targets)
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()


def _draw_batches(setting: BenchSetting, steps: int, worker: int) -> list[Tensor]:
    """Batches of one device after another, as indices into the data."""
    draw = make_generator(SEED, "bare batches", worker)
    batches: list[Tensor] = []
    for device in range(-(-steps // setting.local_steps)):
        rows = draw_batches(setting.samples, setting.batch, setting.local_steps, draw)
        own = rows + device % setting.devices * setting.samples
        batches.extend(torch.from_numpy(row) for row in own)
    return batches[:steps]


@contextmanager
def open_all_cores_loop(setting: BenchSetting, steps: int) -> Iterator[MeasureSteps]:
    """One loop whose operations use all cores."""
    loop = BareLoop(setting, steps)

    def measure() -> float:
        torch.set_num_threads(os.cpu_count() or 1)
        try:
            return loop.run()
        finally:
            # Back to one torch thread, as the rounds between two measurements need it.
            prepare_thread()

    yield measure


@contextmanager
def open_threaded_loops(setting: BenchSetting, steps: int) -> Iterator[MeasureSteps]:
    """One loop per core in this process, one torch thread each."""
    workers = os.cpu_count() or 1
    loops = [BareLoop(setting, steps // workers, worker) for worker in range(workers)]
    with ThreadPoolExecutor(workers, initializer=prepare_thread) as pool:

        def measure() -> float:
            begin = time.perf_counter()
            for each in [pool.submit(loop.run) for loop in loops]:
                each.result()
            return time.perf_counter() - begin

        yield measure


@contextmanager
def open_process_loops(setting: BenchSetting, steps: int) -> Iterator[MeasureSteps]:
    """One loop and one process per core, one torch thread each."""
    workers = os.cpu_count() or 1
    context = get_context("spawn")
    ends: list[Connection] = []
    processes = []
    for worker in range(workers):
        here, there = context.Pipe()
        process = context.Process(
            target=_serve_process, args=(there, setting, steps // workers, worker), daemon=True
        )
        process.start()
        there.close()
        ends.append(here)
        processes.append(process)

    def measure() -> float:
        for end in ends:
            end.send(True)
        return max(float(end.recv()) for end in ends)

    try:
        # Each process reports once it is ready: loading must not count.
        for end in ends:
            end.recv()
        yield measure
    finally:
        for end in ends:
            end.close()
        for process in processes:
            process.join()


def _serve_process(end: Connection, setting: BenchSetting, steps: int, worker: int) -> None:
    """Main function of a process: runs the loop for every message until the other end is closed."""
    prepare_process()
    prepare_thread()
    loop = BareLoop(setting, steps, worker)
    end.send(True)
    while True:
        try:
            end.recv()
        except EOFError:
            return
        end.send(loop.run())


LOOPS = {
    "all cores on one batch": open_all_cores_loop,
    "threads": open_threaded_loops,
    "processes": open_process_loops,
}
