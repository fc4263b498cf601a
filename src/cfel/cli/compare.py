"""`cfel compare`, `demo`, `sweep` and `tune`: several runs, under the same conditions."""

import argparse
import math
import shlex
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

import cfel
from cfel.api import runs
from cfel.api.tuning import SEED_DISTANCE
from cfel.cli import options, output
from cfel.errors import InputError
from cfel.experiment import Experiment, preset_experiment
from cfel.experiment.sections import parse_change
from cfel.plugins import ANY_CODE, import_from
from cfel.report.table import TABLE_FORMATS, MainTable, check_formats, fold_heading, write_table
from cfel.wording import plural

EXAMPLES = {
    "compare": """  cfel compare experiment.toml --seeds 0,1,2 --target 0.7 --out runs/table
  cfel compare experiment.toml --schemes hcef,cef,my_module:build
  cfel compare experiment.toml --schemes hcef_plus,cef --format latex,pdf \\
      --variant "mine: scheme=mine:plan local.algorithm=mine:sam" """,
    "demo": "  cfel demo --out cfel-demo",
    "sweep": """  cfel sweep experiment.toml --over local.learning_rate=0.01,0.05 --over scheme.name=hcef,cef
  cfel sweep experiment.toml --over rounds.edge=1,2,5 --seeds 0,1,2 --out runs/edge""",
    "tune": """  cfel tune experiment.toml --over local.learning_rate=0.001..0.3:log --over rounds.edge=2..10
  cfel tune experiment.toml --over scheme.name=hcef,hcef_plus --seeds 7,8 --out runs/tuned""",
}
SCHEMES = "hcef_plus,hcef,cef,cef_c,cef_f,mll_sgd"
FORMATS = (*TABLE_FORMATS, "pdf")
MOST_TRIALS_SHOWN = 10


def add_compare_options(parser: argparse.ArgumentParser) -> None:
    options.add_experiment_argument(parser)
    parser.add_argument(
        "--schemes",
        type=options.parse_names,
        metavar="A,B,…",
        help=f"schemes to run (default {SCHEMES}; with --variant: none)",
    )
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar='"NAME: A.B=VALUE …"',
        help="a row with any keys changed; repeatable, shown after the schemes",
    )
    parser.add_argument(
        "--baseline", metavar="NAME", help="row to compare with (default cef if it is there, else the first)"
    )
    options.add_seeds_option(parser, "seeds of each row (default: the experiment's)")
    options.add_target_option(parser)
    options.add_out_option(parser, "output directory (default runs/NAME-compared)")
    parser.add_argument(
        "--format",
        type=options.parse_names,
        default=[],
        metavar="NAME,…",
        help=f"also write the main table as csv, markdown or latex, figures as pdf ({','.join(FORMATS)})",
    )
    parser.add_argument("--resume", action="store_true", help="resume the runs in DIR")
    options.add_run_options(parser)
    parser.set_defaults(run=compare)


def compare(arguments: argparse.Namespace) -> None:
    if arguments.format:
        check_formats(arguments.format, FORMATS)
    experiment = options.load_from_arguments(arguments)
    schemes = arguments.schemes
    if schemes is None:
        schemes = [] if arguments.variant else options.parse_names(SCHEMES)
    rows = runs.list_rows(experiment, schemes) if schemes or not arguments.variant else {}
    for text in arguments.variant:
        name, variant = parse_variant(text, experiment)
        if name in rows:
            raise InputError(f"--variant: two rows are called {name!r}")
        rows[name] = variant
    _compare_rows(rows, arguments)


def parse_variant(text: str, experiment: Experiment) -> tuple[str, Experiment]:
    """Reads "name: a.b=value c=value" as the name of a row and its experiment.

    Values are read as `--set` reads them; `scheme=NAME` may have variants, as in --schemes.
    """
    name, colon, assignments = text.partition(":")
    words = shlex.split(assignments)
    if not colon or not name.strip() or not all("=" in word for word in words):
        raise InputError(f'--variant {text!r}: must look like "name: section.key=value section.key=value"')
    changes: dict[str, Any] = {}
    for word in words:
        key, value = parse_change(word)
        if key in ("scheme", "scheme.name") and isinstance(value, str):
            experiment = runs.replace_scheme(experiment, value)
        else:
            changes[key] = value
    return name.strip(), experiment.change(changes) if changes else experiment


