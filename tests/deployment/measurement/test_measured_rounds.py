"""Deployments that measure: devices tell their own speed and energy, and budgets hold by the clock."""

import asyncio
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import numpy as np
import pytest

from cfel.deployment.coordinator.state import CoordinatorState, initial_coordinator_state
from cfel.deployment.device import agent as device_agent
from cfel.deployment.device.memory import Memory, load_memory, save_memory
from cfel.deployment.host import RealDisk
from cfel.deployment.measurement.energy_counters import EnergyCounter, PowerCounter
from cfel.deployment.measurement.measured_rounds import FederationMeasurements, limit_waits
from cfel.deployment.measurement.meters import Measurements, RunningRatio
from cfel.deployment.payloads import make_upload
from cfel.deployment.protocol.device_requests import EstimatesRequest, MeasurementReport, UploadRequest
from cfel.deployment.protocol.messages import Message, decode, encode
from cfel.deployment.security.identity import Identity
from cfel.errors import RejectedError
from cfel.experiment import Experiment
from cfel.learning.device_messages import DeviceOrder, DeviceReport, DeviceState
from cfel.runlog import PlanTable, RoundRecord
from cfel.runlog.directory import read_plan
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation
from tests.support.raw_endpoint import raw_endpoint

pytestmark = pytest.mark.long

SCALE = 3e-4
"""A step of the emulated devices takes 20 to 45 ms."""
NO_LIMIT: Mapping[str, Any] = {"seconds": math.inf, "joules": math.inf}
REPORTED = {
    "mu": 0.5,
    "alpha": 2.0,
    "nu": 3.0,
    "power": 1.5,
    "seconds": 2.5,
    "joules": 10.0,
    "time_source": "clock",
    "energy_source": "rapl",
}


def measuring(budget: Mapping[str, Any], rounds: int, stop: str = "rounds") -> Experiment:
    """The tiny experiment on emulated devices that measure themselves, one edge round per global round."""
    changes = {
        "budget": budget,
        "rounds": {"global": rounds, "edge": 1, "stop": stop},
        "scheme": {"noise_weight": 0.0},  # more steps are always better
    }
    return deployed(changes, conditions="measured", time_scale=SCALE)


def play(
    experiment: Experiment,
    directory: Path,
    energy: Callable[[], EnergyCounter | None] = lambda: None,
    during: Callable[[Federation], Any] | None = None,
) -> list[RoundRecord]:
    """Runs it over memory."""

    async def run() -> list[RoundRecord]:
        async with Federation(experiment, directory) as federation:
            federation.energy = energy
            federation.start()
            if during is not None:
                await during(federation)
            await federation.finished()
            return federation.records()

    return asyncio.run(run())


def table(directory: Path, number: int) -> PlanTable:
    """A round's plans, from the edge server that wrote them."""
    (path, *_) = directory.glob(f"edge-*/plans/round-{number:05d}.parquet")
    return read_plan(path.parents[1], number)


def test_seconds_are_the_clocks(tmp_path: Path) -> None:
    """At least what the emulated devices take, at most what passes from start to end."""
    experiment = measuring(NO_LIMIT, 4)
    began = monotonic()
    lines = play(experiment, tmp_path)
    passed = monotonic() - began
    plans = [table(tmp_path, line.round) for line in lines]
    slowest = [float((each.steps * each.mu).max()) for each in plans]
    assert sum(slowest) * 0.5 <= lines[-1].seconds <= passed
    assert lines[-1].seconds == lines[-1].seconds_realised
    assert all(later.seconds > line.seconds for line, later in itertools.pairwise(lines))
    world = experiment.build_world()
    for line, plan in zip(lines, plans, strict=True):
        model = world.setting.conditions(line.round - 1, 0)
        took = plan.steps > 0
        assert (plan.seconds[took] >= SCALE * (plan.steps * model.mu[plan.device])[took]).all()
        assert (plan.mu < model.mu[plan.device] / 10).all()


def test_a_budget_in_real_seconds_is_planned_for(tmp_path: Path) -> None:
    """Devices with seconds to spare do all their steps; with next to none, about as few as they may."""
    plenty = play(measuring({**NO_LIMIT, "seconds": 1000.0}, 4), tmp_path / "plenty")
    scarce = play(measuring({**NO_LIMIT, "seconds": 0.1}, 4), tmp_path / "scarce")
    assert plenty[-1].rho_mean == 1.0
    assert plenty[-1].feasible
    assert scarce[-1].rho_mean < 0.5
    assert not scarce[-1].feasible


