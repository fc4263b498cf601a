"""Theorem 1 of an experiment, for plans that are known beforehand, and of a run, for those in its log."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from cfel.api.theorem import Assumptions, report_theorem
from cfel.control.theory import RoundTerms
from cfel.errors import InputError
from cfel.runlog import FleetDescription, PlanTable, RoundRecord, RunWriter, describe_environment
from tests.report.conftest import record

TEXT = """
name = "known"
rounds = {global = 3, edge = 2, local = 4}
fleet = {devices = 6, clusters = 3}
topology = {kind = "complete"}
local = {learning_rate = 0.1}
scheme = {name = "cef"}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """CEF, hence ρ = θ = 1 throughout, on a complete backhaul of 3."""
    path = tmp_path / "experiment.toml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_the_terms_of_cef(file: Path) -> None:
    """φqτ = 24: progress 4 · 3/(0.1 · 24) = 5; noise 8 · 0.1 · 5 · (1 + 1) = 8, as L = 1/(2η) = 5; no skips.

    ζ = 0 and Ω₁ = 3, so η ≤ 1/(4 · 5 · (2·4)² · 3) = 1/3840 for the backhaul and 1/(2L) = 0.1 for the plans.
    """
    found = report_theorem(file, [], Assumptions(initial_gap=3.0, sigma2=1.0, g2=1.0))
    assert (found.name, found.scheme, found.clusters, found.edge_rounds) == ("known", "cef", 3, 6)
    assert found.zeta == pytest.approx(0, abs=1e-12)
    assert found.omega1 == pytest.approx(3)
    assert found.bound.progress == pytest.approx(5)
    assert found.bound.noise == pytest.approx(8)
    assert found.bound.skipped == 0
    assert found.bound.topology_limit == pytest.approx(1 / 3840)
    assert found.bound.plan_limit == pytest.approx(0.1)
    assert not found.bound.holds
    document = found.to_dict()
    assert document["bound"]["total"] == pytest.approx(13)
    assert document["landscape"]["smoothness"] == 5


def test_assumptions_go_before_the_experiment(file: Path) -> None:
    """L = 0.01 and η = 0.2: noise 8 · 0.2 · 0.01 · (2 + 3) = 0.08; η ≤ 1/(0.04 · 64 · 3) = 0.130 fails."""
    assumed = Assumptions(initial_gap=0.0, sigma2=2.0, g2=3.0, smoothness=0.01, learning_rate=0.2)
    found = report_theorem(file, [], assumed)
    assert found.bound.progress == 0
    assert found.bound.noise == pytest.approx(0.08)
    assert (found.landscape.learning_rate, found.bound.holds) == (0.2, False)
    assert report_theorem(file, ["rounds.local=1"], assumed).bound.holds


def test_skipped_steps_count(file: Path) -> None:
    """HCEF without budgets takes ρ = 2/3 and sends all: 12 · (1/3)² = 4/3, 8 · 0.1 · 5 · 2 · 2/3 = 16/3."""
    changes = ["scheme.name=hcef", "budget={seconds = inf, joules = inf}"]
    found = report_theorem(file, changes, Assumptions(initial_gap=1.0, sigma2=1.0, g2=1.0))
    assert found.bound.skipped == pytest.approx(4 / 3)
    assert found.bound.noise == pytest.approx(16 / 3)


def test_absent_devices_do_not_count(file: Path) -> None:
    changes = ["fleet.availability.away=[[0, 0, 2], [5, 1, 1]]"]
    found = report_theorem(file, changes, Assumptions(initial_gap=3.0, sigma2=1.0, g2=1.0))
    assert found.bound.noise == pytest.approx(8)
    assert found.bound.skipped == 0


def test_a_folder_stands_for_its_experiment(file: Path) -> None:
    assumed = Assumptions(initial_gap=1.0, sigma2=1.0, g2=1.0)
    assert report_theorem(file.parent, [], assumed) == report_theorem(file, [], assumed)


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_a_step_size_must_be_positive(file: Path, rate: float) -> None:
    assumed = Assumptions(initial_gap=1.0, sigma2=1.0, g2=1.0, learning_rate=rate)
    with pytest.raises(InputError, match=f"^learning_rate = {rate}: "):
        report_theorem(file, [], assumed)