def _compare_rows(rows: Mapping[str, Experiment], arguments: argparse.Namespace) -> None:
    comparison = runs.compare(
        rows,
        seeds=arguments.seeds or None,
        out=arguments.out,
        target=arguments.target,
        baseline=arguments.baseline,
        resume=arguments.resume,
        **options.select_run_options(arguments),
    )
    files = [str(path) for path in write_table(comparison.path, comparison.summary, arguments.format)]
    if "pdf" in arguments.format:
        drawn = comparison.export_figures(comparison.path / "figures", ["pdf"])
        files.append(f"{comparison.path / 'figures'}: {plural(len(drawn), 'PDF file')}")
    if arguments.json:
        output.print_json(comparison.summary)
        return
    console = Console(highlight=False)
    _print_main_table(console, comparison.main_table, comparison.describe_overruns())
    target, found = comparison.target, comparison.summary["schemes"]
    if target is not None and all(row["seconds_to_target"] is None for row in found.values()):
        aim = output.use_plain_spaces(comparison.metric.format_target(target))
        console.print(f"nothing reached {aim} with every seed: try a lower --target or more rounds")
    output.print_report_path(console, comparison.path)
    for file in files:
        output.print_line(file)


def _print_main_table(console: Console, table: MainTable, overruns: Sequence[str]) -> None:
    """Prints the main table; intervals are on a second line, so that it stays narrow."""
    several = any(cell.interval for _, cells in table.rows.values() for cell in cells)
    headings = ("\n".join(fold_heading(output.use_plain_spaces(each))) for each in table.headings)
    shown = output.new_table(*table.names, *headings)
    shown.padding = (0, 1, 0, 0)
    for names, cells in table.rows.values():
        pad = "\n" if several else ""
        texts = [f"{cell.text}\n{cell.interval}" if several else cell.text for cell in cells]
        shown.add_row(*(escape(name) + pad for name in names), *map(output.use_plain_spaces, texts))
    output.print_table(console, escape(output.use_plain_spaces(table.title)), shown)
    console.print(escape(" ".join(table.notes)), style="dim")
    for sentence in overruns:
        console.print(f"[yellow]over budget:[/] {escape(sentence)}")


def add_demo_options(parser: argparse.ArgumentParser) -> None:
    options.add_out_option(parser, "output directory (default: cfel-demo, or cfel-demo-2, …)")
    parser.add_argument("--resume", action="store_true", help="resume the demo in DIR")
    options.add_run_options(parser)
    parser.set_defaults(run=demonstrate, seeds=None, target=None, baseline=None, format=[])


def demonstrate(arguments: argparse.Namespace) -> None:
    """Compares HCEF with its baselines on the digits data set of scikit-learn."""
    import_from()
    experiment = options.replace_engine(preset_experiment("demo", arguments.set, ANY_CODE), arguments.engine)
    if arguments.resume and arguments.out is None:
        raise InputError("--resume: needs --out, the directory of the demo to resume")
    arguments.out = arguments.out or _find_free_directory("cfel-demo")
    _compare_rows(runs.list_rows(experiment, options.parse_names(SCHEMES)), arguments)


