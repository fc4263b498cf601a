"""The paper's tables and figures as runs: which experiment file, what is swept, at which scale.

Only what is to be run is settled here; `reproduce` runs it. Experiments come from `experiments/*.toml`, a
scale lays a few changes over them, and whatever the user set goes over that.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cfel
from cfel.api.runs import scheme_folder
from cfel.control import SCHEMES
from cfel.errors import InputError
from cfel.experiment import Experiment, load_experiment
from cfel.plugins import ANY_CODE

DATASETS = ("cifar10", "femnist")
SCALES = ("smoke", "reduced", "full")
ITEMS = ("table1", "accuracy", "noniid", "topology", "q", "tau", "estimates", "rates")
HELD_OUT = 0.1
PAPER_PERIOD = 5
"""Both q and τ in the paper, where they are not swept."""

_ORDER = ("cef", "hcef", "hcef_plus", "cef_f", "mll_sgd", "cef_c")
_MINDFUL = ("hcef", "hcef_plus", "cef_f", "cef_c")
_SHARED_FILES = {"accuracy": "table1", "rates": "table1"}


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a figure has along its axis.

    Attributes:
        key: of the experiment file.
        values: as the paper has them.
        axis: their name in a figure.
        shares_work: settings get as many global rounds as make equally many local iterations in all.
    """

    key: str
    values: tuple[float, ...]
    axis: str
    shares_work: bool = False


_SWEEPS = {
    "noniid": Sweep("data.beta", (0.1, 0.3, 0.5, 1.0), "Dirichlet concentration β"),
    "topology": Sweep("topology.p_edge", (0.2, 0.4, 0.6, 0.8, 1.0), "edge probability of the backhaul"),
    "q": Sweep("rounds.edge", (2, 4, 6, 8, 10), "q, edge rounds per global round", shares_work=True),
    "tau": Sweep("rounds.local", (2, 4, 6, 8, 10), "τ, local iterations per edge round", shares_work=True),
}
_GRIDS = {"cifar10": (0.01, 0.05, 0.1), "femnist": (0.1, 0.06, 0.03, 0.01)}

