"""When a device ends: it missed the end, or is not admitted any more; one whose training diverges stays."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from cfel.arrays import FloatArray
from cfel.cost import realised_seconds
from cfel.deployment.device import agent as device_agent
from cfel.deployment.security.identity import Identity
from cfel.errors import DivergedError, NotAdmittedError, SilentEdgeServerError
from cfel.learning.device import device_update
from cfel.learning.device_messages import DeviceOrder
from cfel.runlog.directory import read_plan
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, play_to_the_end

DEVICE = Identity("device", 5)


def test_a_device_ends_when_its_edge_server_has_been_silent_for_long(tmp_path: Path) -> None:
    """Nobody is there: all edge servers have ended, and none is left to say so."""

    async def play() -> float:
        async with Federation(deployed(give_up_seconds=0.5), tmp_path) as federation:
            began = time.monotonic()
            federation.start(DEVICE)
            with pytest.raises(SilentEdgeServerError, match=r"edge-2 has not answered for \d+ s"):
                await federation.finished()
            return time.monotonic() - began

    assert asyncio.run(play()) > 0.5


def test_a_device_that_shall_never_give_up_keeps_asking(tmp_path: Path) -> None:
    async def play() -> None:
        async with Federation(deployed(give_up_seconds=0.0), tmp_path) as federation:
            federation.start(DEVICE)
            with pytest.raises(AssertionError, match="device-5"):
                await federation.finished(1.0)

    asyncio.run(play())


@pytest.mark.long
def test_a_model_on_which_training_diverges_does_not_end_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another device may have spoiled the model: it would end the processes of all."""

    def diverge(order: DeviceOrder, *others: Any) -> Any:
        if order.device == DEVICE.number and order.global_round == 0:
            raise DivergedError(
                "the loss is nan", device=5, global_round=0, edge_round=0, learning_rate=order.rate
            )
        return device_update(order, *others)

    monkeypatch.setattr(device_agent, "device_update", diverge)
    rounds = {"rounds": {"global": 2, "edge": 1}, "local": {"estimator": "reuse"}}
    first, _ = play_to_the_end(deployed(rounds, round_seconds=3.0), tmp_path)
    assert first.devices_taking_part < 6
    assert "given up: training diverged at device 5" in caplog.text


def test_an_emulated_device_runs_at_the_planned_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HCEF+ slows clocks down: a step takes as long as at the clock that is charged."""
    waited: list[float] = []

    def note(steps: float, theta: float, mu: float, nu: float) -> FloatArray:
        waited.append(steps * mu)
        return realised_seconds(steps, theta, mu, nu)

    monkeypatch.setattr(device_agent, "realised_seconds", note)
    plus = {"scheme": {"name": "hcef_plus"}, "budget": {"share_of_cef": 0.6}}
    experiment = deployed(plus, {"rounds": {"global": 1, "edge": 1}}, time_scale=1e-4)
    play_to_the_end(experiment, tmp_path)
    (path, *_) = tmp_path.glob("edge-*/plans/round-00001.parquet")
    plan = read_plan(path.parents[1], 1)
    assert plan.speed is not None
    assert plan.speed.min() < 1
    setting = experiment.build_world().setting
    mu = setting.conditions(0, 0).mu[plan.device]
    # All take k steps, on small batches, which are charged as parts of a step.
    (local_steps,) = set(plan.steps.tolist())
    charged = setting.charge_steps(plan.steps, plan.rho, local_steps)
    training = sorted(seconds for seconds in waited if seconds)
    assert training == pytest.approx(sorted(charged * mu / plan.speed))


def test_a_device_that_is_not_admitted_in_the_middle_of_an_order_ends(tmp_path: Path) -> None:
    """Its request for orders is open all the while. Its edge server would wait for the answer."""

    def reject(caller: Identity, _to: Identity, method: str) -> None:
        if caller == DEVICE and method == "model":
            raise NotAdmittedError("the certificate of device-5 was revoked")

    async def play() -> None:
        async with Federation(deployed(), tmp_path) as federation:
            federation.network.on_call = reject
            federation.start()
            with pytest.raises(NotAdmittedError, match="device-5 was revoked"):
                await federation.finished()

    asyncio.run(play())
