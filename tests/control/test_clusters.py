"""Clusters that answer questions: alone or together they give the same bits, and messages do not grow."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cfel.control import Budget, Observation, Rounds, Scheme, SchemeParameters, build_scheme
from cfel.control.clusters import Clusters, Decision
from cfel.control.exchange import Answer, Exchange, Question, cut_answer, join_answers
from cfel.control.planning import negotiate_by_scheme, plan_by_scheme
from cfel.control.scheme import complete_plan
from cfel.cost import device_joules, open_ledger
from cfel.deployment.protocol.messages import decode, encode
from cfel.errors import InputError
from cfel.system.batch_shares import BatchShares
from cfel.system.conditions import Conditions

SCHEMES = {
    "HCEF+": SchemeParameters(name="hcef_plus"),
    "HCEF+ in whole steps": SchemeParameters(name="hcef_plus", steps="whole"),
    "HCEF": SchemeParameters(name="hcef"),
    "HCEF in whole steps": SchemeParameters(name="hcef", steps="whole"),
    "HCEF, caps out of reach": SchemeParameters(name="hcef", on_unreachable="minimum"),
    "CEF": SchemeParameters(name="cef"),
}
PER_DEVICE = ("mu", "alpha", "nu", "power", "available", "clock_static", "clock_exponent")


def observe(devices: int, clusters: int, name: str, share: float = 0.4, seed: int = 1) -> Observation:
    """A fleet of which a tenth is not there, with budgets for a share of full work."""
    draw, tau = np.random.default_rng(seed), 5
    now = Conditions(
        mu=draw.uniform(0.2, 2, devices),
        alpha=draw.uniform(0.5, 3, devices),
        nu=draw.lognormal(2, 1, devices),
        power=draw.uniform(0.1, 1, devices),
        available=draw.random(devices) < 0.9,
    )
    seconds = float((tau * now.mu + now.nu).max())
    joules = float((tau * now.alpha + now.power * now.nu).sum())
    if "out of reach" in name:
        seconds /= 50
    small_batches = BatchShares(20) if name == "HCEF+" else None
    return Observation(
        global_round=0,
        edge_round=0,
        rounds=Rounds(10, 5, tau, stop="budget"),
        conditions=now,
        # Clusters are not neighbours in the order of devices.
        cluster=draw.integers(0, clusters, devices),
        sigma2=draw.uniform(0.5, 2, devices),
        g2=draw.uniform(0.5, 2, devices),
        ledger=open_ledger(clusters),
        budget=Budget(share * seconds * 50, share * joules * 50),
        gossip_seconds_left=np.full(clusters, 3.0),
        battery=draw.uniform(50, 5000, devices),
        small_batches=small_batches,
        exchange_seconds=1.0,
    )


def view_cluster(seen: Observation, cluster: int) -> tuple[np.ndarray, Observation]:
    """The devices of a cluster, and what it sees: these and nothing else."""
    own = np.flatnonzero(seen.cluster == cluster)
    columns: dict[str, Any] = {name: getattr(seen.conditions, name)[own] for name in PER_DEVICE}
    assert seen.battery is not None
    return own, replace(
        seen,
        conditions=replace(seen.conditions, **columns),
        cluster=seen.cluster[own],
        sigma2=seen.sigma2[own],
        g2=seen.g2[own],
        battery=seen.battery[own],
    )


class Wire:
    """Carries questions and answers as bytes between a planner and clusters that each answer alone."""

    def __init__(self, parts: list[Clusters]) -> None:
        self.parts, self.exchanges, self.most_bytes = parts, 0, 0

    def carry(self, exchange: Exchange[tuple[Decision, Any]]) -> tuple[Decision, Any]:
        """Brings an exchange to its end."""
        try:
            questions = next(exchange)
            while True:
                self.exchanges += 1
                columns = [self._ask(part, i, questions) for i, part in enumerate(self.parts)]
                questions = exchange.send(
                    tuple(join_answers(list(each)) for each in zip(*columns, strict=True))
                )
        except StopIteration as end:
            decision, state = end.value
            return self.copy(decision), state

    def _ask(self, part: Clusters, cluster: int, questions: tuple[Question, ...]) -> list[Answer]:
        found = [cut_answer(part.answer(self.copy(each)), cluster) for each in questions]
        sent = sum(len(encode(each)) for each in questions), sum(len(encode(each)) for each in found)
        self.most_bytes = max(self.most_bytes, *sent)
        return [self.copy(each) for each in found]

    def copy(self, message: Any) -> Any:
        """What arrives."""
        return decode(encode(message), type(message))


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("devices", [6, 40, 900])
def test_clusters_that_answer_alone_get_the_plan_of_all(name: str, devices: int) -> None:
    """Bit for bit, over a wire, with clusters of which one has no device at all."""
    scheme, seen = build_scheme(SCHEMES[name]), observe(devices, 5, name)
    seen = replace(seen, cluster=np.where(seen.cluster == 3, 2, seen.cluster))
    whole, state = plan_by_scheme(scheme, scheme.init(), seen, by_clusters=True)
    views = [view_cluster(seen, i) for i in range(5)]
    parts = [Clusters(view) for _, view in views]
    decision, state_over_wire = Wire(parts).carry(negotiate_by_scheme(scheme, scheme.init(), seen))
    assert state_over_wire == state
    for part, (own, view) in zip(parts, views, strict=True):
        plan = complete_plan(part.plan(decision), view)
        for column in ("rho", "theta", "speed"):
            alone, among_others = getattr(plan, column), getattr(whole, column)
            assert np.array_equal(alone, among_others[own]) if alone is not None else among_others is None
        assert (plan.objective, plan.lower_bound, plan.violations) == (
            whole.objective,
            whole.lower_bound,
            whole.violations,
        )


@pytest.mark.parametrize("name", SCHEMES)
def test_plans_by_asking_are_as_good_as_those_from_all_numbers(name: str) -> None:
    """Within 2·10⁻⁴ of the objective, and proven to be within 4·10⁻⁴ of the best where caps can be met."""
    scheme, seen = build_scheme(SCHEMES[name]), observe(900, 6, name)
    # Where a budget ends the run, typical work is the median of medians, and caps differ a little.
    seen = replace(seen, rounds=replace(seen.rounds, stop="rounds"))
    asked, _ = plan_by_scheme(scheme, scheme.init(), seen, by_clusters=True)
    near, _ = plan_by_scheme(scheme, scheme.init(), seen)
    assert asked.objective == pytest.approx(near.objective, rel=2e-4)
    assert asked.gap <= 4e-4
    assert asked.feasible == near.feasible
    assert asked.local_steps == near.local_steps


@pytest.mark.parametrize("name", ["HCEF+", "HCEF+ in whole steps"])
@pytest.mark.parametrize("joules", [420.0, 600.0, 1000.0])
def test_both_ways_slow_clocks_down_to_meet_an_energy_cap(name: str, joules: float) -> None:
    """In whole steps, the lower bounds need 413 J at the slowest clocks, and 1,481 J at full clocks."""
    scheme, seen = build_scheme(SCHEMES[name]), observe(900, 6, name, share=1.5)
    budget = replace(seen.budget, joules=joules * 50)
    seen = replace(seen, rounds=replace(seen.rounds, stop="rounds"), battery=None, budget=budget)
    asked, near = (
        plan_by_scheme(scheme, scheme.init(), seen, by_clusters=by_clusters)[0]
        for by_clusters in (True, False)
    )
    assert (asked.feasible, asked.violations) == (near.feasible, near.violations) == (True, ())
    assert asked.objective == pytest.approx(near.objective, rel=1e-3)
    assert asked.local_steps == near.local_steps
    for plan in (asked, near):
        now = plan.apply_speed(seen.conditions)
        spent = device_joules(plan.rho, plan.theta, 5, now.alpha, now.nu, now.power)
        assert spent[now.available].sum() <= joules * (1 + 1e-8)


def test_both_ways_say_the_same_of_an_energy_cap_out_of_reach() -> None:
    scheme, seen = build_scheme(SCHEMES["HCEF+"]), observe(900, 6, "HCEF+", share=1.5)
    seen = replace(seen, budget=replace(seen.budget, joules=1.0), battery=None)
    asked, near = (
        plan_by_scheme(scheme, scheme.init(), seen, by_clusters=by_clusters)[0]
        for by_clusters in (True, False)
    )
    assert asked.violations == near.violations
    assert "that the lower bounds need; all devices get the lower bounds" in near.violations[0]


@pytest.mark.parametrize("name", ["HCEF+", "HCEF"])
def test_messages_do_not_grow_with_devices(name: str) -> None:
    """A hundred times the devices: hardly more exchanges, and no larger messages but for a few numbers."""

    def count(devices: int) -> tuple[int, int]:
        scheme, seen = build_scheme(SCHEMES[name]), observe(devices, 4, name)
        wire = Wire([Clusters(view_cluster(seen, i)[1]) for i in range(4)])
        wire.carry(negotiate_by_scheme(scheme, scheme.init(), seen))
        return wire.exchanges, wire.most_bytes

    (few, small), (many, large) = count(200), count(20_000)
    assert many <= few + 15
    assert large <= 1.3 * small


def test_a_scheme_that_looks_at_all_devices_says_so() -> None:
    scheme: Scheme = build_scheme(SchemeParameters(name="oort"))
    with pytest.raises(InputError, match="numbers of all devices"):
        plan_by_scheme(scheme, scheme.init(), observe(20, 2, "oort"), by_clusters=True)
