"""The paper's tables and figures as lists of runs: experiment file, swept key and scale.

This module only plans the runs, and has the paper's values and the selected learning rates; `reproduction`
executes runs and reports. An experiment comes from `experiments/*.toml`; the changes of the scale override
it, and the user's --set overrides both.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from statistics import fmean

import tomli_w

import cfel
from cfel import validation
from cfel.api.runs import PlannedRun, row_folder
from cfel.errors import InputError, describe_error
from cfel.experiment import Experiment, load_experiment
from cfel.plugins import ANY_CODE, parse_variants
from cfel.report.load import Run

REFERENCE = "cef"


@dataclass(frozen=True, slots=True)
class PaperValues:
    """The paper's results on one data set: seconds and joules to the target by scheme; notes a misprint."""

    source: str
    target: float
    seconds: Mapping[str, float]
    joules: Mapping[str, float]
    note: str

    def gain_seconds(self, scheme: str) -> float | None:
        """CEF's time divided by that of the scheme, or None if the paper does not report it."""
        return self.seconds[REFERENCE] / self.seconds[scheme] if scheme in self.seconds else None

    def gain_joules(self, scheme: str) -> float | None:
        """CEF's energy divided by that of the scheme, or None."""
        return self.joules[REFERENCE] / self.joules[scheme] if scheme in self.joules else None


