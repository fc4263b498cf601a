"""`cfel report`: writes the HTML report of a run, a comparison or a sweep, or exports figures and table."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cfel.cli.options import Commands, add_command, add_json_option, parse_names, parse_number
from cfel.cli.output import print_json
from cfel.errors import InputError
from cfel.report.page import write_report
from cfel.report.pictures import export_results
from cfel.tracking import write_events

EXAMPLE = """  cfel report runs/first
  cfel report runs/table --target 0.7 --tensorboard
  cfel report runs/table --export paper --format latex,pdf"""
FORMATS = "svg,png,csv"


def register(commands: Commands, name: str) -> None:
    parser = add_command(commands, name, EXAMPLE)
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="directory of a run, a comparison or a sweep"
    )
    parser.add_argument(
        "--target",
        type=parse_number,
        metavar="QUALITY",
        help="target of the table (default: the experiment's)",
    )
    parser.add_argument(
        "--export",
        type=Path,
        metavar="TO",
        help="only write every figure and the main table into the directory TO, and nothing into DIR",
    )
    parser.add_argument(
        "--format",
        type=parse_names,
        metavar="NAME,…",
        help="formats of --export: svg, png, pdf for figures, markdown, latex for the table, csv for "
        f"the numbers of both (default {FORMATS})",
    )
    parser.add_argument("--tensorboard", action="store_true", help="also write TensorBoard event files")
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.export is not None:
        return _export(arguments)
    if arguments.format is not None:
        raise InputError("--format: needs --export TO, the directory for the files")
    page = write_report(arguments.directory, arguments.target)
    events = write_events(arguments.directory) if arguments.tensorboard else ()
    if arguments.json:
        print_json({"report": str(page), "tensorboard": [str(path) for path in events]})
        return 0
    _print_paths((page, *events))
    return 0


def _export(arguments: argparse.Namespace) -> int:
    if arguments.tensorboard:
        raise InputError("--tensorboard: writes into DIR, so it cannot be used with --export")
    formats = parse_names(FORMATS) if arguments.format is None else arguments.format
    files = export_results(arguments.directory, arguments.export, formats, arguments.target)
    if arguments.json:
        print_json({"files": [str(path) for path in files]})
        return 0
    _print_paths(files)
    return 0


def _print_paths(paths: Sequence[Path]) -> None:
    console = Console(highlight=False)
    for path in paths:
        console.print(str(path), soft_wrap=True, markup=False)