def test_a_budget_in_real_seconds_ends_a_run(tmp_path: Path) -> None:
    """By a round that uses it up, or before one that it would not cover."""
    lines = play(measuring({**NO_LIMIT, "seconds": 1.5}, 1000, stop="budget"), tmp_path)
    assert lines[-1].seconds >= 1.5 or lines[-1].ends_at_budget
    assert lines[-2].seconds < 1.5
    assert not lines[-2].ends_at_budget
    assert lines[-1].accuracy is not None


def test_joules_come_from_the_counter_or_from_the_model(tmp_path: Path) -> None:
    """A steady 5 W: joules are five times the seconds. Without a counter, α per step and p while sending."""
    sources: list[str] = []

    async def look(federation: Federation) -> None:
        while not any((node.server.log.last_round or 0) >= 2 for node in federation.edges.values()):
            await asyncio.sleep(0.01)
        shown = [node.take_snapshot() for node in federation.edges.values()]
        assert {each.conditions for each in shown} == {"measured"}
        sources.extend({device.source for each in shown for c in each.clusters for device in c.devices})

    play(measuring(NO_LIMIT, 4), tmp_path / "file", lambda: PowerCounter("power file", lambda: 5.0), look)
    plan = table(tmp_path / "file", 3)
    np.testing.assert_allclose(plan.joules, 5.0 * plan.seconds)
    assert sources == ["time: clock, energy: power file"]

    sources.clear()
    experiment = measuring(NO_LIMIT, 4)
    play(experiment, tmp_path / "model", during=look)
    world, plan = experiment.build_world(), table(tmp_path / "model", 3)
    model = world.setting.conditions(2, 0)
    np.testing.assert_allclose(plan.alpha, model.alpha)
    assert (plan.joules >= plan.steps * model.alpha).all()
    assert sources == ["time: clock, energy: model"]


def test_a_coordinator_that_dies_takes_no_measurement_along(tmp_path: Path) -> None:
    async def kill(federation: Federation) -> None:
        while not any((node.server.log.last_round or 0) >= 2 for node in federation.edges.values()):
            await asyncio.sleep(0.005)
        killed = federation.coordinator()
        assert killed is not None
        await federation.kill(Identity("edge", killed))
        await asyncio.sleep(0.1)
        federation.start(Identity("edge", killed))

    lines = play(measuring(NO_LIMIT, 6), tmp_path, during=kill)
    assert [line.round for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all(later.seconds > line.seconds for line, later in itertools.pairwise(lines))
    assert all(line.devices_taking_part == 6 for line in lines)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mu": 0.0}, "measured.mu = 0"),
        ({"mu": math.nan}, "measured.mu = nan"),
        ({"nu": math.inf}, "measured.nu = inf"),
        ({"alpha": -1.0}, "measured.alpha = -1"),
        ({"power": 1e9}, "measured.power = 1000000000"),
        ({"seconds": "2"}, "measured.seconds = '2'"),
        ({"joules": True}, "measured.joules = True"),
        ({"joules": 2**64 - 1}, "measured.joules = 18446744073709551615"),
        ({"time_source": ""}, "measured.time_source = ''"),
        ({"energy_source": "x" * 1000}, "measured.energy_source = 'xxx.*of length <= 40"),
        ({"watts": 3.0}, "measured.watts: is unknown"),
    ],
)
def test_bad_measurements_are_rejected_by_name(change: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(RejectedError, match=reason):
        received({**REPORTED, **change})


def received(measured: object) -> MeasurementReport | None:
    """What arrives of a device's measurements."""
    request = {"round": (0, 0), "estimates": {"sigma2": 1.0, "g2": 1.0}, "measured": measured}
    return decode(encode(request), EstimatesRequest).measured


def test_measurements_are_whole_or_absent() -> None:
    assert received(None) is None
    assert received(REPORTED) == MeasurementReport(**REPORTED)  # type: ignore[arg-type]
    with pytest.raises(RejectedError, match=r"measured\.nu: is missing"):
        received({name: value for name, value in REPORTED.items() if name != "nu"})
    with pytest.raises(RejectedError, match=r"measured = \[1, 2\]"):
        received([1, 2])


def test_a_bad_measurement_costs_only_its_sender(tmp_path: Path) -> None:
    """Device 5 claims that its steps take no time: its uploads are rejected, and the others continue."""

    async def spoil(federation: Federation) -> None:
        while Identity("edge", 2) not in federation.network.members:
            await asyncio.sleep(0)
        methods = federation.network.members[Identity("edge", 2)]
        honest = methods["upload"]

        async def upload(caller: Identity, message: Message) -> Message:
            if caller.number == 5:
                fields = msgspec.msgpack.decode(message.header)
                fields["measured"]["mu"] = -1.0
                message = Message(encode(fields), message.body)
            return await honest.answer(caller, message)

        methods["upload"] = raw_endpoint("upload", ("device",), upload, honest.most_bytes)

    lines = play(measuring(NO_LIMIT, 3), tmp_path, during=spoil)
    assert [line.devices_taking_part for line in lines] == [5, 5, 5]


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ({"joules": 1e9}, "its joules are implausible"),
        ({"power": 1e6}, "its watts while sending are implausible"),
        ({"nu": 1e7}, "its seconds per upload are implausible"),
    ],
)
def test_one_lying_report_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Mapping[str, float], reason: str
) -> None:
    """Twice the joules that three honest rounds use are enough for three rounds with a liar."""
    (*_, honest) = play(measuring(NO_LIMIT, 3), tmp_path / "honest")
    counts: list[int] = []

    def exaggerate(
        report: DeviceReport, order: DeviceOrder, measured: MeasurementReport, *rest: Any
    ) -> UploadRequest:
        reported = msgspec.structs.replace(measured, **lie) if order.device == 5 else measured
        return make_upload(report, order, reported, *rest)

    async def count(federation: Federation) -> None:
        await federation.finished()
        shown = [dict(node.take_snapshot().rejected) for node in federation.edges.values()]
        counts.append(sum(each.get(reason, 0) for each in shown))

    monkeypatch.setattr(device_agent, "make_upload", exaggerate)
    budget = {**NO_LIMIT, "joules": 2 * honest.joules}
    lines = play(measuring(budget, 3, stop="budget"), tmp_path / "lying", during=count)
    assert [line.round for line in lines] == [1, 2, 3]
    assert lines[-1].joules < 2 * honest.joules
    assert counts[0] >= 3


