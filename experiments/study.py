"""The studies behind `results/`: runs what is missing, prints tables, lands the results.

    python experiments/study.py under-budgets --dataset femnist --data DIR --out OUT
    python experiments/study.py under-budgets --out OUT --table 0.72 --land results/under-budgets-femnist
    python experiments/study.py under-budgets --out results/under-budgets-femnist --table 0.72

With `--data`, the first command runs `experiments/ablation-DATASET.toml` once per row and seed, several runs
side by side; give it again to resume. Tables are made from a tree of run directories or from a landed study.
Names of studies, and what each shows: `python experiments/study.py --help`.
"""

import argparse
import math
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, product
from pathlib import Path
from statistics import geometric_mean, mean
from typing import Any

import numpy as np

from cfel.experiment import load_experiment, preset_experiment
from cfel.plugins import ANY_CODE
from cfel.report.landed import find_study, land_study, unpack_study
from cfel.report.load import Run, load_run, load_runs, load_tree
from cfel.report.summary import (
    Crossing,
    confidence_half_width,
    find_crossing,
    geometric_interval,
    measure,
    summarise,
    write_summary,
)
from cfel.report.summary import geometric_mean as mean_gain
from cfel.rounds.dry_run import dry_run
from cfel.wording import plural

HERE = Path(__file__).parent
DATASETS = ("cifar10", "femnist")
COSTS = ("seconds_to_target", "joules_to_target")
Changes = tuple[str, ...]
Rows = dict[str, Changes]
"""What each row changes, as `--set` takes it; the key is its folder, `LABEL` or `LABEL/SCHEME`."""

# ---------------------------------------------------------------------------------------- what is run


@dataclass(frozen=True, slots=True)
class Study:
    """A table, and the runs it is made of.

    Attributes:
        title: what it shows.
        tabulate: makes the content of `summary.json` and a Markdown table from a folder of runs and targets.
        targets: what `--table` takes.
        rows: rows by data set; empty if the runs come from elsewhere.
        common: changes of all rows, by data set.
        seeds: unless others are asked for.
        rounds: global rounds by data set, unless others are asked for.
        same_budgets: every row gets the budgets of the plain experiment, whatever its rounds and costs.
        both: it is about both data sets, each in its own folder of the runs and of the data.
        file: what the rows change, `FILE-DATASET.toml`.
    """

    title: str
    tabulate: Callable[..., tuple[dict[str, Any], str]]
    targets: str = "TARGET"
    rows: Mapping[str, Rows] = field(default_factory=dict)
    common: Mapping[str, Changes] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    rounds: Mapping[str, int] = field(default_factory=dict)
    same_budgets: bool = False
    both: bool = False
    file: str = "ablation"


FLOOR = "fleet.conditions.channel_floor=0.01"
SHARED = "local.algorithm=shared_momentum"
SMALL = "scheme.steps=small_batches"
MANY = "rounds.global=100"
"""There are more rounds of small batches in a budget."""

SECONDS, JOULES = 150, {"cifar10": 0.15, "femnist": 1.5}
"""Of a step on a full batch of 50, at 1 GHz: the presets' values."""

MEASURED_OVERHEAD = {"cifar10": 0.05, "femnist": 0.25}
"""The fixed part of a step, as measured (`cfel calibrate`): the presets' `local.step_overhead`."""

LANDED_OVERHEAD = {"cifar10": 0.05, "femnist": 0.18}
"""What the landed rows of `under-budgets` were charged.

FEMNIST's was measured again afterwards. Its rows keep the first value, 0.18 + 0.82/5 = 0.344 of a step for
10 of 50 samples instead of 0.4, so that the command repeats the table.
"""


def charge_batch(dataset: str, samples: int, overhead: float) -> Changes:
    """A smaller batch for schemes that do not choose it, at the price that HCEF+ pays for it."""
    share = overhead + (1 - overhead) * samples / 50
    return (
        f"data.batch={samples}",
        f"fleet.conditions.seconds_gigahertz={SECONDS * share:g}",
        f"fleet.conditions.alpha_joules={JOULES[dataset] * share:g}",
    )


PARTS = ("progress", "curve", "error_feedback", "efficiency", "frequency", "dense_gossip")
ABLATION: Rows = {"without-nothing": ()} | {
    f"without-{part}": (f"scheme.options.{part}=false",) for part in PARTS
}


def list_differences(dataset: str) -> Rows:
    """CEF, HCEF and HCEF+ with one setting changed at a time."""
    rate, alpha = {"cifar10": (0.015, 1.5), "femnist": (0.03, 0.15)}[dataset]
    changes = (
        f"fleet.conditions.alpha_joules={alpha}",
        "local.momentum_state=reset",
        "local.momentum=0",
        "simulation.accounting=realised",
        "fleet.conditions.channel_floor=0.001",
        "local.estimator=fresh",
        f"local.learning_rate={rate}",
    )
    rows: Rows = {"none": ()} | {change: (change,) for change in changes}
    return {
        f"{label}/{scheme}": (f"scheme.name={scheme}", *changed)
        for label, changed in rows.items()
        for scheme in ("cef", "hcef", "hcef_plus")
    }


def list_learning(dataset: str) -> Rows:
    """CEF and HCEF+ with one training option changed at a time."""
    overhead = MEASURED_OVERHEAD[dataset]
    fifth = charge_batch(dataset, 10, overhead)
    rate, twice = {"cifar10": (0.035, 0.1), "femnist": (0.07, 0.2)}[dataset]
    half = (*charge_batch(dataset, 25, overhead), f"local.learning_rate={rate}", "rounds.edge=10")
    both: Rows = {
        "nothing": (),
        "nesterov": ("local.nesterov=true",),
        "average": ("aggregation.average=0.5",),
        "half_batch-more_rounds": half,
        "shared": (SHARED,),
    }
    tuned = (SMALL, SHARED, MANY)
    own: dict[str, Rows] = {
        "cef": {"small": (*fifth, MANY), "small-shared": (*fifth, SHARED, MANY)},
        "hcef_plus": {
            "small": (SMALL, MANY),
            "small-shared": tuned,
            "small-shared-smallest_tenth": (*tuned, "scheme.options.least_batch=0.1"),
            "small-shared-twice_the_rate": (*tuned, f"local.learning_rate={twice}"),
        },
    }
    return {
        f"{label}/{scheme}": (f"scheme.name={scheme}", *changes)
        for scheme, rows in own.items()
        for label, changes in {**both, **rows}.items()
    }


def list_under_budgets(dataset: str) -> Rows:
    """Schemes and local algorithms of the field."""
    fifth = (*charge_batch(dataset, 10, LANDED_OVERHEAD[dataset]), MANY)
    alone = (
        *("cef", "cef_c", "cef_f", "mll_sgd", "p_fedavg", "matcha", "oort", "anycost", "fedluck", "nori"),
        *("hcef", "hcef_plus"),
    )
    return {name: (f"scheme.name={name}",) for name in alone} | {
        "cef-fedbuff": ("scheme.name=cef", "aggregation.buffer=2"),
        "cef-shared": ("scheme.name=cef", SHARED),
        "cef-small-shared": ("scheme.name=cef", SHARED, *fifth),
        "p_fedavg-small-shared": ("scheme.name=p_fedavg", SHARED, *fifth),
        "hcef_plus-fedprox": ("scheme.name=hcef_plus", "local.algorithm=fedprox"),
        "hcef_plus-shared": ("scheme.name=hcef_plus", SHARED),
        "hcef_plus-small": ("scheme.name=hcef_plus", SMALL, MANY),
        "hcef_plus-small-shared": ("scheme.name=hcef_plus", SHARED, SMALL, MANY),
    }


