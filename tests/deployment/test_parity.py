"""A deployment gives what the simulation of the same experiment gives, bit for bit, come what may."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cfel.deployment.security.identity import Identity
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, Network, until
from tests.simulation.drive import records, timeless


def test_equals_the_simulation(tmp_path: Path, simulated: list[dict[str, Any]]) -> None:
    async def play() -> list[dict[str, Any]]:
        async with Federation(deployed(), tmp_path) as federation:
            federation.start()
            await federation.finished()
            return timeless(federation.records())

    assert asyncio.run(play()) == simulated


def test_fresh_estimates_mean_model_and_unequal_clusters(tmp_path: Path) -> None:
    experiment = deployed(
        {
            "local": {"estimator": "fresh"},
            "simulation": {"evaluate_on": "mean", "accounting": "realised"},
            "fleet": {"devices": 5, "clusters": [2, 1, 2]},
            "rounds": {"global": 2},
        }
    )

    async def play() -> list[dict[str, Any]]:
        async with Federation(experiment, tmp_path) as federation:
            federation.start()
            await federation.finished()
            return timeless(federation.records())

    assert asyncio.run(play()) == timeless(records(experiment))


@pytest.mark.parametrize("scheme", ["fedavg", "hier_fedavg", "p_fedavg", "sd_feel", "matcha"])
def test_every_use_of_the_backhaul(tmp_path: Path, scheme: str) -> None:
    """Exchanges after every edge round, several steps in a row, over everybody, weighted by samples."""
    experiment = deployed({"scheme": {"name": scheme}, "rounds": {"global": 2}})

    async def play() -> list[dict[str, Any]]:
        async with Federation(experiment, tmp_path) as federation:
            federation.start()
            await federation.finished()
            return timeless(federation.records())

    assert asyncio.run(play()) == timeless(records(experiment))


@pytest.mark.parametrize(
    ("fleet", "scheme"),
    [
        ({"participation": 4, "participation_by": "samples"}, "cef"),
        ({"participation": 0.7, "participation_per": "global_round"}, "tests.schemes:every_other"),
        ({}, "oort"),
    ],
)
def test_some_devices_are_not_asked(tmp_path: Path, fleet: dict[str, Any], scheme: str) -> None:
    """Neither those that were not drawn nor those that the scheme leaves out are waited for."""
    experiment = deployed({"fleet": fleet, "scheme": {"name": scheme}, "rounds": {"global": 2}})

    async def play() -> list[dict[str, Any]]:
        async with Federation(experiment, tmp_path) as federation:
            federation.start()
            await federation.finished()
            return timeless(federation.records())

    assert asyncio.run(play()) == timeless(records(experiment))


@pytest.mark.parametrize("name", ["dropout", "batch_norm_of_values", "low_rank"])
def test_user_defined_models(tmp_path: Path, name: str) -> None:
    """Random draws, statistics and frozen parameters: the devices of one process share torch's generator."""
    experiment = deployed(
        {"model": {"name": f"tests.architectures:{name}"}, "rounds": {"global": 2}, "data": {"batch": 10}}
    )

    async def play() -> list[dict[str, Any]]:
        async with Federation(experiment, tmp_path) as federation:
            federation.start()
            await federation.finished()
            return timeless(federation.records())

    assert asyncio.run(play()) == timeless(records(experiment))


def test_rounded_products(tmp_path: Path) -> None:
    """A weight that is used twice: torch shares what it rounded among the threads of a process."""
    experiment = deployed(
        {"model": {"name": "tests.architectures:tied"}, "rounds": {"global": 2}, "data": {"batch": 10}},
        {"local": {"precision": "bfloat16"}},
    )

    async def play() -> list[dict[str, Any]]:
        async with Federation(experiment, tmp_path) as federation:
            federation.start()
            await federation.finished()
            return timeless(federation.records())

    assert asyncio.run(play()) == timeless(records(experiment))


@pytest.mark.long  # each lost call takes its whole time limit
def test_lost_doubled_and_delayed_messages_change_nothing(
    tmp_path: Path, simulated: list[dict[str, Any]]
) -> None:
    async def play() -> list[dict[str, Any]]:
        network = Network(drop=0.05, double=0.1, delay_seconds=0.02)
        async with Federation(deployed(), tmp_path, network) as federation:
            federation.start()
            await federation.finished()
            return timeless(federation.records())

    assert asyncio.run(play()) == simulated


@pytest.mark.parametrize("method", ["estimate", "plan", "upload", "fetch", "mix", "close"])
def test_coordinator_killed_in_every_phase(
    tmp_path: Path, simulated: list[dict[str, Any]], method: str
) -> None:
    """It is killed when such a call is made for the fourth time, and comes back before any deadline."""

    async def play() -> list[dict[str, Any]]:
        network = Network()
        async with Federation(deployed(), tmp_path, network) as federation:
            calls, due = 0, asyncio.Event()

            def count(_caller: Identity, _to: Identity, called: str) -> None:
                nonlocal calls
                calls += called == method
                if calls == (2 if method == "estimate" else 4):
                    due.set()

            network.on_call = count
            federation.start()
            await asyncio.wait_for(due.wait(), 30)
            # On a busy machine an election may be under way at this very moment.
            await until("somebody leads", lambda: federation.coordinator() is not None)
            killed = federation.coordinator()
            assert killed is not None
            await federation.kill(Identity("edge", killed))
            terms = max(node.member.state.term for node in federation.edges.values())
            await asyncio.sleep(0.3)
            federation.start(Identity("edge", killed))
            await federation.finished()
            assert max(node.member.state.term for node in federation.edges.values()) > terms
            return timeless(federation.records())

    assert asyncio.run(play()) == simulated