def test_clocks_are_neither_planned_nor_charged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """HCEF+ would slow clocks down, but nothing sets them on devices: planned without, and said."""
    plus = {"scheme": {"name": "hcef_plus", "noise_weight": 1.0}, "budget": {"share_of_cef": 0.6}}
    problems: set[str] = set()

    async def look(federation: Federation) -> None:
        await federation.finished()
        problems.update(node.take_snapshot().problem for node in federation.edges.values())

    experiment = deployed(plus, {"rounds": {"global": 2, "edge": 1}}, conditions="measured", time_scale=SCALE)
    play(experiment, tmp_path, during=look)
    np.testing.assert_array_equal(table(tmp_path, 2).speed, 1.0)
    said = "planned at full clocks: with measured conditions, clocks cannot be slowed down"
    assert problems == {said}
    assert [record.message for record in caplog.records].count(said) == 3  # once per edge server


def test_measurements_survive_the_disk_and_the_wire(tmp_path: Path) -> None:
    known = Measurements(seconds_per_step=RunningRatio(8.0, 4.0), energy_source="rapl", call_seconds=0.1)
    save_memory(RealDisk(), tmp_path / "memory.bin", Memory(DeviceState(), None, known))
    assert load_memory(RealDisk(), tmp_path / "memory.bin").measured == known
    control = initial_coordinator_state(deployed().build_world(), 0.0, measures=True)
    assert control.measured is not None
    reported = (MeasurementReport(**REPORTED), *control.measured.devices[1:])  # type: ignore[arg-type]
    measured = FederationMeasurements(reported, RunningRatio(1.0, 2.0), RunningRatio(3.0, 4.0))
    again = decode(encode(replace(control, measured=measured)), CoordinatorState)
    assert again.measured == measured


def test_edge_servers_keep_the_deadline_by_their_own_clocks_where_they_measure() -> None:
    asked = {"scheme": {"deadline_seconds": 7}}
    for conditions, seconds in (("measured", 7), ("model", 20)):
        experiment = deployed(asked, conditions=conditions)
        assert limit_waits(experiment.build_world(), experiment.deployment).round_seconds == seconds