_SMOKE = (
    *("fleet.devices=4", "fleet.clusters=2", "rounds.global=2", "rounds.edge=1", "rounds.local=1"),
    *("data.batch=8", "data.least=8", "simulation.evaluate_samples=20", "simulation.checkpoint_every=0"),
)
_REDUCED = (
    *("fleet.devices=16", "fleet.clusters=4", "model.name=small_cnn", "simulation.evaluate_samples=2000"),
    *("simulation.checkpoint_every=5", "rounds.global=24"),
)
_CHANGES: dict[tuple[str, str], tuple[str, ...]] = {
    ("smoke", "cifar10"): _SMOKE,
    ("smoke", "femnist"): _SMOKE,
    ("reduced", "cifar10"): (*_REDUCED, "model.charged_parameters=269722", "rounds.target=0.5"),
    ("reduced", "femnist"): (*_REDUCED, "model.charged_parameters=6603710", "rounds.target=0.72"),
    ("full", "cifar10"): (),
    ("full", "femnist"): (),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be reproduced.

    Attributes:
        item: one of `ITEMS`.
        dataset: one of `DATASETS`.
        data: the folder that holds it.
        scale: one of `SCALES`.
        schemes, seeds: None for the item's own.
        stop: "target" ends runs there; None for the item's own ending.
        changes: assignments that go before everything.
    """

    item: str
    dataset: str
    data: Path
    scale: str = "reduced"
    schemes: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    stop: str | None = None
    changes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.item == "noniid" and self.dataset == "femnist":
            raise InputError(
                "noniid: CIFAR-10 only, as in the paper; FEMNIST is split by writer, so there is no β to vary"
            )

    @property
    def sweep(self) -> Sweep | None:
        """What is varied, or None; at the smallest scale only the ends of it."""
        if self.item == "rates":
            return Sweep("local.learning_rate", _GRIDS[self.dataset], "learning rate")
        sweep = _SWEEPS.get(self.item)
        if sweep is None or self.scale != "smoke":
            return sweep
        return Sweep(sweep.key, (sweep.values[0], sweep.values[-1]), sweep.axis)

    def chosen_schemes(self) -> tuple[str, ...]:
        """The schemes to run: the paper's five and this project's own, but for σ² and G² only HCEF."""
        if self.schemes is not None:
            return tuple(dict.fromkeys(self.schemes))
        return ("hcef",) if self.item == "estimates" else tuple(name for name in _ORDER if name in SCHEMES)

    def chosen_seeds(self) -> tuple[int, ...]:
        """Three seeds where a result is to have an interval and there is time for it, else one."""
        if self.seeds is not None:
            return tuple(dict.fromkeys(self.seeds))
        return (0, 1, 2) if self.scale == "reduced" and self.sweep is None else (0,)


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run.

    Attributes:
        place: its directory within the item's.
        name: for people.
        experiment: all of it.
    """

    place: Path
    name: str
    experiment: Experiment


def experiments_directory() -> Path:
    """`experiments/`: within an installed package, or beside `src/` in a source tree."""
    package = Path(cfel.__file__).parent
    candidates = (package / "experiments", package.parents[1] / "experiments")
    found = next((place for place in candidates if (place / "rates.toml").is_file()), None)
    if found is None:
        raise InputError(f"experiments: not found, looked in {candidates[0]} and {candidates[1]}")
    return found


def base_experiment(asked: Asked, changes: Sequence[str] = (), above: Sequence[str] = ()) -> Experiment:
    """The item's experiment at its scale, with further changes below and above those of the user."""
    file = experiments_directory() / f"{_SHARED_FILES.get(asked.item, asked.item)}-{asked.dataset}.toml"
    scale = _CHANGES[asked.scale, asked.dataset]
    place = f"data.path={json.dumps(str(asked.data.absolute()))}"
    return load_experiment(file, [*scale, place, *changes, *asked.changes, *above], ANY_CODE)


def planned_runs(asked: Asked, rates: dict[str, float]) -> list[PlannedRun]:
    """Every run of an item, in the order in which they are worth having.

    Args:
        asked: what is to be reproduced.
        rates: learning rate of each scheme; those that are missing train with the preset's.
    """
    values: tuple[float | None, ...] = (None,) if asked.sweep is None else asked.sweep.values
    return [
        _planned(asked, value, scheme, seed, rates.get(scheme))
        for seed in asked.chosen_seeds()
        for value in values
        for scheme in asked.chosen_schemes()
    ]


def _planned(asked: Asked, value: float | None, scheme: str, seed: int, rate: float | None) -> PlannedRun:
    changes = [f"scheme.name={json.dumps(scheme)}", f"seed={seed}", f"rounds.stop={_ending(asked, scheme)}"]
    changes += [] if rate is None else [f"local.learning_rate={rate}"]
    folder = Path(scheme_folder(scheme)) / f"seed-{seed}"
    name = f"{scheme} (seed {seed})"
    if value is not None:
        changes += _swept(asked, value)
        folder, name = Path(f"{value:g}") / folder, f"{value:g}: {name}"
    return PlannedRun(folder, name, base_experiment(asked, changes, _shared_work(asked, value)))


def _ending(asked: Asked, scheme: str) -> str:
    """Schemes that mind budgets end at them, the others after φ rounds."""
    return asked.stop or ("budget" if scheme in _MINDFUL else "rounds")


def _swept(asked: Asked, value: float) -> list[str]:
    sweep = asked.sweep
    assert sweep is not None  # noqa: S101 — asked only then
    changes = [f"{sweep.key}={value:g}"]
    if asked.item == "rates":
        changes.append(f"data.held_out={HELD_OUT}")
    return changes


def _shared_work(asked: Asked, value: float | None) -> list[str]:
    """As many global rounds as make the local iterations that the user asked for, or the scale has."""
    if value is None or asked.sweep is None or not asked.sweep.shares_work:
        return []
    rounds = base_experiment(asked).rounds.global_rounds
    return [f"rounds.global={max(2, round(rounds * PAPER_PERIOD / value))}"]