ALIKE = (
    *("cef", "cef_c", "p_fedavg", "fedavg", "hier_fedavg", "sd_feel", "matcha", "oort", "anycost", "fedluck"),
    *("nori", "fedlamp", "fedpaq", "adaptive_k", "adaptive_tau", "cost_effective", "talk_or_work"),
    "sd_feel_hetero",
)
"""Rows of the field that are a scheme as it is."""

STEPPING = ("hcef", "cef_f", "mll_sgd")
"""Schemes that leave steps out at random; in the field they take whole steps, which is better for them."""

JUDGING = (
    *("hcef", "cef_f", "cef_c", "mll_sgd", "oort", "anycost", "fedluck", "nori", "fedlamp", "adaptive_tau"),
    *("cost_effective", "talk_or_work", "sd_feel_hetero", "fedel", "static", "hcef_plus"),
)
"""Rows of the field whose plans depend on the devices' conditions, and may be wrong about them."""

WRONG, AS_WRONG = "fleet.estimate_error=0.3", "-wrong"


def list_field(dataset: str) -> Rows:
    """Every system that the paper names, and some others, with the same training options.

    Batches of 10 of 50 samples, at the price of small batches, and shared momentum. FedBuff cannot share
    momentum, ATOMO hardly learns with it, as the noise of its draws becomes momentum, and FedBalancer
    chooses its 10 of 20. Rows that judge devices' conditions are run again with wrong ones.
    """
    overhead = MEASURED_OVERHEAD[dataset]
    fifth, many = charge_batch(dataset, 10, overhead), "rounds.global=1000"
    common = (SHARED, many, *fifth)
    rows: Rows = {name: (f"scheme.name={name}", *common) for name in ALIKE}
    for name in STEPPING:
        rows[name] = (f"scheme.name={name}", "scheme.steps=whole", *common)
    for name in ("uveqfed", "atomo"):
        options = (f"scheme.options.compressor={name}", "scheme.options.share=1.0")
        own = ("local.algorithm=sgd",) if name == "atomo" else ()
        rows[name] = ("scheme.name=fedpaq", *options, *common, *own)
    choosing = (
        "local.algorithm=fedbalancer",
        "local.options.shared=true",
        *charge_batch(dataset, 20, overhead),
    )
    rows |= {
        "cef-deadline": ("scheme.name=cef", "scheme.deadline_seconds=300", *common),
        "fedbuff": ("scheme.name=cef", "aggregation.buffer=2", many, *fifth),
        "fedel": ("scheme.name=mll_sgd", "scheme.steps=last_layers", *common),
        "fedbalancer": ("scheme.name=cef", many, *choosing),
        "static": ("scheme.name=static", "scheme.options.samples=10", SMALL, SHARED, many),
        "hcef_plus": ("scheme.name=hcef_plus", SMALL, SHARED, many),
    }
    return rows | {f"{name}{AS_WRONG}": (*rows[name], WRONG) for name in JUDGING}


WHOLE_BUDGET: Rows = {
    "cef": ("scheme.name=cef",),
    "nori": ("scheme.name=nori", MANY),
    "cef-fedbuff": ("scheme.name=cef", "aggregation.buffer=2", MANY),
}
"""The rows of `under-budgets` that had used up their rounds before their budgets."""

RATES: Rows = {
    f"cef-rate{rate}": ("scheme.name=cef", f"local.learning_rate={rate}")
    for rate in (0.015, 0.03, 0.06, 0.12)
}

EVALUATE_EVERY = {1: 5, 2: 2, 5: 1}
"""By τ: about as many local steps between evaluations."""

SAMPLES, THETAS = (2, 5, 10, 25, 50), (0.03, 0.1, 0.3, 1.0)


def list_static() -> Rows:
    """HCEF+ and a grid of static plans, with the same training options."""
    rows: Rows = {}
    for tau, every in EVALUATE_EVERY.items():
        often = (f"simulation.evaluate_every={every}", "simulation.checkpoint_every=25")
        options = (SMALL, SHARED, "rounds.global=2000", f"rounds.local={tau}", *often)
        rows[f"hcef_plus-tau{tau}"] = ("scheme.name=hcef_plus", *options)
        for samples, theta in product(SAMPLES, THETAS):
            plan = (f"scheme.options.samples={samples}", f"scheme.options.theta={theta}")
            rows[f"static-n{samples:02}-th{theta:g}-tau{tau}"] = ("scheme.name=static", *plan, *options)
    return rows


PROGRESS_PLANS = (
    *((10, 0.1, 2), (2, 0.1, 2), (5, 0.1, 2), (25, 0.1, 2), (50, 0.1, 2), (10, 0.03, 2), (10, 0.3, 2)),
    *((10, 1.0, 2), (10, 0.1, 1), (10, 0.1, 5)),
)
"""Samples, θ and τ: one plan, and others that differ from it in one of the three."""

ORTHOGONAL = (
    *("aggregation.optimiser=orthogonal", "aggregation.schedule=cosine", "aggregation.final_rate=0.1"),
    "local.schedule_by=budget",
)
"""The edge servers' part of the preset `best`, without its rate."""


def list_static_plan(samples: int, theta: float, tau: int) -> Changes:
    """A static plan with shared momentum, until the budgets are used up."""
    plan = (f"scheme.options.samples={samples}", f"scheme.options.theta={theta}", f"rounds.local={tau}")
    often = ("rounds.global=2000", f"simulation.evaluate_every={EVALUATE_EVERY[tau]}")
    return ("scheme.name=static", SMALL, SHARED, *plan, *often)


def list_progress() -> Rows:
    """Static plans that differ in one of samples, θ and τ, with the options of `best`; one without."""
    return {"static-n10-th0.1-tau2-mean": list_static_plan(10, 0.1, 2)} | {
        f"static-n{samples:02}-th{theta:g}-tau{tau}": (
            *list_static_plan(samples, theta, tau),
            *ORTHOGONAL,
            "aggregation.learning_rate=2",
        )
        for samples, theta, tau in PROGRESS_PLANS
    }


def list_best(dataset: str) -> Rows:
    """HCEF+ with its training options, others with the same ones, and CEF as printed and with a deadline."""
    options = (*ORTHOGONAL, "aggregation.learning_rate=1.5", "rounds.global=2000")
    fifth = (*charge_batch(dataset, 10, MEASURED_OVERHEAD[dataset]), SHARED)
    slow = "scheme.slow_clocks=true"
    return {
        "cef": ("scheme.name=cef",),
        "cef-deadline-clocks": ("scheme.name=cef", "scheme.deadline_seconds=800", slow),
        "p_fedavg-options": ("scheme.name=p_fedavg", slow, *fifth, *options, "rounds.local=2"),
        "static-options": (*list_static_plan(10, 0.1, 2), *options),
        "hcef_plus": ("scheme.name=hcef_plus", "rounds.global=2000"),
        "hcef_plus-options": ("scheme.name=hcef_plus", SHARED, *options, "simulation.evaluate_every=2"),
    }


def list_front() -> Rows:
    """HCEF+ and static plans around the best, all with the training options of the preset `best`."""
    options = (*ORTHOGONAL, "aggregation.learning_rate=1.5")
    often = ("rounds.global=2000", "simulation.evaluate_every=2")
    return {"hcef_plus": ("scheme.name=hcef_plus", SHARED, *options, *often)} | {
        f"static-n{samples:02}-th{theta:g}": (*list_static_plan(samples, theta, 2), *options)
        for samples, theta in ((5, 0.1), (10, 0.03), (10, 0.1), (25, 0.1))
    }


