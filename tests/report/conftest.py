"""Synthetic comparisons, written with the run log's own writer."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from cfel.report.page import write_report
from cfel.runlog import FleetDescription, PlanTable, RoundRecord, RunWriter, describe_environment

CLUSTERS = 8
SPEED = {"mll_sgd": 1.3, "hcef": 1.9, "cef": 1.0}


def ring(clusters: int, per_cluster: int, seconds: float | None, joules: float | None) -> FleetDescription:
    """A ring of edge servers, mixing weights 1/3."""
    mixing = np.eye(clusters) / 3
    for number in range(clusters):
        for other in ((number + 1) % clusters, (number - 1) % clusters):
            mixing[number, other] += 1 / 3
    return FleetDescription(
        cluster=tuple(np.repeat(np.arange(clusters), per_cluster)),
        edges=tuple((number, (number + 1) % clusters) for number in range(clusters)),
        mixing=tuple(map(tuple, mixing)),
        seconds_budget=seconds,
        joules_budget=joules,
    )


def record(number: int, accuracy: float | None, seconds: float, joules: float, **more: object) -> RoundRecord:
    """A round whose three accounts agree."""
    values: dict[str, object] = {
        "round": number,
        "accuracy": accuracy,
        "loss": 1.0 / number,
        "rho_mean": 0.6,
        "theta_mean": 0.5,
        "sigma2": 2.0 / number,
        "g2": 1.0 / number,
        "gap": 1e-4,
        "feasible": True,
        "wire_bytes": 10**6,
        "wall_seconds": 0.5,
        "model_sha256": f"{number:064x}",
        **dict.fromkeys(("seconds", "seconds_expected", "seconds_realised"), seconds),
        **dict.fromkeys(("joules", "joules_expected", "joules_realised"), joules),
    }
    return RoundRecord(**{**values, **more})  # type: ignore[arg-type]


def plan(number: int, fleet: FleetDescription, scheme: str, random: np.random.Generator) -> PlanTable:
    """Two edge rounds; slow devices are asked for less by schemes that decide."""
    devices = fleet.devices
    slow = np.linspace(0.3, 1.0, devices)[np.random.default_rng(0).permutation(devices)]
    rho = (
        np.ones(devices)
        if scheme in ("cef", "cef_c")
        else np.clip(slow + 0.1 * random.normal(size=devices), 0.1, 1)
    )
    theta = np.ones(devices) if scheme in ("cef", "cef_f", "mll_sgd") else random.uniform(0.2, 1.0, devices)
    columns = {"rho": rho, "theta": theta, "device": np.arange(devices), "cluster": np.array(fleet.cluster)}
    zeros = dict.fromkeys(("mu", "alpha", "nu", "power", "steps", "seconds", "joules"), np.zeros(2 * devices))
    twice = {name: np.tile(column, 2) for name, column in columns.items()}
    return PlanTable(round=number, edge_round=np.repeat([0, 1], devices), **twice, **zeros)


def write_run(path: Path, scheme: str, seed: int, records: Sequence[RoundRecord], **more: object) -> None:
    """A run directory with these rounds; `more` may hold fleet, name, plans."""
    fleet = more.get("fleet") or ring(3, 2, 1000.0, 100.0)
    assert isinstance(fleet, FleetDescription)
    random = np.random.default_rng(seed)
    toml = (
        f'name = "{more.get("name", "synthetic")}"\nseed = {seed}\n[scheme]\nname = "{scheme}"\n'
        "[local]\nlearning_rate = 0.05\n"
    )
    environment = describe_environment(("cfel", "compare", "tiny.toml"))
    with RunWriter.create(path, experiment_toml=toml, fleet=fleet, environment=environment) as writer:
        for line in records:
            writer.append(line, plan(line.round, fleet, scheme, random) if more.get("plans") else None)


def learning_curve(scheme: str, seed: int, rounds: int) -> list[RoundRecord]:
    """Accuracy rising towards 0.8, faster per second for faster schemes; evaluated every second round."""
    random = np.random.default_rng([seed, len(scheme)])
    seconds = np.cumsum(3700.0 / SPEED[scheme] * random.uniform(0.9, 1.1, rounds))
    joules = np.cumsum(620.0 / SPEED[scheme] * random.uniform(0.9, 1.1, rounds))
    found = []
    for number in range(1, rounds + 1):
        accuracy = 0.8 - 0.7 * np.exp(-number / 7) + random.normal() * 0.01
        found.append(
            record(
                number,
                accuracy if number % 2 == 0 else None,
                seconds[number - 1],
                joules[number - 1],
                sigma2=3 * np.exp(-number / 30) * random.uniform(0.9, 1.1),
                g2=np.exp(-number / 12) * random.uniform(0.8, 1.2),
                straggler=int(random.integers(0, 64) ** 2 // 64),
                slowest_cluster=int(random.integers(0, 8)),
                feasible=number < rounds - 2,
                violations=() if number < rounds - 2 else ("energy cap < 0 J: lower bounds for all",),
            )
        )
    return found


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three schemes, two seeds, 24 rounds, 64 devices in 8 clusters on a ring."""
    root = tmp_path_factory.mktemp("comparison")
    fleet = ring(CLUSTERS, 8, 0.6 * 3700 * 24, 0.6 * 620 * 24)
    for scheme in SPEED:
        for seed in (0, 1):
            lines = learning_curve(scheme, seed, 24)
            write_run(
                root / scheme / f"seed-{seed}", scheme, seed, lines, fleet=fleet, plans=True, name="ring of 8"
            )
    return root


@pytest.fixture(scope="session")
def comparison_page(comparison: Path) -> str:
    """Its page, with the target 0.7."""
    return write_report(comparison, 0.7).read_text(encoding="utf-8")


@pytest.fixture
def make_run() -> Callable[..., None]:
    """`write_run`, for tests that want their own rounds."""
    return write_run


@pytest.fixture
def make_record() -> Callable[..., RoundRecord]:
    """`record`, likewise."""
    return record