def load_paper_values(dataset: str) -> PaperValues:
    """The paper's results on "cifar10" or "femnist", from the only place with these numbers."""
    text = files("cfel.reproduce").joinpath("paper_values.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    table = document[dataset]
    return PaperValues(document["source"], table["target"], table["seconds"], table["joules"], table["note"])


DATASETS = ("cifar10", "femnist")
CLASSES = {"cifar10": 10, "femnist": 62}
SCALES = ("smoke", "reduced", "full")
ITEMS = ("table1", "accuracy", "noniid", "topology", "q", "tau", "estimates", "rates")
HELD_OUT = 0.1
"""Share of the training samples on which learning rates are selected."""
PAPER_PERIOD = 5
"""The paper's value of both q and τ, where they are not swept."""

_ORDER = ("cef", "hcef", "hcef_plus", "cef_f", "mll_sgd", "cef_c")
# What HCEF+ adds to HCEF, one ingredient at a time: gossip in every edge round, slower clocks.
_INGREDIENTS = ("p_fedavg", "cef+slow_clocks", "hcef+edge_gossip")
_BUDGETED = ("hcef", "hcef_plus", "cef_f", "cef_c")
_SHARED_FILES = {"accuracy": "table1", "rates": "table1"}


@dataclass(frozen=True, slots=True)
class VariedKey:
    """A key that is varied over the paper's values, and what an axis of a figure calls it.

    With `equal_work`, the number of global rounds is such that every setting has as many local iterations.
    """

    key: str
    values: tuple[float, ...]
    axis: str
    equal_work: bool = False


_SWEEPS = {
    "noniid": VariedKey("data.beta", (0.1, 0.3, 0.5, 1.0), "Dirichlet concentration β"),
    "topology": VariedKey("topology.p_edge", (0.2, 0.4, 0.6, 0.8, 1.0), "edge probability of the backhaul"),
    "q": VariedKey("rounds.edge", (2, 4, 6, 8, 10), "q, edge rounds per global round", equal_work=True),
    "tau": VariedKey("rounds.local", (2, 4, 6, 8, 10), "τ, local iterations per edge round", equal_work=True),
}
_GRIDS = {"cifar10": (0.01, 0.05, 0.1), "femnist": (0.1, 0.06, 0.03, 0.01)}

# Enough to run every line of code with the real data and models, in seconds.
_SMOKE = (
    *("fleet.devices=4", "fleet.clusters=2", "rounds.global=2", "rounds.edge=1", "rounds.local=1"),
    *("data.batch=8", "data.least=8", "simulation.evaluate_samples=20", "simulation.checkpoint_every=0"),
)
# A small network, but uploads are charged for the parameters of the real one (see `_CHANGES`).
_REDUCED = (
    *("fleet.devices=16", "fleet.clusters=4", "model.name=small_cnn", "simulation.evaluate_samples=2000"),
    *("simulation.checkpoint_every=5", "rounds.global=24"),
)
_CHANGES: dict[tuple[str, str], tuple[str, ...]] = {
    ("smoke", "cifar10"): _SMOKE,
    ("smoke", "femnist"): _SMOKE,
    ("reduced", "cifar10"): (*_REDUCED, "model.charged_parameters=269722", "rounds.target=0.5"),
    ("reduced", "femnist"): (*_REDUCED, "model.charged_parameters=6603710", "rounds.target=0.72"),
    # The paper names no augmentation; with crops, CEF would learn more slowly than the paper's.
    ("full", "cifar10"): ("data.augment=flip", "local.precision=bfloat16", "simulation.evaluate_every=2"),
    ("full", "femnist"): (),
}


@dataclass(frozen=True, slots=True)
class ReproductionRequest:
    """A table or figure to reproduce, and how."""

    item: str  # one of `ITEMS`
    dataset: str  # one of `DATASETS`
    data: Path  # folder of the data set
    scale: str = "reduced"  # one of `SCALES`
    # schemes and seeds: None for the item's own, see `select_schemes` and `select_seeds`.
    schemes: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    stop: str | None = None  # "target" stops runs at the target; None for the default of the scheme
    changes: tuple[str, ...] = ()  # the user's assignments; they override everything else

    def __post_init__(self) -> None:
        if self.item == "noniid" and self.dataset == "femnist":
            raise InputError(
                "noniid: only for cifar10, as in the paper; femnist is split by writer and has no β to vary"
            )

    @property
    def sweep(self) -> VariedKey | None:
        """What is varied, or None; at smoke scale only the first and last value."""
        if self.item == "rates":
            return VariedKey("local.learning_rate", _GRIDS[self.dataset], "learning rate")
        sweep = _SWEEPS.get(self.item)
        if sweep is None or self.scale != "smoke":
            return sweep
        return VariedKey(sweep.key, (sweep.values[0], sweep.values[-1]), sweep.axis)

    def select_schemes(self) -> tuple[str, ...]:
        """The schemes to run; by default the paper's five and HCEF+, and only HCEF for σ² and G².

        Table 1 also has schemes with single ingredients of HCEF+.
        """
        if self.schemes is not None:
            return tuple(dict.fromkeys(self.schemes))
        if self.item == "estimates":
            return ("hcef",)
        return (*_ORDER, *_INGREDIENTS) if self.item == "table1" else _ORDER

    def select_seeds(self) -> tuple[int, ...]:
        """The seeds to run; by default three where a table shows intervals and runs are short, else one."""
        if self.seeds is not None:
            return tuple(dict.fromkeys(self.seeds))
        return (0, 1, 2) if self.scale == "reduced" and self.sweep is None else (0,)


def find_experiments() -> Path:
    """The folder `experiments`: inside an installed package, or next to `src` in a source tree."""
    package = Path(cfel.__file__).parent
    candidates = (package / "experiments", package.parents[1] / "experiments")
    found = next((place for place in candidates if (place / "rates.toml").is_file()), None)
    if found is None:
        raise InputError(f"the folder experiments is missing: looked in {candidates[0]} and {candidates[1]}")
    return found


def load_base_experiment(
    request: ReproductionRequest, changes: Sequence[str] = (), above: Sequence[str] = ()
) -> Experiment:
    """The experiment of an item; the user's changes override `changes`, and `above` overrides both."""
    file = find_experiments() / f"{_SHARED_FILES.get(request.item, request.item)}-{request.dataset}.toml"
    scale = _CHANGES[request.scale, request.dataset]
    place = f"data.path={json.dumps(str(request.data.absolute()))}"
    return load_experiment(file, [*scale, place, *changes, *request.changes, *above], ANY_CODE)


def plan_runs(request: ReproductionRequest, rates: dict[str, float], out: Path) -> list[PlannedRun]:
    """Every run of an item, seed by seed, so that an interrupted reproduction has complete first seeds."""
    values: tuple[float | None, ...] = (None,) if request.sweep is None else request.sweep.values
    return [
        _plan_run(request, value, scheme, seed, rates.get(scheme), out)
        for seed in request.select_seeds()
        for value in values
        for scheme in request.select_schemes()
    ]


def _plan_run(
    request: ReproductionRequest, value: float | None, scheme: str, seed: int, rate: float | None, out: Path
) -> PlannedRun:
    variants = parse_variants(scheme)
    # Schemes that plan with budgets stop at them, the others after φ rounds.
    stop = request.stop or ("budget" if variants["name"] in _BUDGETED else "rounds")
    changes = [f"scheme.{key}={json.dumps(each)}" for key, each in variants.items()]
    changes += [f"seed={seed}", f"rounds.stop={stop}"]
    changes += [] if rate is None else [f"local.learning_rate={rate}"]
    above: list[str] = []
    folder, name = Path(row_folder(scheme)) / f"seed-{seed}", f"{scheme} (seed {seed})"
    if (sweep := request.sweep) is not None and value is not None:
        folder, name = Path(f"{value:g}") / folder, f"{value:g}: {name}"
        changes.append(f"{sweep.key}={value:g}")
        if request.item == "rates":
            changes.append(f"data.held_out={HELD_OUT}")
        if sweep.equal_work:
            rounds = load_base_experiment(request).rounds.global_rounds
            above = [f"rounds.global={max(2, round(rounds * PAPER_PERIOD / value))}"]
    return PlannedRun(name, load_base_experiment(request, changes, above), out / folder)


LAST_ROUNDS = 3
"""Rates are selected by the mean accuracy over so many rounds, as a single one is noisy."""


def load_rates(file: Path, dataset: str, scale: str) -> dict[str, float]:
    """The selected learning rate of each scheme, from a table like `experiments/rates.toml`."""
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"--rates {file}: cannot be read: {describe_error(error)}") from error
    table = document.get(dataset, {}).get(scale, {})
    return {
        scheme: validation.check_number(f"{file}: {dataset}.{scale}.{scheme}", rate, above=0)
        for scheme, rate in table.items()
    }