AS_PRINTED = (
    *("local.algorithm=sgd", "local.schedule_by=rounds", "aggregation.optimiser=none"),
    *("aggregation.schedule=constant", "aggregation.learning_rate=1"),
)
"""The paper's training options instead of those of the preset `best`."""


PRINTED_RATE = {"cifar10": 0.05, "femnist": 0.03}
"""The presets' learning rates."""

CEF_RATE = {"cifar10": 0.05, "femnist": 0.06}
"""Those with which CEF is better on held-out samples."""


BACKHAUL_JOULES_PER_BIT = 1e-8
PRICED = f"topology.joules_per_bit={BACKHAUL_JOULES_PER_BIT:g}"
EIGHT_BITS = "compression.bits=[8]"


def list_full(dataset: str) -> Rows:
    """HCEF+, others with the same training options, CEF at its best, CEF and HCEF as printed."""
    slow, tau = "scheme.slow_clocks=true", "rounds.local=2"
    fifth = charge_batch(dataset, 10, MEASURED_OVERHEAD[dataset])
    static = ("scheme.name=static", "scheme.options.samples=10", "scheme.options.theta=0.1", SMALL, tau)
    often = "simulation.evaluate_every=1"
    own = ("scheme.name=cef", *AS_PRINTED, slow, often, f"local.learning_rate={CEF_RATE[dataset]}")
    printed = (*AS_PRINTED, often, f"local.learning_rate={PRINTED_RATE[dataset]}")
    return {
        "hcef_plus": (),
        "hcef_plus-priced": (PRICED,),
        "hcef_plus-bits": (EIGHT_BITS,),
        "static": static,
        "static-priced": (*static, PRICED),
        "static-bits": (*static, EIGHT_BITS),
        "static-bits-th0.3": (*static, EIGHT_BITS, "scheme.options.theta=0.3"),
        "p_fedavg": ("scheme.name=p_fedavg", slow, tau, *fifth),
        "cef-best": (*own, "scheme.deadline_seconds=800"),
        # Two steps of the slowest device take 300 s.
        "cef-best-tau2": (*own, tau, "scheme.deadline_seconds=350"),
        "cef": ("scheme.name=cef", *printed),
        "hcef": ("scheme.name=hcef", *printed),
        "hcef-whole": ("scheme.name=hcef", "scheme.steps=whole", *printed),
    }


def list_attribution(dataset: str) -> Rows:
    """CEF with each ingredient of HCEF+ alone, and HCEF+ without each."""
    rule = (*ORTHOGONAL, "aggregation.learning_rate=1.5")
    alone: Rows = {
        "tau": ("rounds.local=2",),
        "batches": charge_batch(dataset, 10, MEASURED_OVERHEAD[dataset]),
        "uploads": (
            *("scheme.name=static", "scheme.options.theta=0.1", "scheme.options.least_speed=1"),
            "scheme.gossip=global_round",
        ),
        "momentum": (SHARED,),
        "rule": rule,
        "gossip": ("scheme.gossip=edge_round",),
        "clocks": ("scheme.slow_clocks=true",),
        "deadline": ("scheme.deadline_seconds=800",),
    }
    without: Rows = {
        "tau": ("scheme.options.local_steps=5",),
        "batches": ("scheme.options.least_batch=1",),
        "uploads": ("scheme.theta_min=1",),
        "momentum": ("local.algorithm=sgd",),
        "rule": (
            "aggregation.optimiser=none",
            "aggregation.schedule=constant",
            "aggregation.learning_rate=1",
        ),
        "gossip": ("scheme.options.dense_gossip=false",),
        "clocks": ("scheme.options.frequency=false",),
        "plan": list_static_plan(10, 0.1, 2),
    }
    many = "rounds.global=2000"
    plus = ("scheme.name=hcef_plus", SHARED, *rule, "simulation.evaluate_every=2", many)
    return (
        {"cef": ("scheme.name=cef", many)}
        | {f"cef+{name}": ("scheme.name=cef", many, *changes) for name, changes in alone.items()}
        | {"hcef_plus": plus}
        | {f"hcef_plus-{name}": (*plus, *changes) for name, changes in without.items()}
    )


def stop_at_budgets(dataset: str) -> Changes:
    """Until the same budgets are used up, counting the steps actually taken."""
    samples = ("simulation.evaluate_samples=1000",) if dataset == "cifar10" else ()
    ending = ("rounds.stop=budget", "simulation.accounting=realised")
    return (*ending, FLOOR, "local.precision=bfloat16", *samples)


def plan_study(
    study: Study, dataset: str, seeds: Sequence[int], rounds: int | None, more: Changes
) -> dict[str, Changes]:
    """The changes of every run to the experiment file, by the run's folder."""
    planned = {}
    for seed in seeds:
        common = (f"seed={seed}", f"rounds.global={rounds or study.rounds[dataset]}", *study.common[dataset])
        budgets = find_budgets(find_file(dataset, study), (*common, *more)) if study.same_budgets else ()
        for row, changes in study.rows[dataset].items():
            planned[f"{row}/seed-{seed}"] = (*budgets, *common, *changes, *more)
    return planned


def find_file(dataset: str, study: Study) -> Path:
    """The experiment that the rows change."""
    return HERE / f"{study.file}-{dataset}.toml"


def find_budgets(file: Path, changes: Changes) -> Changes:
    """The budgets as changes, for rows that alter what these depend on: batch, rounds and costs."""
    budget = load_experiment(file, changes, ANY_CODE).build_setting().budget
    return (f"budget.seconds={budget.seconds}", f"budget.joules={budget.joules}")


def run_missing(file: Path, planned: Mapping[str, Changes], out: Path, jobs: int) -> None:
    """Runs or resumes every run, several side by side; finished ones are kept."""

    def execute(place: str) -> bool:
        words = ["run", str(file), "--resume", "--out", str(out / place)]
        words += [word for change in planned[place] for word in ("--set", change)]
        done = subprocess.run([sys.executable, "-m", "cfel", *words], capture_output=True, text=True)  # noqa: S603
        print(f"{place}: {'done' if done.returncode == 0 else done.stderr.strip()}", flush=True)
        return done.returncode == 0

    with ThreadPoolExecutor(jobs) as pool:
        failed = list(pool.map(execute, planned)).count(False)
    if failed:
        raise SystemExit(f"{plural(failed, 'run')} of {len(planned)} failed")


# ---------------------------------------------------------------------------------------- tables


def format_rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    head, *body = [f"| {' | '.join(cells)} |" for cells in (headings, *rows)]
    return "\n".join([head, f"|{'---|' * len(headings)}", *body])


def format_points(values: Sequence[float]) -> str:
    """A mean difference in percentage points, with half of its 95 % interval."""
    width = confidence_half_width(values)
    return (f"{mean(values):+.1f}" + ("" if width is None else f" ± {width:.1f}")).replace("-", "−")


def format_costs(costs: Crossing) -> str:
    """Time and energy."""
    return f"{costs.realised_seconds / 1e4:.2f}·10⁴ s, {costs.joules / 1e3:.1f} kJ"


def format_gain(row: Mapping[str, Any], name: str) -> str:
    """A gain with its interval, from the summary of a scheme."""
    if row[name] is None:
        return "–"
    interval = row["interval"][name]
    return f"{row[name]:.2f}×" + ("" if interval is None else f" ({interval[0]:.2f}–{interval[1]:.2f})")