def logged_run(path: Path, rounds: int = 2) -> Path:
    """A run of two devices in two clusters, q = 2, written by hand.

    Round 1: (ρ, θ) = (1, 1), (0.5, 0.8) and then device 0 alone with (0.5, 0.9). Round 2: (1, 1) for
    all, then nobody.
    """
    text = TEXT.replace("devices = 6, clusters = 3", "devices = 2, clusters = 2")
    fleet = FleetDescription(cluster=(0, 1), edges=((0, 1),), mixing=((0.75, 0.25), (0.25, 0.75)))
    plans = [
        ([0, 0, 1], [0, 1, 0], [1.0, 0.5, 0.5], [1.0, 0.8, 0.9]),
        ([0, 0], [0, 1], [1.0, 1.0], [1.0, 1.0]),
    ]
    environment = describe_environment([], started="2026-01-01T00:00:00Z")
    with RunWriter.create(path, experiment_toml=text, fleet=fleet, environment=environment) as writer:
        for number, (edge_round, device, rho, theta) in enumerate(plans[:rounds], start=1):
            writer.append(estimated(number), plan_table(number, edge_round, device, rho, theta))
    return path


def plan_table(
    number: int, edge_round: list[int], device: list[int], rho: list[float], theta: list[float]
) -> PlanTable:
    ones = np.ones(len(device))
    return PlanTable(
        round=number,
        edge_round=np.array(edge_round),
        device=np.array(device),
        cluster=np.array(device),
        rho=np.array(rho),
        theta=np.array(theta),
        **dict.fromkeys(("mu", "alpha", "nu", "power", "steps", "seconds", "joules"), ones),
    )


def estimated(number: int) -> RoundRecord:
    """σ² = 2, G² = 1 in the first round, σ² = 4, G² = 3 in the second."""
    return record(number, 0.5, 1.0, 1.0, sigma2=2.0 * number, g2=2.0 * number - 1)


def test_a_run_round_by_round(tmp_path: Path) -> None:
    """η = 0.1, L = 0.5 (given): 8ηL = 0.4; limits are ρ(2θ−1)/(2−θ) as 2L = 1.

    Round 1, σ² + G² = 3: means of (2−θ)ρ are (1 + 0.6)/2 = 0.8 and 0.55, so 0.4 · 3 · 0.675 = 0.81; of (1−ρ)²
    0.125 and 0.25, so 12 · 0.1875 = 2.25; limits 1, 0.3/1.2 = 0.25 and 0.4/1.1 > 0.1: none is broken.
    Round 2, σ² + G² = 7: 1 and nobody, 0.4 · 7 · 0.5 = 1.4.
    ζ of ((3/4, 1/4), (1/4, 3/4)) is 1/2, Ω₁ = 22/3, qτ = 8: η ≤ 1/(2 · 64 · 22/3) = 3/2816 is always broken.
    """
    path = logged_run(tmp_path / "run")
    found = report_theorem(path, [], Assumptions(initial_gap=3.2, smoothness=0.5))
    first, second = found.rounds
    assert asdict(first.terms) == pytest.approx(asdict(RoundTerms(0.81, 2.25, 0.25, 2, 0, 3)))
    assert asdict(second.terms) == pytest.approx(asdict(RoundTerms(1.4, 0.0, 1.0, 2, 0, 2)))
    assert (first.sigma2, first.g2, second.sigma2, second.g2) == (2, 1, 4, 3)
    assert found.zeta == pytest.approx(0.5)
    assert found.bound.topology_limit == pytest.approx(3 / 2816)
    assert found.bound.progress == pytest.approx(4 * 3.2 / (0.1 * 4 * 4))
    assert found.bound.noise == pytest.approx((0.81 + 1.4) / 2)
    assert found.bound.skipped == pytest.approx(2.25 / 2)
    assert (found.landscape.sigma2, found.landscape.g2, found.edge_rounds) == (3, 2, 4)
    assert found.violating_rounds == 2
    document = found.to_dict()
    assert (document["source"], document["violating_rounds"]) == ("logged", 2)
    assert document["rounds"][0]["terms"]["breaches"] == 0


