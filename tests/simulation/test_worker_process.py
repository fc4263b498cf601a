"""Worker processes: they answer, tell of failures, end with us, and give the same bits as threads."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from cfel.errors import DivergedError, InputError, WorkerError
from cfel.experiment import Experiment
from cfel.learning.compressors import SparseUpdate
from cfel.learning.device_messages import DeviceReport, DeviceState
from cfel.learning.local.estimates import Estimates
from cfel.learning.models.flat import FlatModel
from cfel.simulation import executors
from cfel.simulation.executors import ModelsUnderWay, SharedState
from cfel.simulation.worker_process import Messages, SharedVectors, WorkerProcess, can_fork
from tests.simulation.drive import outcomes, parameters_of, tiny

pytestmark = pytest.mark.skipif(not can_fork(), reason="worker processes need Linux")

PATIENCE_SECONDS = 60


class _Served:
    """Something to be called."""

    def __init__(self) -> None:
        self.calls = 0

    def add(self, one: int, two: int) -> tuple[int, int, int]:
        """The sum, how often it was asked for, and where."""
        self.calls += 1
        return one + two, self.calls, os.getpid()

    def collect(self) -> bool:
        """Collects garbage; is that what happens by itself, too?"""
        gc.collect()
        return gc.isenabled()

    def reject(self) -> None:
        """Fails as foreseen."""
        raise InputError("field: 3")

    def diverge(self) -> None:
        """Fails as training may."""
        raise DivergedError("it is nan", device=4, global_round=1, edge_round=2, learning_rate=9.0)

    def fail(self) -> None:
        """Fails as nobody foresaw."""
        raise ZeroDivisionError("by nought")


def test_calls_are_made_elsewhere() -> None:
    """The child has an object of its own from the moment it was forked."""
    served = _Served()
    child = WorkerProcess(served)
    first, second = child.call("add", 1, 2), child.call("add", 3, 4)
    assert (first[:2], second[:2]) == ((3, 1), (7, 2))
    assert first[2] == second[2] != os.getpid()
    assert served.calls == 0
    child.close()


def test_failures_come_back() -> None:
    child = WorkerProcess(_Served())
    with pytest.raises(InputError, match="field: 3"):
        child.call("reject")
    with pytest.raises(DivergedError, match="it is nan") as caught:
        child.call("diverge")
    assert (caught.value.device, caught.value.edge_round, caught.value.cluster) == (4, 2, None)
    with pytest.raises(WorkerError, match="by nought"):
        child.call("fail")
    assert child.call("add", 1, 1)[0] == 2
    child.close()


def test_a_lost_child_is_reported() -> None:
    child = WorkerProcess(_Served())
    os.kill(child.call("add", 0, 0)[2], signal.SIGKILL)
    with pytest.raises(WorkerError, match="exit code -9"):
        child.call("add", 0, 0)


class _Leaving:
    """Garbage that only the cyclic collector finds, and that tells which process threw it away."""

    def __init__(self, reported: Path) -> None:
        self.reported = reported
        self.itself = self

    def __del__(self) -> None:
        with self.reported.open("a") as file:
            file.write(f"{os.getpid()}\n")


def test_a_childs_garbage_is_its_own(tmp_path: Path) -> None:
    """What the parent threw away before the fork is not finalised a second time in the child."""
    reported = tmp_path / "reported"
    gc.disable()
    try:
        _Leaving(reported)
        child = WorkerProcess(_Served())
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert child.call("collect")
    child.close()
    assert not reported.exists()
    gc.collect()
    assert reported.read_text().split() == [str(os.getpid())]


@pytest.mark.long
def test_children_do_not_outlive_a_killed_parent() -> None:
    """Each child must not hold the pipes of the others: the parent's death closes the last end of each."""
    code = (
        "import os, time\n"
        "from cfel.simulation.worker_process import WorkerProcess\n"
        "class Served:\n"
        "    def where(self): return os.getpid()\n"
        "children = []\n"
        "for _ in range(3): children.append(WorkerProcess(Served(), children))\n"
        "print(*(child.call('where') for child in children), flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        processes = [int(word) for word in parent.stdout.readline().split()]
        parent.kill()
    assert len(processes) == 3
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(_alive(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(_alive(process) for process in processes)


def _alive(process: int) -> bool:
    """Whether it still runs; one that has ended may wait for its new parent to notice."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_parcels_keep_everything() -> None:
    update = SparseUpdate(9, torch.tensor([1, 4], dtype=torch.int32), torch.tensor([0.5, -2.0]))
    report = DeviceReport(3, update, torch.empty(0), Estimates(1.5, -0.5, (0.5,)), 2, 0.25, 10)
    state = DeviceState({"momentum": torch.arange(9.0)}, None, Estimates(1.5, -0.5))
    messages = Messages(SharedVectors(0, 0))
    found, remembered = messages.unpack(messages.pack((report, state)))
    assert (found.device, found.estimates, found.steps, found.loss) == (3, report.estimates, 2, 0.25)
    assert (found.samples, found.update.size) == (10, 9)
    assert found.update.indices.tolist() == [1, 4]
    assert found.update.indices.dtype == torch.int32
    assert found.update.values.tolist() == [0.5, -2.0]
    assert remembered.estimates == state.estimates
    assert torch.equal(remembered.memory["momentum"].add_(0.0), torch.arange(9.0))


class _Doubling:
    """Changes vectors where they are."""

    def double(self, vectors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The vectors, twice as large."""
        return [each.mul_(2) for each in vectors]


def test_shared_vectors_are_changed_where_they_are() -> None:
    """Only places are sent: the parent sees what the child writes, and a message is shorter than a vector."""
    shared = SharedVectors(3, 1000)
    (one,), (two, three) = (
        shared.put(0, [torch.ones(1000)]),
        shared.put(2, [torch.ones(4), torch.full((5,), 3.0)]),
    )
    alone = torch.ones(2)
    child = WorkerProcess(_Doubling(), shared=shared)
    found = child.call("double", [one, two, three, alone])
    child.close()
    assert [float(each.sum()) for each in (one, two, three, alone)] == [2000, 8, 30, 2]
    assert [each.data_ptr() for each in found[:3]] == [each.data_ptr() for each in (one, two, three)]
    assert found[3].tolist() == [2, 2]
    assert len(Messages(shared).pack(one)) < 200
    assert shared.find(one[::2]) is None
    assert shared.find(torch.ones(3)) is None


def test_a_models_place_is_free_when_all_have_given_it_back() -> None:
    shared = SharedState(SharedVectors(2, 8), (), 2)
    under_way = ModelsUnderWay(shared)
    one, two, three = (FlatModel(torch.full((4,), float(n)), torch.zeros(2)) for n in range(3))
    first, second = under_way.lend(one), under_way.lend(one)
    assert first.parameters.data_ptr() == second.parameters.data_ptr()
    under_way.lend(two)
    under_way.give_back([one])
    assert first.parameters.tolist() == [0, 0, 0, 0]
    under_way.give_back([one])
    assert under_way.lend(three).parameters.data_ptr() == first.parameters.data_ptr()
    large = FlatModel(torch.zeros(99), torch.zeros(0))
    assert under_way.lend(large) is large
    under_way.give_back([large])


def test_a_device_state_stays_in_its_place() -> None:
    """Two devices with one vector and a residual each, behind one model: places 1 to 4."""
    shared = SharedState(SharedVectors(5, 16), ("momentum",), 1)
    state = DeviceState({"momentum": torch.ones(16), "small": torch.ones(1)}, torch.full((16,), 2.0))
    kept = shared.keep(1, state)
    assert kept.residual is not None
    places = [shared.vectors.find(each) for each in (kept.memory["momentum"], kept.residual)]
    assert places == [(48, 16), (64, 16)]
    assert kept.memory["small"] is state.memory["small"]
    again = shared.keep(1, kept)
    assert again.memory["momentum"].data_ptr() == kept.memory["momentum"].data_ptr()


@pytest.mark.parametrize("engine", ["processes", "batched"])
def test_processes_and_threads_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """Groups of two, so that both workers have something to do; own estimates, error feedback."""
    monkeypatch.setattr(executors, "BATCHED_DEVICES", 2)

    def with_engine(name: str) -> Experiment:
        return tiny(
            local={"estimator": "fresh"},
            compression={"error_feedback": True},
            simulation={"engine": name, "workers": 2},
        )

    by_processes = outcomes(with_engine(engine))
    monkeypatch.setattr(executors, "can_fork", lambda: False)
    by_threads = outcomes(with_engine("threads" if engine == "processes" else engine))
    assert [each.record.accuracy for each in by_processes] == [each.record.accuracy for each in by_threads]
    for one, two in zip(by_processes, by_threads, strict=True):
        assert one.record.model_sha256 == two.record.model_sha256
        for first, second in zip(parameters_of(one), parameters_of(two), strict=True):
            assert np.array_equal(first, second)


def test_processes_are_refused_where_they_cannot_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"simulation.device = 'cuda'.* use --engine threads"):
        outcomes(tiny(simulation={"engine": "processes", "device": "cuda"}))
    monkeypatch.setattr(executors, "can_fork", lambda: False)
    with pytest.raises(InputError, match="needs Linux; use --engine threads"):
        outcomes(tiny(simulation={"engine": "processes"}))
