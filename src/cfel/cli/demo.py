"""`cfel demo`: compares HCEF with its baselines on the digits data set of scikit-learn."""

import argparse
from itertools import count
from pathlib import Path

from cfel.api.runs import list_rows
from cfel.cli import options
from cfel.cli.compare import SCHEMES, compare_and_print
from cfel.cli.options import Commands, add_command, add_out_option, parse_names
from cfel.errors import InputError
from cfel.experiment import preset_experiment
from cfel.plugins import ANY_CODE, import_from

EXAMPLE = "  cfel demo --out cfel-demo"


def register(commands: Commands, name: str) -> None:
    parser = add_command(commands, name, EXAMPLE)
    add_out_option(parser, "output directory (default: cfel-demo, or cfel-demo-2, …)")
    parser.add_argument("--resume", action="store_true", help="resume the demo in DIR")
    options.add_run_options(parser)
    parser.set_defaults(run=run, seeds=None, target=None, baseline=None, format=[])


def run(arguments: argparse.Namespace) -> int:
    import_from()
    experiment = options.replace_engine(preset_experiment("demo", arguments.set, ANY_CODE), arguments.engine)
    if arguments.resume and arguments.out is None:
        raise InputError("--resume: needs --out, the directory of the demo to resume")
    arguments.out = arguments.out or _find_free_directory("cfel-demo")
    return compare_and_print(list_rows(experiment, parse_names(SCHEMES)), arguments)


def _find_free_directory(name: str) -> Path:
    """The first of name, name-2, name-3, … that does not exist, so that a demo never overwrites another."""
    candidates = (Path(name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in candidates if not path.exists())
