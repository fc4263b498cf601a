"""Theorem 1 of an experiment, for plans that are known beforehand."""

from pathlib import Path

import pytest

from cfel.errors import InputError
from cfel.studies.theorem import Assumptions, report_theorem

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
    with pytest.raises(InputError, match=f"^learning_rate = {rate}: must be a finite number > 0"):
        report_theorem(file, [], assumed)


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