def find_accuracy(run: Run) -> float:
    """The accuracy when the first of both budgets is used up, or at the end of the run if none is.

    It is realised and interpolated between rounds; a run that uses a budget up before it is evaluated has its
    first accuracy.
    """
    seconds, joules = run.fleet.seconds_budget or math.inf, run.fleet.joules_budget or math.inf
    evaluated = [(record, record.accuracy) for record in run.records if record.accuracy is not None]
    used = [max(each.seconds_realised / seconds, each.joules_realised / joules) for each, _ in evaluated]
    return float(np.interp(1.0, used, [accuracy for _, accuracy in evaluated]))


def group_rows(out: Path) -> dict[str, list[Run]]:
    """The runs of each row; by its folder, as a row may change more than the scheme."""
    rows: dict[str, list[Run]] = {}
    for place, run in load_tree(out).items():
        rows.setdefault(place.rpartition("/")[0], []).append(run)
    return rows


def divide(reference: float | None, own: float | None) -> float | None:
    """How many times as much the reference takes; None where one of them is not known."""
    return None if reference is None or own is None else reference / own


def tabulate_ablation(out: Path) -> tuple[dict[str, Any], str]:
    """Mean accuracies over the last three and over all rounds, and differences to the whole, seed by seed."""
    rows = {
        row.removeprefix("without-"): {run.seed: run for run in runs} for row, runs in group_rows(out).items()
    }
    seeds = sorted(set.intersection(*(set(own) for own in rows.values())))
    found: dict[str, dict[str, list[float]]] = {}
    for row, own in rows.items():
        records = [[100 * r.accuracy for r in own[seed].records if r.accuracy is not None] for seed in seeds]
        found[row] = {"last": [mean(each[-3:]) for each in records], "all": [mean(each) for each in records]}
    for values in found.values():
        for name in ("last", "all"):
            pairs = zip(values[name], found["nothing"][name], strict=True)
            values[f"{name}_points"] = [one - whole for one, whole in pairs]
    found = dict(sorted(found.items(), key=lambda item: mean(item[1]["last_points"])))
    cells = []
    for row, values in found.items():
        cells.append([f"`{row}`"])
        for name in ("last", "all"):
            points = "" if row == "nothing" else format_points(values[f"{name}_points"])
            cells[-1] += [f"{mean(values[name]):.1f} %", points]
    headings = ("Without", "Last three rounds", "Difference", "All rounds", "Difference")
    return {"item": "ablation", "seeds": seeds, "without": found}, format_rows(headings, cells)


def tabulate_differences(out: Path, lowest: float, highest: float) -> tuple[dict[str, Any], str]:
    """Gains over CEF under each change.

    A gain is a geometric mean over accuracies from the lowest to the highest target in steps of one point, as
    the gain to a single accuracy varies by a whole round. Accuracies that a run does not reach are left out.
    With several seeds, the table shows the range.
    """
    steps = [lowest + 0.01 * step for step in range(round(100 * (highest - lowest)) + 1)]
    rows = group_rows(out)
    gains: dict[str, Any] = {}
    cells = []
    for change in sorted({row.rpartition("/")[0] for row in rows}):
        runs = {
            scheme: {run.seed: run for run in rows[f"{change}/{scheme}"]}
            for scheme in ("cef", "hcef", "hcef_plus")
        }
        seeds = sorted(set.intersection(*(set(own) for own in runs.values())))
        line = [f"`{change}`", str(len(seeds))]
        gains[change] = {str(seed): {} for seed in seeds}
        for scheme in ("hcef", "hcef_plus"):
            found = [compare_costs(runs["cef"][seed], runs[scheme][seed], steps) for seed in seeds]
            for seed, pair in zip(seeds, found, strict=True):
                gains[change][str(seed)][scheme] = pair
            records = [record for seed in seeds for record in runs[scheme][seed].records]
            plans = f"{mean(r.rho_mean for r in records):.2f}, {mean(r.theta_mean for r in records):.2f}"
            line += [*(format_range([pair[which] for pair in found]) for which in (0, 1)), plans]
        cells.append(line)
    headings = ("Changed", "Seeds", "HCEF: time", "energy", "ρ, θ", "HCEF+: time", "energy", "ρ, θ")
    return {"item": "differences", "targets": steps, "gains": gains}, format_rows(headings, cells)


def compare_costs(cef: Run, own: Run, targets: Sequence[float]) -> tuple[float, float]:
    """Mean gains in time and in energy over the accuracies that both reach."""
    ratios = []
    for target in targets:
        before, after = measure(cef, target), measure(own, target)
        seconds, joules = (divide(before[cost], after[cost]) for cost in COSTS)
        if seconds is not None and joules is not None:
            ratios.append((seconds, joules))
    return geometric_mean(each[0] for each in ratios), geometric_mean(each[1] for each in ratios)


def format_range(values: Sequence[float]) -> str:
    """The least and the largest gain."""
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return f"{low}×" if low == high else f"{low}–{high}×"


MOMENTUM = {
    "none": "kept from edge round to edge round",
    "local.momentum_state=reset": "dropped after every edge round",
    "local.momentum=0": "no momentum",
    "local.learning_rate=0.03": "kept, learning rate 0.03 instead of 0.1",
}


def tabulate_momentum(out: Path, target: float) -> tuple[dict[str, Any], str]:
    """Costs to an accuracy with the first seed, from the runs of `differences`.

    A gain divides CEF's cost by the scheme's under the same change. The last row is a mixed pair, CEF without
    kept momentum against the others with it: how much of a gain such a difference can feign.
    """
    rows = group_rows(out)
    found = {
        change: {
            scheme: find_crossing(rows[f"{change}/{scheme}"][0].records, target)
            for scheme in ("cef", "hcef", "hcef_plus")
        }
        for change in MOMENTUM
    }
    mixed = {**found["none"], "cef": found["local.momentum_state=reset"]["cef"]}
    cells = [format_momentum(name, found[change]) for change, name in MOMENTUM.items()]
    cells.append(format_momentum("dropped for CEF, kept for the others", mixed))
    return {"item": "momentum", "target": target}, format_rows(("Momentum", "CEF", "HCEF", "HCEF+"), cells)


def format_momentum(name: str, costs: Mapping[str, Crossing | None]) -> list[str]:
    """One row: the costs of each scheme, and its gains over CEF."""
    cells, cef = [name], costs["cef"]
    for scheme, own in costs.items():
        if own is None or cef is None:
            cells.append("not reached")
            continue
        times, energy = cef.realised_seconds / own.realised_seconds, cef.joules / own.joules
        cells.append(format_costs(own) + ("" if scheme == "cef" else f" ({times:.2f}×, {energy:.2f}×)"))
    return cells


def tabulate_learning(out: Path, target: float) -> tuple[dict[str, Any], str]:
    """Accuracy of held-out samples at the budget, and gains over the same scheme without the change."""
    rows = group_rows(out)
    changes: dict[str, dict[str, dict[str, float | None]]] = {}
    for row, runs in rows.items():
        change, _, scheme = row.rpartition("/")
        plain = {run.seed: measure(run, target) for run in rows[f"nothing/{scheme}"]}
        pairs = [(plain[run.seed], measure(run, target)) for run in runs if run.seed in plain]
        gains = [mean_gain([divide(before[cost], after[cost]) for before, after in pairs]) for cost in COSTS]
        accuracy = mean(map(find_accuracy, runs))
        values = {"accuracy_at_budget": accuracy, "seconds_gain": gains[0], "joules_gain": gains[1]}
        changes.setdefault(change, {})[scheme] = values
    cells = []
    for change in sorted(changes):
        cells.append([f"`{change}`"])
        for scheme in ("cef", "hcef_plus"):
            own = changes[change].get(scheme, {})
            found = own.get("accuracy_at_budget")
            cells[-1].append("–" if found is None else f"{100 * found:.1f} %")
            both = [own.get(name) for name in ("seconds_gain", "joules_gain")]
            cells[-1].append(", ".join("–" if gain is None else f"{gain:.2f}×" for gain in both))
    headings = ("Changed", "CEF", "gain in time, energy", "HCEF+", "gain in time, energy")
    return {"item": "learning", "target": target, "changes": changes}, format_rows(headings, cells)


