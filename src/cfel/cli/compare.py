"""`cfel compare`: several schemes, or any other variants of an experiment, under the same conditions."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from cfel.api import runs
from cfel.cli import options, output
from cfel.errors import InputError
from cfel.experiment import Experiment
from cfel.experiment.sections import parse_change
from cfel.report.table import (
    TABLE_FORMATS,
    MainTable,
    check_formats,
    fold_heading,
    write_table,
)
from cfel.wording import plural

EXAMPLE = """  cfel compare experiment.toml --seeds 0,1,2 --target 0.7 --out runs/table
  cfel compare experiment.toml --schemes hcef,cef,my_module:build
  cfel compare experiment.toml --schemes hcef_plus,cef --format latex,pdf \\
      --variant "mine: scheme=mine:plan local.algorithm=mine:sam" """
SCHEMES = "hcef_plus,hcef,cef,cef_c,cef_f,mll_sgd"
FORMATS = (*TABLE_FORMATS, "pdf")


def register(commands: options.Commands, name: str) -> None:
    parser = options.add_command(commands, name, EXAMPLE)
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
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
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
    return compare_and_print(rows, arguments)


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


def compare_and_print(rows: Mapping[str, Experiment], arguments: argparse.Namespace) -> int:
    """Runs and prints a comparison; also the second half of `cfel demo`."""
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
        return 0
    console = Console(highlight=False)
    print_main_table(console, comparison.main_table)
    print_overruns(console, comparison.describe_overruns())
    target, found = comparison.target, comparison.summary["schemes"]
    if target is not None and all(row["seconds_to_target"] is None for row in found.values()):
        aim = output.use_plain_spaces(comparison.metric.format_target(target))
        console.print(f"nothing reached {aim} with every seed: try a lower --target or more rounds")
    output.print_report_path(console, comparison.path)
    for file in files:
        console.print(file, soft_wrap=True, markup=False)
    return 0


def print_main_table(console: Console, table: MainTable) -> None:
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


def print_overruns(console: Console, sentences: Sequence[str]) -> None:
    for sentence in sentences:
        console.print(f"[yellow]over budget:[/] {escape(sentence)}")
