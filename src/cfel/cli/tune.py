"""`cfel tune`: chooses values of keys by held-out quality under the experiment's budgets."""

import argparse
import math
import shlex
from typing import Any

from rich.console import Console
from rich.markup import escape

import cfel
from cfel.api.tuning import SEED_DISTANCE
from cfel.cli import options, output
from cfel.cli.sweep import parse_values
from cfel.wording import plural

EXAMPLE = """  cfel tune experiment.toml --over local.learning_rate=0.001..0.3:log --over rounds.edge=2..10
  cfel tune experiment.toml --over scheme.name=hcef,hcef_plus --seeds 7,8 --out runs/tuned"""
MOST_ROWS = 10


def register(commands: options.Commands, name: str) -> None:
    parser = options.add_command(commands, name, EXAMPLE)
    options.add_experiment_argument(parser)
    parser.add_argument(
        "--over",
        action="append",
        required=True,
        metavar="A.B=RANGE",
        help="a key and its range, LOW..HIGH or LOW..HIGH:log, or its values, X,Y,…; repeatable",
    )
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
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
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
        return 0
    _print_result(Console(highlight=False), tuning, arguments)
    return 0


def _parse_range(text: str) -> tuple[str, str | list[Any]]:
    key, _, span = text.partition("=")
    return (key.strip(), span.strip()) if ".." in span else parse_values(text)


def _print_result(console: Console, tuning: cfel.Tuning, arguments: argparse.Namespace) -> None:
    metric = tuning.metric
    table = output.new_table(*tuning.best, f"held-out\n{metric.name}")
    for trial in tuning.trials[:MOST_ROWS]:
        score = output.use_plain_spaces(metric.format(trial.score)) if math.isfinite(trial.score) else "none"
        table.add_row(*map(_format, trial.values.values()), score)
    counted = f"{plural(len(tuning.trials), 'trial')} with {plural(len(tuning.seeds), 'seed')} each"
    output.print_table(
        console, f"Held-out {metric.name} within the budgets, realised, best of {counted}", table
    )
    seeds = ", ".join(map(str, tuning.seeds))
    console.print(f"judged by held-out training samples, with seeds {seeds}; test samples played no part")
    changes = [*arguments.set, *(f"{key}={value}" for key, value in tuning.best.items())]
    options = [part for each in changes for part in ("--set", each)]
    words = shlex.join(["cfel", "run", str(arguments.experiment), *options])
    console.print(f"best: {escape(words)}", soft_wrap=True)


def _format(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else escape(str(value))