def tabulate_under_budgets(out: Path, target: float) -> tuple[dict[str, Any], str]:
    """Accuracy at the budgets, its difference to CEF by seed, and costs to the target; best row first."""
    rows = group_rows(out)
    runs = [replace(run, scheme=row) for row, members in rows.items() for run in members]
    document = summarise(runs, target)
    schemes = document["schemes"]
    for name, row in schemes.items():
        row["accuracy_at_budget"] = {str(run.seed): find_accuracy(run) for run in rows[name]}
    reference = schemes["cef"]["accuracy_at_budget"]
    cells = []
    for name, row in sorted(schemes.items(), key=lambda item: -mean(item[1]["accuracy_at_budget"].values())):
        found = row["accuracy_at_budget"]
        points = [100 * (found[seed] - reference[seed]) for seed in found if seed in reference]
        # A mean over the seeds that reached the target would favour those that reach it only when it is easy.
        costs = ["–"] * 4
        if row["reached"] == len(found):
            costs = [f"{row[COSTS[0]] / 1e4:.2f}·10⁴ s", f"{row[COSTS[1]] / 1e3:.2f} kJ"]
            costs += [format_gain(row, gain) for gain in ("gain_seconds", "gain_joules")]
        accuracy = f"{100 * mean(found.values()):.1f} %"
        difference = format_points(points) if any(points) else ""
        cells.append([f"`{name}`", accuracy, difference, f"{row['reached']} of {len(found)}", *costs])
    headings = (
        *("Row", "Accuracy at the budget", "Points", "Reached"),
        *("Time", "Energy", "Gain in time", "Gain in energy"),
    )
    return {"item": "under-budgets", **document}, format_rows(headings, cells)


def tabulate_field(out: Path, *targets: float) -> tuple[dict[str, Any], str]:
    """One table per data set, and the hours that all runs took."""
    rows, found, parts = group_rows(out), {}, []
    for dataset, target in zip(DATASETS, targets, strict=True):
        own = {row.partition("/")[2]: runs for row, runs in rows.items() if row.startswith(f"{dataset}/")}
        if own:
            found[dataset], table = tabulate_field_of(own, target)
            parts.append(f"{dataset}, to {100 * target:g} %\n\n{table}")
    runs = [run for members in rows.values() for run in members]
    hours = sum(record.wall_seconds for run in runs for record in run.records) / 3600
    parts.append(f"{plural(len(runs), 'run')}, {hours:.1f} hours of one machine")
    return {"item": "field", "machine_hours": hours, "datasets": found}, "\n\n".join(parts)


def tabulate_field_of(rows: Mapping[str, Sequence[Run]], target: float) -> tuple[dict[str, Any], str]:
    """Quality within budgets, costs to the target and gains; best row first.

    Gains are over CEF, seed by seed, and over the best of all other rows, by their means: one in time, one in
    energy. Robustness is the row with wrong estimates: points of accuracy, and how many times as long and as
    much energy it takes.
    """
    document = summarise([replace(run, scheme=row) for row, runs in rows.items() for run in runs], target)
    schemes = document["schemes"]
    for name, row in schemes.items():
        row["accuracy_at_budget"] = mean(map(find_accuracy, rows[name]))
        # Costs of a row that does not always reach the target would be those of its easy seeds.
        if row["reached"] < len(rows[name]):
            row |= dict.fromkeys((*COSTS, "gain_seconds", "gain_joules"))
    told = {name: row for name, row in schemes.items() if not name.endswith(AS_WRONG)}
    cells = []
    for name, row in sorted(told.items(), key=lambda item: -item[1]["accuracy_at_budget"]):
        others = [other for other in told.values() if other is not row]
        row["gain_over_best"] = [divide(find_least(others, cost), row[cost]) for cost in COSTS]
        costs = [
            "–" if row[cost] is None else f"{row[cost]:,.0f} {unit}"
            for cost, unit in zip(COSTS, "sJ", strict=True)
        ]
        gains = [format_gain(row, gain) for gain in ("gain_seconds", "gain_joules")]
        over_best = ", ".join("–" if each is None else f"{each:.2f}×" for each in row["gain_over_best"])
        wrong = describe_wrong(row, schemes.get(f"{name}{AS_WRONG}"))
        hours = sum(each["wall_seconds"] for each in row["per_seed"].values()) / 3600
        accuracy = f"{100 * row['accuracy_at_budget']:.1f} %"
        reached = f"{row['reached']} of {len(rows[name])}"
        cells.append([f"`{name}`", accuracy, reached, *costs, *gains, over_best, wrong, f"{hours:.1f}"])
    headings = (
        *("Row", "Accuracy within budgets", "Reached", "Time", "Energy", "Gain over CEF: time", "energy"),
        *("over the best other: time, energy", "With estimates 30 % wrong: points, time, energy", "Hours"),
    )
    return document, format_rows(headings, cells)


def find_least(rows: Sequence[Mapping[str, Any]], cost: str) -> float | None:
    """The least cost of some rows; None if none of them reaches the target."""
    return min((row[cost] for row in rows if row[cost] is not None), default=None)


def describe_wrong(told: Mapping[str, Any], misled: Mapping[str, Any] | None) -> str:
    """What wrong estimates cost a row; nothing for a row that estimates nothing."""
    if misled is None:
        return ""
    points = f"{100 * (misled['accuracy_at_budget'] - told['accuracy_at_budget']):+.1f}".replace("-", "−")
    ratios = [divide(misled[cost], told[cost]) for cost in COSTS]
    return ", ".join([points, *("–" if ratio is None else f"{ratio:.2f}×" for ratio in ratios)])


def tabulate_costs(out: Path, target: float) -> tuple[dict[str, Any], str]:
    """Time and energy to the target, interpolated between rounds, of the schemes that reach it every time."""
    document = summarise(load_runs(out), target)
    cells = [
        [
            scheme,
            *(f"{row[name] / 1e4:.2f}·10⁴ s" for name in ("seconds_to_target", "expected_seconds_to_target")),
            f"{row['joules_to_target'] / 1e3:.1f} kJ",
            *(format_gain(row, gain) for gain in ("gain_seconds", "gain_joules")),
            str(len(row["per_seed"])),
        ]
        for scheme, row in document["schemes"].items()
        if row["seconds_to_target"] is not None
    ]
    headings = ("Scheme", "Time", "expected", "Energy", "Gain in time", "Gain in energy", "Seeds")
    return {"item": "costs", **document}, format_rows(headings, cells)


