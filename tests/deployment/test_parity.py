"""A deployment gives what the simulation of the same experiment gives, bit for bit, come what may."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cfel.deployment.security.identity import Identity
from tests.architectures import THREE_ROUNDS, TWELVE
from tests.deployment.conftest import deployed
from tests.deployment.memory_federation import Federation, Network, play_to_the_end, until
from tests.simulation.drive import records, timeless


def _model(name: str, *more: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    return (TWO_ROUNDS, {"model": {"name": f"tests.architectures:{name}"}, "data": {"batch": 10}}, *more)


TWO_ROUNDS = {"rounds": {"global": 2}}
SOME_ARE_NOT_ASKED = {
    "some drawn": ({"participation": 4, "participation_by": "samples"}, "cef"),
    "some drawn for a global round, some left out": (
        {"participation": 0.7, "participation_per": "global_round"},
        "tests.schemes:every_other",
    ),
    "some left out": ({}, "oort"),
}
"""Those that were not drawn or that the scheme leaves out are not waited for."""
EXPERIMENTS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "everything there is to remember": (),
    "fresh estimates, mean model, unequal clusters": (
        TWO_ROUNDS,
        {
            "local": {"estimator": "fresh"},
            "simulation": {"evaluate_on": "mean", "accounting": "realised"},
            "fleet": {"devices": 5, "clusters": [2, 1, 2]},
        },
    ),
    # Exchanges after every edge round, several steps in a row, over everybody, weighted by samples.
    **{
        name: (TWO_ROUNDS, {"scheme": {"name": name}})
        for name in ("fedavg", "hier_fedavg", "p_fedavg", "sd_feel", "matcha")
    },
    **{
        name: (TWO_ROUNDS, {"fleet": fleet, "scheme": {"name": scheme}})
        for name, (fleet, scheme) in SOME_ARE_NOT_ASKED.items()
    },
    # Whole updates are compared, with statistics, and samples are spread by a function of one's own.
    "user-defined rules": _model(
        "batch_norm_of_values",
        {
            "aggregation": {"kind": "examples.custom_aggregation:agreed", "options": {"least": 0.6}},
            "data": {"partition": "examples.custom_partition:by_ink"},
        },
    ),
    "krum": (TWO_ROUNDS, {"aggregation": {"kind": "krum", "trim": 0.4}, "fleet": {"clusters": [3, 2, 1]}}),
    "geometric median": (TWO_ROUNDS, {"aggregation": {"kind": "geometric_median"}}),
    # Some devices cannot make it; some draw more steps than planned, and keep what they would have sent.
    "a deadline": (
        {"scheme": {"name": "hcef", "deadline_seconds": 200}, "budget": {"share_of_cef": 0.6}},
        {"simulation": {"uploads": "wire", "accounting": "realised"}},
    ),
    "a budget that covers three rounds and a half": (
        {"scheme": {"name": "hcef_plus"}, "budget": {"seconds": 1300, "joules": 2000}},
        {"rounds": {"global": 20, "stop": "budget"}},
    ),
    # The plan says how many steps to take, on small batches: devices hear of it in their orders.
    "fewer steps on small batches": (
        TWO_ROUNDS,
        {
            "scheme": {"name": "hcef_plus", "steps": "small_batches", "options": {"local_steps": 2}},
            "budget": {"share_of_cef": 0.6},
        },
    ),
    # All that the first row of the README trains with: the edge server's rate falls with the budget.
    "the best training options": (
        {
            "local": {"algorithm": "shared_momentum", "momentum": 0.9, "schedule_by": "budget"},
            "scheme": {"name": "hcef_plus"},
            "aggregation": {"optimiser": "orthogonal", "learning_rate": 1.5, "schedule": "cosine"},
        },
        {"rounds": {"global": 3}, "budget": {"seconds": 2000, "joules": 2000}},
    ),
    # Compressors that the scheme brings, state that follows losses, weights per step, wrong estimates.
    **{
        f"fedpaq, {kind}": (TWO_ROUNDS, {"scheme": {"name": "fedpaq", "options": {"compressor": kind}}})
        for kind in ("quantise", "uveqfed", "atomo")
    },
    # Devices round at random to as many bits as they choose, and keep what both rounding and top-k drop.
    "few bits": (
        {"scheme": {"name": "hcef_plus"}, "budget": {"share_of_cef": 0.6}},
        {"compression": {"bits": [4, 8]}, "simulation": {"accounting": "realised"}, **TWO_ROUNDS},
    ),
    # Edge servers send differences, also of a momentum that all share, and after every edge round.
    "differences between edge servers": (
        {"scheme": {"name": "hcef_plus"}, "topology": {"theta": 0.1, "bits": 8, "joules_per_bit": 1e-9}},
        {"local": {"algorithm": "shared_momentum", "momentum": 0.9}, "rounds": {"global": 3}},
    ),
    "differences of models with statistics": _model("batch_norm_of_values", {"topology": {"theta": 0.3}}),
    # Devices fetch differences, also with a momentum that all share, beside those between edge servers, and
    # of many rounds at once, after they were not drawn.
    "downloads of differences": (
        {"scheme": {"name": "hcef_plus"}, "compression": {"download_theta": 0.1, "download_bits": 8}},
        {"local": {"algorithm": "shared_momentum", "momentum": 0.9, "estimator": "fresh"}},
        {"topology": {"bits": 8}, "rounds": {"global": 3}},
    ),
    "downloads of differences, some drawn": (
        {"compression": {"download_theta": 0.02}, "fleet": {"participation": 3}, "rounds": {"global": 4}},
    ),
    "downloads of models with statistics": _model(
        "batch_norm_of_values", {"compression": {"download_bits": 4}}
    ),
    "adaptive k": ({"rounds": {"global": 3}}, {"scheme": {"name": "adaptive_k"}}),
    "deadlines": (TWO_ROUNDS, {"scheme": {"name": "sd_feel_hetero"}}),
    "plans are wrong": (TWO_ROUNDS, {"scheme": {"name": "hcef"}, "fleet": {"estimate_error": 0.3}}),
    # Random draws, statistics and frozen parameters: the devices of one process share torch's generator.
    **{f"model: {name}": _model(name) for name in ("dropout", "batch_norm_of_values", "low_rank")},
    # A weight that is used twice: torch shares what it rounded among the threads of a process.
    "rounded products": _model("tied", {"local": {"precision": "bfloat16"}}),
}
MODELS = {f"twelve: {name}": (THREE_ROUNDS, sections) for name, sections in TWELVE.items()}


@pytest.mark.parametrize(
    "changes",
    [
        *(pytest.param(changes, id=name) for name, changes in EXPERIMENTS.items()),
        *(pytest.param(changes, id=name, marks=pytest.mark.long) for name, changes in MODELS.items()),
    ],
)
def test_equals_the_simulation(tmp_path: Path, changes: tuple[Mapping[str, Any], ...]) -> None:
    experiment = deployed(*changes)
    expected = timeless(records(experiment))
    assert timeless(play_to_the_end(experiment, tmp_path)) == expected
    digests = [line["model_sha256"] for line in expected]
    assert len(set(digests)) == len(digests) >= 2
    assert len(digests) == experiment.rounds.global_rounds or expected[-1]["ends_at_budget"]


@pytest.mark.long  # each lost call takes its whole time limit
def test_lost_doubled_and_delayed_messages_change_nothing(
    tmp_path: Path, simulated: list[dict[str, Any]]
) -> None:
    network = Network(drop=0.05, double=0.1, delay_seconds=0.02)
    assert timeless(play_to_the_end(deployed(), tmp_path, network)) == simulated


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