def _find_free_directory(name: str) -> Path:
    """The first of name, name-2, name-3, … that does not exist, so that a demo never overwrites another."""
    candidates = (Path(name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in candidates if not path.exists())


def add_sweep_options(parser: argparse.ArgumentParser) -> None:
    options.add_experiment_argument(parser)
    text = "a key of the experiment and its values; repeated, every combination is run"
    parser.add_argument("--over", action="append", required=True, metavar="A.B=X,Y,…", help=text)
    options.add_seeds_option(parser, "seeds of each combination (default: the experiment's)")
    options.add_target_option(parser)
    options.add_out_option(
        parser, "output directory (default runs/NAME-sweep); runs that are there are kept or continued"
    )
    options.add_run_options(parser)
    parser.set_defaults(run=sweep)


def sweep(arguments: argparse.Namespace) -> None:
    over = dict(map(_parse_values, arguments.over))
    experiment = options.load_from_arguments(arguments)
    found = cfel.sweep(
        experiment,
        over,
        arguments.seeds or None,
        out=arguments.out,
        target=arguments.target,
        **options.select_run_options(arguments),
    )
    if arguments.json:
        output.print_json(found.summary)
        return
    console = Console(highlight=False)
    _print_main_table(console, found.main_table, found.describe_overruns())
    if best := _find_best(found):
        console.print(output.use_plain_spaces(best), soft_wrap=True)
    output.print_report_path(console, found.path)


def _parse_values(text: str) -> tuple[str, list[Any]]:
    """Reads "a.b=1,2" as a key and its values, each as `--set` reads it."""
    key, sign, listed = text.partition("=")
    words = options.parse_names(listed)
    if not sign or not words:
        raise InputError(f"--over {text}: must look like section.key=value,value")
    return key.strip(), [parse_change(f"{key}={word}")[1] for word in words]


def _find_best(found: cfel.Sweep) -> str:
    """The setting with the best quality within the budgets, in words; empty if none was evaluated."""
    metric, rows = found.metric, found.summary["schemes"]
    known = {
        name: value for name, row in rows.items() if (value := row["quality_within_budgets"]) is not None
    }
    if not known:
        return ""
    best = min(known, key=lambda name: metric.sort_key(known[name]))
    return f"best {metric.name} within the budgets: {escape(best)}, {metric.format(known[best])}"


def add_tune_options(parser: argparse.ArgumentParser) -> None:
    options.add_experiment_argument(parser)
    text = "a key and its range, LOW..HIGH or LOW..HIGH:log, or its values, X,Y,…; repeatable"
    parser.add_argument("--over", action="append", required=True, metavar="A.B=RANGE", help=text)
    parser.add_argument(
        "--trials",
        type=options.parse_positive_integer,
        default=20,
        metavar="N",
        help="trials in total, those that are there included (default 20)",
    )
    seeds = f"seeds of each trial, without the experiment's own (default: that plus {SEED_DISTANCE})"
    options.add_seeds_option(parser, seeds, "7,8")
    options.add_out_option(
        parser, "output directory (default runs/NAME-tuned); a tuning that is there continues"
    )
    options.add_run_options(parser)
    parser.set_defaults(run=tune)


def tune(arguments: argparse.Namespace) -> None:
    over = dict(_parse_range(text) for text in arguments.over)
    experiment = options.load_from_arguments(arguments)
    tuning = cfel.tune(
        experiment,
        over,
        trials=arguments.trials,
        seeds=arguments.seeds,
        out=arguments.out,
        **options.select_run_options(arguments),
    )
    if arguments.json:
        trials = [{"values": each.values, "held_out_quality": each.score} for each in tuning.trials]
        output.print_json({"best": tuning.best, "seeds": tuning.seeds, "trials": trials})
        return
    _print_tuning(Console(highlight=False), tuning, arguments)


def _parse_range(text: str) -> tuple[str, str | list[Any]]:
    key, _, span = text.partition("=")
    return (key.strip(), span.strip()) if ".." in span else _parse_values(text)


def _print_tuning(console: Console, tuning: cfel.Tuning, arguments: argparse.Namespace) -> None:
    metric = tuning.metric
    table = output.new_table(*tuning.best, f"held-out\n{metric.name}")
    for trial in tuning.trials[:MOST_TRIALS_SHOWN]:
        values = (
            f"{each:.4g}" if isinstance(each, float) else escape(str(each)) for each in trial.values.values()
        )
        score = output.use_plain_spaces(metric.format(trial.score)) if math.isfinite(trial.score) else "none"
        table.add_row(*values, score)
    counted = f"{plural(len(tuning.trials), 'trial')} with {plural(len(tuning.seeds), 'seed')} each"
    output.print_table(
        console, f"Held-out {metric.name} within the budgets, realised, best of {counted}", table
    )
    seeds = ", ".join(map(str, tuning.seeds))
    console.print(f"judged by held-out training samples, with seeds {seeds}; test samples played no part")
    changes = [*arguments.set, *(f"{key}={value}" for key, value in tuning.best.items())]
    words = ["cfel", "run", str(arguments.experiment)]
    words += [part for each in changes for part in ("--set", each)]
    console.print(f"best: {escape(shlex.join(words))}", soft_wrap=True)