def tabulate_full(out: Path, target: float) -> tuple[dict[str, Any], str]:
    """Time, energy and backhaul traffic to the target, and gains over CEF as printed.

    Missing runs of CEF and HCEF as printed come from the older study `paper-channel-DATASET-full`.

    Energy is that of devices, unless a column says that it includes the backhaul's.
    """
    rows = {row: _cross_all(runs, target) for row, runs in group_rows(out).items()}
    dataset = tomllib.loads(next(iter(load_tree(out).values())).experiment_toml)["data"]["name"]
    older = group_rows(HERE.parent / "results" / f"paper-channel-{dataset}-full")
    document = {row: [asdict(found[seed]) for seed in sorted(found)] for row, found in rows.items()}
    for row in ("hcef", "cef"):
        rows[row] = _cross_all(older[row], target) | rows.get(row, {})
    cells = [_compare_full(row, found, rows) for row, found in rows.items() if found]
    headings = [
        *("Row", "Seeds", "Time", "Energy", "Backhaul", "Gain over CEF: time", "energy"),
        *("Gain of HCEF+ over the row: time", "energy", "energy with the backhaul"),
    ]
    if "hcef_plus-priced" in rows:
        headings += ("Gain of HCEF+ that pays for it: time", "energy with the backhaul")
    if "hcef_plus-bits" in rows:
        headings += ("Gain of HCEF+ with 8-bit values: time", "energy", "energy with the backhaul")
    return {"item": "full", "target": target, "rows": document}, format_rows(headings, cells)


@dataclass(frozen=True, slots=True)
class Reached:
    """What a run took until it reached a target, interpolated between rounds."""

    seconds: float
    joules: float
    backhaul_joules: float

    @property
    def all_joules(self) -> float:
        """With the energy of the backhaul."""
        return self.joules + self.backhaul_joules


def _cross_all(runs: Sequence[Run], target: float) -> dict[int, Reached]:
    """What every run that reaches the target took, by seed."""
    return {run.seed: found for run in runs if (found := _cross(run, target)) is not None}


def _cross(run: Run, target: float) -> Reached | None:
    crossing = find_crossing(run.records, target)
    if crossing is None:
        return None
    seconds = [record.seconds_realised for record in run.records]
    # Older logs do not say it.
    sent = [math.nan if record.backhaul_bytes is None else record.backhaul_bytes for record in run.records]
    bits = 8.0 * np.cumsum(sent)
    used = float(np.interp(crossing.realised_seconds, [0.0, *seconds], [0.0, *bits]))
    charged = np.cumsum([record.backhaul_joules or 0.0 for record in run.records])
    own = crossing.joules - float(np.interp(crossing.realised_seconds, [0.0, *seconds], [0.0, *charged]))
    return Reached(crossing.realised_seconds, own, used * BACKHAUL_JOULES_PER_BIT)


def _compare_full(
    row: str, found: Mapping[int, Reached], rows: Mapping[str, Mapping[int, Reached]]
) -> list[str]:
    own = [found[seed] for seed in sorted(found)]
    gigabytes = mean(each.backhaul_joules for each in own) / BACKHAUL_JOULES_PER_BIT / 8e9
    shown = [f"`{row}`", str(len(own)), f"{mean(each.seconds for each in own):,.0f} s"]
    shown += [
        f"{mean(each.joules for each in own) / 1e3:.1f} kJ",
        "–" if math.isnan(gigabytes) else f"{gigabytes:.1f} GB",
    ]
    shown += [_show_gains(found, rows["cef"], cost) for cost in ("seconds", "joules")]
    plus = rows.get("hcef_plus", {})
    shown += [_show_gains(plus, found, cost) for cost in ("seconds", "joules", "all_joules")]
    if "hcef_plus-priced" in rows:
        priced = rows["hcef_plus-priced"]
        shown += [_show_gains(priced, found, cost) for cost in ("seconds", "all_joules")]
    if "hcef_plus-bits" in rows:
        eight = rows["hcef_plus-bits"]
        shown += [_show_gains(eight, found, cost) for cost in ("seconds", "joules", "all_joules")]
    return shown


def _show_gains(own: Mapping[int, Reached], other: Mapping[int, Reached], cost: str) -> str:
    """How many times as much of a cost the other takes, seed by seed: the geometric mean and its interval."""
    ratios = [
        getattr(other[seed], cost) / getattr(own[seed], cost) for seed in sorted(own.keys() & other.keys())
    ]
    if not ratios or math.isnan(sum(ratios)):
        return "–"
    interval = geometric_interval(ratios)
    ends = "" if interval is None else f" ({interval[0]:.2f}–{interval[1]:.2f})"
    return f"{geometric_mean(ratios):.2f}×{ends}"