def closing_accuracy(run: Run) -> float:
    """Mean accuracy over the last evaluated rounds; 0 if the run diverged before the first one."""
    found = [record.accuracy for record in run.records if record.accuracy is not None]
    return fmean(found[-LAST_ROUNDS:]) if found else 0.0


def select_rates(runs: Mapping[float, Sequence[Run]]) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """The best rate of each scheme, and the accuracies of all rates, from the runs with each rate.

    The samples are held out from training samples, never test samples.
    """
    tried: dict[str, dict[float, list[float]]] = {}
    # In ascending order, so that `max` below takes the smaller of two equal rates.
    for rate in sorted(runs):
        for run in runs[rate]:
            tried.setdefault(run.scheme, {}).setdefault(rate, []).append(closing_accuracy(run))
    means = {scheme: {rate: fmean(values) for rate, values in by.items()} for scheme, by in tried.items()}
    best = {scheme: max(by, key=lambda rate: by[rate]) for scheme, by in means.items()}
    return best, {scheme: {f"{rate:g}": value for rate, value in by.items()} for scheme, by in means.items()}


def dump_rates(dataset: str, scale: str, chosen: Mapping[str, float]) -> str:
    """The selected rates as TOML that `load_rates` reads."""
    return tomli_w.dumps({dataset: {scale: dict(chosen)}})
