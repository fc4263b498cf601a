"""The yardstick of `cfel bench simulation`: a bare PyTorch training loop, written as fast as we can.

Same model, batches, augmentation, loss and optimiser as the devices have, and nothing else: one model trained
on and on, batches drawn beforehand, channels-last memory, the fused optimiser. It runs in the ways a machine
offers (all cores on one batch; one torch thread for each of several Python threads or processes), and the
best one counts.
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

from cfel.bench.settings import SEED, BenchSetting, random_data
from cfel.learning.data.augment import augmentation
from cfel.learning.local.sgd import draw_batches
from cfel.learning.models.builders import model_builder
from cfel.learning.worker_threads import prepare_process, prepare_thread
from cfel.seeding import generator

Timed = Callable[[], float]
"""Takes a fixed number of steps and says how many seconds that took."""


class BareLoop:
    """One model and its optimiser, to be trained on batches of a setting's data.

    Args:
        setting: what is trained.
        steps: in a measurement.
        worker: several loops differ in their batches.
    """

    def __init__(self, setting: BenchSetting, steps: int, worker: int = 0) -> None:
        self._data = random_data(setting)
        self._augment = augmentation(setting.augment)
        self._draw = generator(SEED, "bare loop", worker)
        module = model_builder(setting.model)(setting.shape, setting.classes)
        self._module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimiser = torch.optim.SGD(self._module.parameters(), 0.01, momentum=0.9, fused=True)
        self._batches = _drawn(setting, steps, worker)

    def run(self) -> float:
        """All steps."""
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


def _drawn(setting: BenchSetting, steps: int, worker: int) -> list[Tensor]:
    """The batches of one device after the other, as places in the data."""
    draw = generator(SEED, "bare batches", worker)
    batches: list[Tensor] = []
    for device in range(-(-steps // setting.local_steps)):
        rows = draw_batches(setting.samples, setting.batch, setting.local_steps, draw)
        own = rows + device % setting.devices * setting.samples
        batches.extend(torch.from_numpy(row) for row in own)
    return batches[:steps]


@contextmanager
def one_batch_on_all_cores(setting: BenchSetting, steps: int) -> Iterator[Timed]:
    """One loop whose operations are spread over all cores."""
    loop = BareLoop(setting, steps)

    def timed() -> float:
        torch.set_num_threads(os.cpu_count() or 1)
        try:
            return loop.run()
        finally:
            prepare_thread()

    yield timed


@contextmanager
def several_threads(setting: BenchSetting, steps: int) -> Iterator[Timed]:
    """One loop per core in this process, one torch thread each."""
    workers = os.cpu_count() or 1
    loops = [BareLoop(setting, steps // workers, worker) for worker in range(workers)]
    with ThreadPoolExecutor(workers, initializer=prepare_thread) as pool:

        def timed() -> float:
            begin = time.perf_counter()
            for each in [pool.submit(loop.run) for loop in loops]:
                each.result()
            return time.perf_counter() - begin

        yield timed


@contextmanager
def several_processes(setting: BenchSetting, steps: int) -> Iterator[Timed]:
    """One loop per core in a process of its own, one torch thread each."""
    workers = os.cpu_count() or 1
    context = get_context("spawn")
    ends: list[Connection] = []
    processes = []
    for worker in range(workers):
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there, setting, steps // workers, worker), daemon=True)
        process.start()
        there.close()
        ends.append(here)
        processes.append(process)

    def timed() -> float:
        for end in ends:
            end.send(True)
        return max(float(end.recv()) for end in ends)

    try:
        for end in ends:
            end.recv()
        yield timed
    finally:
        for end in ends:
            end.close()
        for process in processes:
            process.join()


def _serve(end: Connection, setting: BenchSetting, steps: int, worker: int) -> None:
    """A process with a loop: takes its steps whenever it is told to, until the other end is closed."""
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


WAYS = {
    "all cores on one batch": one_batch_on_all_cores,
    "threads": several_threads,
    "processes": several_processes,
}