def tabulate_attribution(out: Path, target: float) -> tuple[dict[str, Any], str]:
    """Gains of ingredients, added to CEF and missing from HCEF+, in time and energy to the target."""
    runs = group_rows(out)
    rows = {row: _cross_all(found, target) for row, found in runs.items()}
    cells = []
    for row, found in rows.items():
        whole = "hcef_plus" if row.startswith("hcef_plus") else "cef"
        own, other = (rows[whole], found) if whole == "hcef_plus" else (found, rows[whole])
        shown = [f"`{row}`", f"{len(found)} of {len(runs[row])}"]
        shown.append(f"{100 * mean(find_accuracy(run) for run in runs[row]):.1f} %")
        cells.append(shown + [_show_gains(own, other, cost) for cost in ("seconds", "joules")])
    document = {row: {seed: asdict(found[seed]) for seed in sorted(found)} for row, found in rows.items()}
    headings = ("Row", "Seeds that reach it", "At the budget", "Gain in time", "in energy")
    return {"item": "attribution", "target": target, "rows": document}, format_rows(headings, cells)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Means of a row over seeds; costs only where every seed reached the target."""

    accuracy: float
    reached: int
    seconds: float | None
    joules: float | None

    def compare(self, other: "Outcome") -> tuple[float, float]:
        """How many times as much time and energy the other takes."""
        if self.seconds is None or self.joules is None or other.seconds is None or other.joules is None:
            raise ValueError("a row that misses the target has no costs to compare")
        return other.seconds / self.seconds, other.joules / self.joules

    def show(self) -> list[str]:
        """The cells under `OUTCOME`."""
        costs = ["–", "–"]
        if self.seconds is not None and self.joules is not None:
            costs = [f"{self.seconds:,.0f} s", f"{self.joules:,.0f} J"]
        return [f"{100 * self.accuracy:.1f} %", *costs]


OUTCOME = ("Accuracy at the budget", "Time", "Energy")


def average_rows(rows: Mapping[str, Sequence[Run]], seeds: set[int], target: float) -> dict[str, Outcome]:
    """The rows that were run with all of these seeds, averaged over them."""
    found = {}
    for row, runs in rows.items():
        own = [run for run in runs if run.seed in seeds]
        if len(own) < len(seeds):
            continue
        costs = [each for run in own if (each := find_crossing(run.records, target)) is not None]
        everywhere = len(costs) == len(own)
        found[row] = Outcome(
            accuracy=mean(map(find_accuracy, own)),
            reached=len(costs),
            seconds=mean(each.realised_seconds for each in costs) if everywhere else None,
            joules=mean(each.joules for each in costs) if everywhere else None,
        )
    return found


def find_front(rows: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """The rows that reach the target, and that no other beats in time and energy; fastest first."""
    reached = {row: own for row, own in rows.items() if own.seconds is not None}
    front = {
        row: own
        for row, own in reached.items()
        if not any(max(gains) <= 1 and min(gains) < 1 for gains in map(own.compare, reached.values()))
    }
    return dict(sorted(front.items(), key=lambda item: item[1].seconds or 0.0))


def compare_to_front(own: Outcome, front: Mapping[str, Outcome]) -> str:
    """Gains over the nearest row of the front, by the ratios of costs, and how many of its rows are better.

    A gain above 1 is better than that row; a row is better if it takes no more time and no more energy.
    """
    if own.seconds is None or not front:
        return "–"
    gains = {row: own.compare(other) for row, other in front.items()}
    row = min(gains, key=lambda name: math.hypot(*map(math.log, gains[name])))
    better = sum(max(pair) <= 1 for pair in gains.values())
    behind = f", behind {better}" if better else ""
    return f"{gains[row][0]:.2f}×, {gains[row][1]:.2f}× (`{row.removeprefix('static-')}`){behind}"


def tabulate_static(out: Path, target: float) -> tuple[dict[str, Any], str]:
    """The front of static plans, where HCEF+ stands against it, and all rows.

    Where only some rows were run with all seeds, there is one front of these, and one of all rows with the
    seeds that all have.
    """
    rows = group_rows(out)
    own_seeds = [{run.seed for run in runs} for runs in rows.values()]
    most, least = set.union(*own_seeds), set.intersection(*own_seeds)
    parts, fronts = [], {}
    for seeds in (most,) if most == least else (most, least):
        found = average_rows(rows, seeds, target)
        name = ", ".join(map(str, sorted(seeds)))
        parts.append(
            f"{plural(len(found), 'row')}; {plural(len(seeds), 'seed')}, {name}\n\n{format_front(found)}"
        )
        fronts[name] = {
            "front": list(find_front(select_static(found))),
            "rows": {row: asdict(each) for row, each in found.items()},
        }
    cells = []
    for row, runs in rows.items():
        own = average_rows({row: runs}, {run.seed for run in runs}, target)[row]
        cells.append([f"`{row}`", *own.show(), f"{own.reached} of {len(runs)}"])
    parts.append(format_rows(("Row", *OUTCOME, "Reached"), cells))
    return {"item": "static", "target": target, "seeds": fronts}, "\n\n".join(parts)


def select_static(rows: Mapping[str, Outcome], ending: str = "") -> dict[str, Outcome]:
    """The static plans among some rows."""
    return {row: own for row, own in rows.items() if row.startswith("static-") and row.endswith(ending)}


def format_front(rows: Mapping[str, Outcome]) -> str:
    """The rows of the front, then HCEF+ with its gains over the nearest of them, at any τ and at its own."""
    front = find_front(select_static(rows))
    cells = [[f"`{row}`", *own.show(), "", ""] for row, own in front.items()]
    for row, own in rows.items():
        if row.startswith("hcef_plus"):
            same = find_front(select_static(rows, row.removeprefix("hcef_plus")))
            gains = [compare_to_front(own, plans) for plans in (front, same)]
            cells.append([f"`{row}`", *own.show(), *gains])
    return format_rows(("Row", *OUTCOME, "Gain over the front", "over that of its τ"), cells)


def tabulate_rates(out: Path, target: float) -> tuple[dict[str, Any], str]:
    """Accuracy at the budget and costs to the target, averaged over seeds, as the rows are named."""
    rows = group_rows(out)
    seeds = set.intersection(*({run.seed for run in runs} for runs in rows.values()))
    found = average_rows(rows, seeds, target)
    document = {
        "target": target,
        "seeds": sorted(seeds),
        "rows": {row: asdict(own) for row, own in found.items()},
    }
    cells = [[f"`{row}`", *own.show(), f"{own.reached} of {len(seeds)}"] for row, own in found.items()]
    return {"item": "rates", **document}, format_rows(("Row", *OUTCOME, "Reached"), cells)


TUNED = (("FEMNIST", "femnist", 75), ("CIFAR-10", "cifar10", 55), ("CIFAR-10", "cifar10", 60))


def tabulate_tuned(results: Path) -> tuple[dict[str, Any], str]:
    """HCEF+ beside P-FedAvg, which gossips as often, with the same batches and momentum; seed 0.

    What is left is what HCEF+ itself decides: batches and uploads per device, and clocks.
    """
    cells = []
    for name, dataset, percent in TUNED:
        others = [f"paper-channel-small/{dataset}/{other}" for other in ("p_fedavg", "p_fedavg+slow_clocks")]
        folders = (*others, f"paper-channel-{dataset}-full/hcef_plus+small_batches")
        costs = []
        for folder in folders:
            found = find_crossing(load_run(results / folder / "seed-0").records, percent / 100)
            if found is None:
                raise SystemExit(f"{results / folder} does not reach {percent} %")
            costs.append(found)
        _, clocks, plus = costs
        gain = f"{clocks.realised_seconds / plus.realised_seconds:.2f}×, {clocks.joules / plus.joules:.2f}×"
        cells.append([f"{name} to {percent} %", *map(format_costs, costs), gain])
    headings = ("", "P-FedAvg", "P-FedAvg with slow clocks", "HCEF+", "Gain over the latter")
    return {"item": "tuned"}, format_rows(headings, cells).replace("|  |", "| |", 1)


def study_until_budgets(
    title: str,
    tabulate: Callable[..., tuple[dict[str, Any], str]],
    list_rows: Callable[[str], Rows],
    *common: str,
    seeds: tuple[int, ...] = (0, 1, 2),
) -> Study:
    """A study in which every row of a data set runs until the plain experiment's budgets are used up."""
    return Study(
        title,
        tabulate,
        rows={dataset: list_rows(dataset) for dataset in DATASETS},
        common={dataset: (*stop_at_budgets(dataset), *common) for dataset in DATASETS},
        seeds=seeds,
        rounds={"cifar10": 8, "femnist": 12},
        same_budgets=True,
    )


STUDIES = {
    "ablation": Study(
        "HCEF+ without each of its parts",
        tabulate_ablation,
        targets="",
        rows=dict.fromkeys(DATASETS, ABLATION),
        common=dict.fromkeys(DATASETS, (FLOOR,)),
        seeds=(0, 1, 2),
        rounds={"cifar10": 8, "femnist": 8},
    ),
    "differences": Study(
        "what the gain over CEF depends on: one setting changed at a time",
        tabulate_differences,
        targets="LOWEST HIGHEST",
        rows={dataset: list_differences(dataset) for dataset in DATASETS},
        common=dict.fromkeys(DATASETS, (FLOOR,)),
        rounds={"cifar10": 12, "femnist": 12},
    ),
    "momentum": Study("what momentum does to each scheme, from the runs of `differences`", tabulate_momentum),
    "learning": study_until_budgets(
        "CEF and HCEF+ with one training option changed at a time, on held-out samples",
        tabulate_learning,
        list_learning,
        "data.held_out=0.1",
        seeds=(10,),
    ),
    "under-budgets": replace(
        study_until_budgets(
            "twenty schemes and algorithms of the field until the same budgets are used up",
            tabulate_under_budgets,
            list_under_budgets,
        ),
        common={
            dataset: (*stop_at_budgets(dataset), f"local.step_overhead={overhead}")
            for dataset, overhead in LANDED_OVERHEAD.items()
        },
    ),
    "under-budgets-whole": study_until_budgets(
        "the rows of under-budgets that ended before their budgets, with enough rounds",
        tabulate_under_budgets,
        lambda _: WHOLE_BUDGET,
    ),
    "field": replace(
        study_until_budgets(
            "the systems of the paper and others, on both data sets, until the same budgets are used up",
            tabulate_field,
            list_field,
        ),
        targets="CIFAR-10 FEMNIST",
        both=True,
    ),
    "static": study_until_budgets(
        "HCEF+ beside a grid of static plans until the same budgets are used up",
        tabulate_static,
        lambda _: list_static(),
    ),
    "progress": study_until_budgets(
        "what steps, batches and uploads are worth: static plans on held-out samples",
        tabulate_rates,
        lambda _: list_progress(),
        "data.held_out=0.1",
        seeds=(10,),
    ),
    "best": study_until_budgets(
        "HCEF+ with its training options, and others with the same ones, until the same budgets are used up",
        tabulate_under_budgets,
        list_best,
    ),
    "front": study_until_budgets(
        "HCEF+ beside static plans with the same training options; --set makes it another fleet",
        tabulate_rates,
        lambda _: list_front(),
    ),
    "full": Study(
        "HCEF+, others with the same training options and CEF at its best, at full scale, to a target",
        tabulate_full,
        rows={dataset: list_full(dataset) for dataset in DATASETS},
        common=dict.fromkeys(DATASETS, ()),
        seeds=(0, 1, 2),
        rounds={"cifar10": 300, "femnist": 300},
        same_budgets=True,
        file="best",
    ),
    "attribution": study_until_budgets(
        "what each ingredient of HCEF+ brings: alone, added to CEF, and missing from HCEF+",
        tabulate_attribution,
        list_attribution,
    ),
    "rates-cef": study_until_budgets(
        "learning rates of CEF under budgets, on held-out samples",
        tabulate_rates,
        lambda _: RATES,
        "data.held_out=0.1",
        seeds=(10, 11, 12),
    ),
    "costs": Study(
        "time and energy to an accuracy, of a folder with one run per scheme and seed", tabulate_costs
    ),
    "tuned": Study("HCEF+ beside P-FedAvg with the same batches and momentum", tabulate_tuned, targets=""),
}