def test_the_backhaul_breaks_it_in_all_rounds_or_none(tmp_path: Path) -> None:
    """With L = 1/1000 the backhaul allows η ≤ 0.53, and the plans 125 at least."""
    path = logged_run(tmp_path / "run")
    assumed = Assumptions(initial_gap=1.0, smoothness=1e-3, learning_rate=0.6)
    assert [each.holds for each in report_theorem(path, [], assumed).rounds] == [False, False]
    kept = replace(assumed, learning_rate=0.5)
    assert report_theorem(path, [], kept).violating_rounds == 0


def test_plans_that_break_it_alone(tmp_path: Path) -> None:
    """τ = q = 1 on a complete backhaul: η ≤ 1/(12 L), and ρ(2θ−1)/(2L(2−θ)) is below that for θ = 0.51."""
    text = TEXT.replace("edge = 2, local = 4", "edge = 1, local = 1")
    fleet = FleetDescription(cluster=(0, 1, 2), edges=((0, 1), (1, 2), (0, 2)), mixing=((1 / 3,) * 3,) * 3)
    environment = describe_environment([], started="2026-01-01T00:00:00Z")
    path = tmp_path / "run"
    with RunWriter.create(path, experiment_toml=text, fleet=fleet, environment=environment) as writer:
        for number, theta in enumerate((1.0, 0.51, 0.4), start=1):
            writer.append(estimated(number), plan_table(number, [0, 0], [0, 1], [1.0, 1.0], [1.0, theta]))
    found = report_theorem(path, [], Assumptions(initial_gap=1.0, smoothness=1.0, learning_rate=0.08))
    assert [each.holds for each in found.rounds] == [True, False, False]
    assert [each.terms.breaches for each in found.rounds] == [0, 1, 1]
    assert found.violating_rounds == 2


def test_assumptions_go_before_the_log(tmp_path: Path) -> None:
    found = report_theorem(logged_run(tmp_path / "run"), [], Assumptions(1.0, sigma2=5.0, g2=0.0))
    assert [(each.sigma2, each.g2) for each in found.rounds] == [(5, 0), (5, 0)]
    assert (found.landscape.sigma2, found.landscape.g2, found.bound.skipped) == (5, 0, 0)


def test_a_run_takes_no_changes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^--set rounds\.local=1: .*run is a run"):
        report_theorem(logged_run(tmp_path / "run"), ["rounds.local=1"], Assumptions(1.0))


def test_a_run_without_rounds(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has finished no round yet"):
        report_theorem(logged_run(tmp_path / "run", rounds=0), [], Assumptions(1.0))


def test_gossip_of_other_schemes(file: Path) -> None:
    """Ring of 6, ζ = 2/3: SD-FEEL's two steps leave 4/9, a cloud nothing.

    P-FedAvg has q = 1 for the theorem, which allows a step q² = 4 times as large; the terms stay as they are.
    """
    assumed = Assumptions(initial_gap=3.0, sigma2=1.0, g2=1.0)
    ring = ["fleet.clusters=6", "topology.kind=ring"]
    found = {
        name: report_theorem(file, [*ring, f"scheme.name={name}"], assumed)
        for name in ("cef", "sd_feel", "hier_fedavg", "p_fedavg")
    }
    zetas = [found[name].zeta for name in ("cef", "sd_feel", "hier_fedavg", "p_fedavg")]
    assert zetas == pytest.approx([2 / 3, 4 / 9, 0, 2 / 3])
    cef, often = found["cef"].bound, found["p_fedavg"].bound
    assert often.topology_limit == pytest.approx(4 * cef.topology_limit)
    assert often.total == pytest.approx(cef.total)
