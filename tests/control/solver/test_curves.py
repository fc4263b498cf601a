"""Curves: a cluster's do not depend on others, sums do not depend on who adds them, prices keep to caps."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cfel.control.agreement import agree, bound_error, gossip
from cfel.control.curves import (
    Curve,
    Fleet,
    Grid,
    add_curves,
    divide,
    make_curve,
    respond_at,
    settle,
    share_energy,
    undo,
)
from cfel.control.exchange import FleetAnswers, Place, answer_locally, count_thinned
from cfel.control.list_solver import ListFleet
from cfel.control.prices import meet_cap, search_price, seek_price
from cfel.control.problem import RoundProblem, find_feasible_limits
from cfel.control.segments import PricedFleet
from cfel.errors import InputError
from tests.control.instances import FEMNIST, paper_problem
from tests.control.solver.test_list_solver import table

Build = Callable[[RoundProblem], Fleet]


def continuous(problem: RoundProblem) -> Fleet:
    return PricedFleet.from_problem(problem, find_feasible_limits(problem))


def listed(problem: RoundProblem) -> Fleet:
    limits = find_feasible_limits(problem)
    return ListFleet.from_problem(problem, table(tau=problem.tau), limits.seconds, limits.battery)


FLEETS = pytest.mark.parametrize("build", [continuous, listed])
GRID = Grid(np.array([500.0, np.inf]), np.geomspace(1e-4, 10.0, 12).reshape(2, 6))


def case(seed: int = 3, devices: int = 61) -> RoundProblem:
    return paper_problem(seed, FEMNIST, devices, clusters=7, ratio=1.0, share=0.6, rho_min=0.2)


@FLEETS
def test_a_cluster_alone_answers_as_among_others(build: Build) -> None:
    """Bit for bit, so that clusters can be computed anywhere."""
    fleet = build(case())
    whole, _ = make_curve(fleet, GRID)
    for cluster in range(fleet.clusters):
        alone, _ = make_curve(fleet.take(np.flatnonzero(fleet.cluster == cluster)), GRID)
        assert np.array_equal(alone.joules[:, :, cluster], whole.joules[:, :, cluster])
        assert np.array_equal(alone.objective[:, :, cluster], whole.objective[:, :, cluster])


@FLEETS
@pytest.mark.parametrize("stride", [1, 4, 30])
def test_a_cluster_alone_has_the_devices_of_a_sample_that_it_has_among_others(
    build: Build, stride: int
) -> None:
    """Clusters have 8 or 9 devices: with a stride of 30 most have none. The planner only counts devices."""
    fleet = build(case())
    sample = FleetAnswers(fleet).find(Place(stride=stride))
    devices = np.bincount(fleet.cluster, minlength=fleet.clusters).astype(np.float64)
    counted = np.bincount(sample.cluster, minlength=fleet.clusters)
    assert counted.tolist() == count_thinned(devices, stride).tolist()
    for cluster in range(fleet.clusters):
        own = fleet.take(np.flatnonzero(fleet.cluster == cluster))
        alone = FleetAnswers(own).find(Place(stride=stride))
        among = sample.take(np.flatnonzero(sample.cluster == cluster))
        assert respond_at(alone, 0.1).joules.tolist() == respond_at(among, 0.1).joules.tolist()


def test_a_sample_of_small_clusters_has_one_in_stride_devices() -> None:
    """125,000 clusters of 8 and a stride of 488: one device of one cluster in 61, 2,049.2 devices in all.

    Where every second cluster has 3 devices and the others 13, each kind has its share, too:
    62,500 · 3 / 488 = 384.2 and 62,500 · 13 / 488 = 1,665.0.
    """
    assert count_thinned(np.full(125_000, 8.0), 488).sum() == pytest.approx(2049.2, abs=3)
    mixed = count_thinned(np.tile([3.0, 13.0], 62_500), 488)
    assert mixed[::2].sum() == pytest.approx(384.2, abs=3)
    assert mixed[1::2].sum() == pytest.approx(1665.0, abs=3)


@FLEETS
def test_a_cluster_alone_settles_as_among_others(build: Build) -> None:
    problem = case()
    fleet, cap = build(problem), problem.energy_cap
    bracket = search_price(fleet, cap)
    shares = share_energy(bracket, cap)
    ends = [respond_at(fleet, end.point.price) for end in (bracket.over, bracket.under)]
    plan = settle(fleet, shares, *ends)
    for cluster in range(fleet.clusters):
        members = np.flatnonzero(fleet.cluster == cluster)
        over, under = (end.pick(members) for end in ends)
        alone = settle(fleet.take(members), shares, over, under)
        assert np.array_equal(alone.rho, plan.rho[members])
        assert np.array_equal(alone.joules, plan.joules[members])


@FLEETS
def test_any_tree_of_sums_gives_the_same_sum(build: Build) -> None:
    """Sums of neighbours, then of those sums, and so on: the same up to rounding."""
    curve, _ = make_curve(build(case()), GRID)
    flat = add_curves(curve)
    parts = [curve.joules[:, :, i : i + 1] for i in range(curve.joules.shape[-1])]
    order = np.random.default_rng(1).permutation(len(parts))
    parts = [parts[i] for i in order]
    while len(parts) > 1:
        pairs = [np.concatenate(parts[i : i + 2], axis=-1) for i in range(0, len(parts), 2)]
        parts = [add_curves(Curve(GRID, pair, pair)).joules for pair in pairs]
    np.testing.assert_allclose(parts[0], flat.joules, rtol=1e-14)


@FLEETS
def test_energy_falls_and_the_objective_rises_with_the_price(build: Build) -> None:
    curve, _ = make_curve(build(case()), Grid.of_prices(np.array([0.0, *np.geomspace(1e-4, 10, 40), np.inf])))
    assert (np.diff(curve.joules, axis=1) <= 1e-9).all()
    assert (np.diff(curve.objective, axis=1) >= -1e-9).all()


def test_units_are_divided_at_their_best() -> None:
    """Three members, Z = 1: the second gains 5 by a unit, the third loses 1 by giving one up."""
    inf = np.inf
    objective = np.array([[[inf, 0.0, -1.0], [inf, 0.0, -5.0], [1.0, 0.0, -2.0]]])
    joules = np.array([[[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [-1.0, 0.0, 1.0]]])
    division = divide(objective, joules)
    assert division.objective.tolist() == [[1.0, -4.0, -5.0]]
    assert undo(division, np.array([1]))[0, :3].tolist() == [1, 2, 0]
    assert division.joules[0, 1] == 0.0


def ring(clusters: int) -> np.ndarray:
    """A third to each neighbour."""
    one = np.eye(clusters)
    return (one + np.roll(one, 1, axis=0) + np.roll(one, -1, axis=0)) / 3


@pytest.mark.parametrize("steps", [20, 40, 80])
def test_without_a_coordinator_prices_stay_within_their_bounds(steps: int) -> None:
    problem = case()
    fleet, cap = continuous(problem), problem.energy_cap
    price = search_price(fleet, cap).price
    found = agree(fleet, cap, ring(7), steps, price)
    assert found.lowest <= found.price.min() <= found.price.max() <= found.highest
    assert found.response.joules.sum() <= cap * (1 + 1e-9)


def test_enough_gossip_gives_everybody_the_price_of_the_sum() -> None:
    problem = case()
    fleet, cap = continuous(problem), problem.energy_cap
    bracket = search_price(fleet, cap)
    found = agree(fleet, cap, ring(7), 200, bracket.price)
    assert found.error < 1e-12
    assert np.ptp(found.price) == 0
    assert found.price[0] == pytest.approx(bracket.price, rel=0.02)
    assert found.response.cost.sum() == pytest.approx(bracket.lower_bound, rel=1.5e-2)


def test_the_error_of_a_sum_is_within_its_bound() -> None:
    curve, _ = make_curve(continuous(case()), GRID)
    exact = add_curves(curve).joules
    for steps in (1, 5, 20):
        off = np.abs(gossip(curve, ring(7), steps).joules - exact) / exact
        assert off.max() <= bound_error(ring(7), steps)


def test_weights_that_lose_energy_are_rejected() -> None:
    curve, _ = make_curve(continuous(case()), GRID)
    with pytest.raises(InputError, match="gossip weights"):
        gossip(curve, 0.9 * ring(7), 3)


@FLEETS
def test_a_large_fleet_is_priced_like_its_copies(build: Build) -> None:
    """Samples, then two prices at a time: the same bound as copies of a small fleet."""
    small = case(devices=70)
    many = 150
    names = ("mu", "alpha", "nu", "power", "cluster", "rho_min", "rho_max", "theta_min", "theta_max")
    copied: dict[str, Any] = {name: np.tile(getattr(small, name), many) for name in names}
    large = replace(small, **copied, energy_cap=many * small.energy_cap)
    one, all_ = (search_price(build(each), each.energy_cap) for each in (small, large))
    assert all_.lower_bound == pytest.approx(many * one.lower_bound, rel=1e-6)


def test_a_fleet_of_three_kinds_of_devices_is_priced_in_a_few_exchanges() -> None:
    """Energy falls in steps, as all devices of a kind jump at one price; that of a sample is the fleet's."""
    names = ("mu", "alpha", "nu", "power")
    kind = np.arange(20_000) % 3
    few = case(devices=3)
    many = {name: getattr(few, name)[kind] for name in names}
    seconds, joules = few.tau * few.mu + few.nu, few.tau * few.alpha + few.power * few.nu
    large = replace(
        few,
        **many,
        cluster=np.arange(20_000) % 50,
        time_cap=np.full(50, 0.7 * seconds.max()),
        energy_cap=0.7 * float(joules[kind].sum()),
        rho_min=np.full(20_000, 0.1),
        rho_max=np.ones(20_000),
        theta_min=np.full(20_000, 0.01),
        theta_max=np.ones(20_000),
    )
    fleet, asked = continuous(large), []
    answers = FleetAnswers(fleet)

    def answer(question: Any) -> Any:
        asked.append(question)
        return answers.answer(question)

    answer_locally(seek_price(np.bincount(large.cluster).astype(np.float64), large.energy_cap), answer)
    assert len(asked) <= 15
    bracket, plan = meet_cap(fleet, large.energy_cap)
    assert plan.joules.sum() <= large.energy_cap * (1 + 1e-9)
    assert plan.cost.sum() == pytest.approx(bracket.lower_bound, rel=5e-5)
