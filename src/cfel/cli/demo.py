"""`cfel demo`: HCEF and the baselines side by side, on data that comes with scikit-learn."""

import argparse
from itertools import count
from pathlib import Path

from cfel.cli.compare import SCHEMES, compare_and_print, names
from cfel.cli.run import add_run_options, with_engine
from cfel.cli.shared import Commands, add_command, import_from
from cfel.errors import InputError
from cfel.experiment import preset_experiment
from cfel.plugins import ANY_CODE

EXAMPLE = "  cfel demo --out cfel-demo"


def register(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "demo", EXAMPLE)
    parser.add_argument("--out", type=Path, metavar="DIR", help="default cfel-demo, or cfel-demo-2, …")
    parser.add_argument("--resume", action="store_true", help="go on with the demo in DIR")
    add_run_options(parser)
    parser.set_defaults(run=run, target=None)


def run(arguments: argparse.Namespace) -> int:
    """Runs the demo."""
    import_from()
    experiment = with_engine(preset_experiment("demo", arguments.set, ANY_CODE), arguments.engine)
    if arguments.resume and arguments.out is None:
        raise InputError("--resume: needs --out, the directory of the demo to go on with")
    out = arguments.out or _free_directory("cfel-demo")
    return compare_and_print(experiment, names(SCHEMES), [experiment.seed], out, arguments)


def _free_directory(name: str) -> Path:
    """The name, or the first of name-2, name-3, … that does not exist: a demo can be repeated at will."""
    candidates = (Path(name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in candidates if not path.exists())
