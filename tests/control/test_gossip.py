"""How schemes use the backhaul: seconds, exchanges and the clocks that meet at them."""

from dataclasses import replace

import numpy as np
import pytest

from cfel.control import Budget, Gossip, Rounds, SchemeParameters, Setting, build_scheme
from cfel.control.scheme import Scheme
from cfel.errors import InputError
from cfel.rounds.dry_run import dry_run
from cfel.system.backhaul import TopologyParameters, build_backhaul
from cfel.system.conditions import Conditions
from cfel.system.fleet import FleetParameters, build_fleet


def test_the_default_is_the_papers() -> None:
    """One step with the neighbours at the end of a global round."""
    gossip = Gossip()
    assert gossip.exchange_seconds(np.array([0.2, 0.3])).tolist() == [0.2, 0.3]
    assert [gossip.count_exchanges(r, 3) for r in range(3)] == [1, 1, 1]
    assert not any(gossip.is_due_within(r, 3) for r in range(3))
    assert gossip.models_sent(clusters=4, links=4) == 8


def test_after_every_edge_round() -> None:
    """With q = 3: exchanges after rounds 0 and 1, and the one that ends the global round."""
    gossip = Gossip(every_edge_round=True)
    assert [gossip.count_exchanges(r, 3) for r in range(3)] == [3, 2, 1]
    assert [gossip.is_due_within(r, 3) for r in range(3)] == [True, True, False]


def test_several_steps_are_all_charged() -> None:
    gossip = Gossip(steps=3)
    assert gossip.exchange_seconds(np.array([0.2, 0.0])).tolist() == pytest.approx([0.6, 0.0])
    assert gossip.models_sent(clusters=4, links=5) == 30


def test_reaching_everybody_takes_two_transfers() -> None:
    gossip = Gossip(reach="everybody")
    assert gossip.exchange_seconds(np.array([0.2, 0.2])).tolist() == [0.4, 0.4]
    assert gossip.models_sent(clusters=4, links=5) == 8
    assert gossip.models_sent(clusters=1, links=0) == 0


def test_what_survives_an_exchange() -> None:
    assert Gossip().compute_contraction(0.8) == 0.8
    assert Gossip(steps=3).compute_contraction(0.5) == 0.125
    assert Gossip(reach="everybody").compute_contraction(0.8) == 0


def test_rejects_nonsense() -> None:
    with pytest.raises(InputError, match=r"gossip\.steps = 0"):
        Gossip(steps=0)
    with pytest.raises(InputError, match=r"'size'.*samples"):
        Gossip(weights="size")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="one step reaches everybody"):
        Gossip(steps=2, reach="everybody")


def setting(backhaul: float, scheme: Scheme, budget: Budget | None = None) -> Setting:
    """Six devices in three clusters, two global rounds of three edge rounds."""
    fleet = build_fleet(FleetParameters(devices=6, clusters=3))
    return Setting(
        seed=1,
        rounds=Rounds(2, 3, 2),
        fleet=fleet,
        backhaul=build_backhaul(TopologyParameters(), fleet.sizes, 1),
        backhaul_seconds=np.full(3, backhaul),
        model_bits=1e6,
        scheme=scheme,
        budget=budget or Budget(),
    )


def spent(scheme: str, backhaul: float, options: dict[str, int] | None = None) -> float:
    """Seconds of a dry run."""
    parameters = SchemeParameters(name=scheme, options=options or {})
    *_, last = dry_run(setting(backhaul, build_scheme(parameters)))
    return last.ledger.seconds


@pytest.mark.parametrize(
    ("scheme", "options", "trips"),
    [
        ("cef", {}, 1),
        ("sd_feel", {"steps": 4}, 4),
        ("hier_fedavg", {}, 2),
        ("p_fedavg", {}, 3),
        ("fedavg", {}, 6),
    ],
)
def test_all_gossip_of_a_global_round_is_counted(scheme: str, options: dict[str, int], trips: int) -> None:
    """Two global rounds; per global round as many times the backhaul's 50 s as the scheme sends models."""
    longer = spent(scheme, 50.0, options) - spent(scheme, 0.0, options)
    assert longer == pytest.approx(2 * trips * 50.0)


def test_clocks_meet_at_every_exchange() -> None:
    """CEF's round is the slowest cluster's sum, P-FedAvg's the sum of each edge round's slowest."""
    for name, every in (("cef", False), ("p_fedavg", True)):
        before, world = 0.0, setting(1.0, build_scheme(SchemeParameters(name=name)))
        for each in dry_run(world):
            table = np.array([_slowest(world, each.conditions[r]) for r in range(3)])
            wanted = (table + 1.0).max(axis=1).sum() if every else table.sum(axis=0).max() + 1.0
            assert each.ledger.seconds - before == pytest.approx(wanted)
            assert each.cost.seconds == pytest.approx(wanted)
            before = each.ledger.seconds


def _slowest(world: Setting, conditions: Conditions) -> list[float]:
    """ρ = θ = 1: each cluster's slowest device takes τμ + ν."""
    seconds = 2 * conditions.mu + conditions.nu
    return [float(seconds[world.fleet.cluster == i].max()) for i in range(3)]


def test_caps_leave_room_for_all_gossip_to_come() -> None:
    """A budgeted scheme that gossips after every edge round still ends within its time."""
    hcef = build_scheme(SchemeParameters(name="hcef"))
    eager = replace(hcef, gossip=Gossip(every_edge_round=True))
    budget = Budget(seconds=0.6 * spent("p_fedavg", 40.0))
    *_, last = dry_run(setting(40.0, eager, budget))
    assert all(plan.feasible for plan in last.plans)
    assert last.ledger.seconds <= budget.seconds * (1 + 1e-9)
    assert last.ledger.seconds > 0.9 * budget.seconds