# ---------------------------------------------------------------------------------------- without training


def show_use(seeds: Sequence[int]) -> None:
    """Prints how long 40 rounds of CEF take on FEMNIST, over seeds."""
    settings = (
        preset_experiment("paper-femnist", [f"seed={seed}", "budget.share_of_cef=1"]).build_setting()
        for seed in seeds
    )
    found = np.array([setting.budget.seconds for setting in settings])
    print(f"least {found.min():.3g} s, median {np.median(found):.3g} s, most {found.max():.3g} s")


def show_weights(dataset: str, seeds: Sequence[int]) -> None:
    """Prints the gains of HCEF+ in steps per second and per joule over CEF, for several time weights."""
    for seed in seeds:
        cef_seconds, cef_joules, _ = run_dry(dataset, f"seed={seed}", "scheme.name=cef")
        for weight in (0.6, 0.7, 0.8, 0.9, 0.95):
            options = ("scheme.name=hcef_plus", f"scheme.options.time_weight={weight}")
            seconds, joules, share = run_dry(dataset, f"seed={seed}", *options)
            gains = f"{cef_seconds / seconds * share:.2f}×, {cef_joules / joules * share:.2f}×"
            print(f"seed {seed}, time_weight {weight}: {gains}")


def run_dry(dataset: str, *changes: str) -> tuple[float, float, float]:
    """Seconds, joules and mean share of steps of six rounds in the paper's setting."""
    rounds = list(islice(dry_run(preset_experiment(f"paper-{dataset}", changes).build_setting()), 6))
    share = np.mean([plan.rho.mean() for each in rounds for plan in each.plans])
    return rounds[-1].ledger.seconds, rounds[-1].ledger.joules, float(share)


# ---------------------------------------------------------------------------------------- the command


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds between commas."""
    return tuple(int(each) for each in text.split(","))


def build_parser() -> argparse.ArgumentParser:
    """One command per study, and those that need no runs."""
    parser = argparse.ArgumentParser(description="Runs the studies behind results/ and prints their tables.")
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, study in STUDIES.items():
        command = commands.add_parser(name, help=study.title)
        command.add_argument("--out", type=Path, required=True, help="tree of runs, or a landed study")
        takes = f", for {study.targets} such as 0.72" if study.targets else ""
        command.add_argument(
            "--table", type=float, nargs="*", metavar="TARGET", help=f"print the table{takes}"
        )
        command.add_argument(
            "--land", type=Path, metavar="DIR", help="write the results there, to commit them"
        )
        if study.rows:
            where = (
                "with a folder per data set in this one" if study.both else "with the data set in this folder"
            )
            command.add_argument("--data", help=f"run what is missing, {where}")
            command.add_argument(
                "--dataset", choices=DATASETS, help="only this one" if study.both else "which it is"
            )
            command.add_argument("--seeds", type=parse_seeds, default=study.seeds, metavar="A,B,…")
            command.add_argument(
                "--rows", type=lambda text: text.split(","), metavar="A,B,…", help="run only these rows"
            )
            command.add_argument("--rounds", type=int, metavar="N", help="global rounds")
            command.add_argument(
                "--jobs", type=int, default=2, metavar="N", help="runs side by side (default 2)"
            )
            command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    use = commands.add_parser("use", help="seconds that CEF uses by seed; no training")
    use.add_argument("--seeds", type=parse_seeds, default=tuple(range(20)), metavar="A,B,…")
    weights = commands.add_parser("weights", help="gains of HCEF+ by its time weight; no training")
    weights.add_argument("--dataset", choices=DATASETS, required=True)
    weights.add_argument("--seeds", type=parse_seeds, default=(10, 11), metavar="A,B,…")
    unpack = commands.add_parser("unpack", help="write a landed study as run directories again")
    unpack.add_argument("study", type=Path)
    unpack.add_argument("out", type=Path)
    return parser


def main(words: Sequence[str] | None = None) -> None:
    """Runs, prints and lands what is asked for."""
    parser = build_parser()
    arguments = parser.parse_args(words)
    if arguments.name == "use":
        show_use(arguments.seeds)
    elif arguments.name == "weights":
        show_weights(arguments.dataset, arguments.seeds)
    elif arguments.name == "unpack":
        print(f"{plural(len(unpack_study(arguments.study, arguments.out)), 'run')} in {arguments.out}")
    else:
        handle_study(parser, arguments)


def choose_rows(
    parser: argparse.ArgumentParser, study: Study, dataset: str, names: Sequence[str] | None
) -> Study:
    """The study with these rows only; with all of them if none are named."""
    rows = study.rows[dataset]
    if names is None:
        return study
    if unknown := [name for name in names if name not in rows]:
        parser.error(f"--rows: no row {unknown[0]!r}; choose from {', '.join(rows)}")
    return replace(study, rows={dataset: {name: rows[name] for name in names}})


def handle_study(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Runs what is missing if there are data, prints the table, and lands both."""
    study = STUDIES[arguments.name]
    given = study.targets.split() if arguments.table is arguments.land is None else arguments.table
    if given is None or len(given) != len(study.targets.split()):
        parser.error(f"{arguments.name} needs --table {study.targets}".rstrip())
    if arguments.land is not None and find_study(arguments.out):
        parser.error(f"--land needs run directories, and {arguments.out} has landed already")
    if study.rows and arguments.data is not None:
        if arguments.dataset is None and not study.both:
            parser.error("--data needs --dataset")
        for dataset in DATASETS if arguments.dataset is None else (arguments.dataset,):
            folder = dataset if study.both else ""
            more = (*arguments.set, f"data.path={Path(arguments.data, folder)}")
            chosen = choose_rows(parser, study, dataset, arguments.rows)
            planned = plan_study(chosen, dataset, arguments.seeds, arguments.rounds, more)
            run_missing(find_file(dataset, study), planned, arguments.out / folder, arguments.jobs)
    if arguments.table is not None:
        document, table = study.tabulate(arguments.out, *arguments.table)
        print(table)
        if arguments.land is not None:
            write_summary(arguments.out, document)
            land_study(arguments.out, arguments.land)


if __name__ == "__main__":
    main()
