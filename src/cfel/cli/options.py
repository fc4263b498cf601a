"""Argument parsing for all commands: common options, and types of values."""

import argparse
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from cfel.experiment import Experiment
    from cfel.plugins import CodePolicy

_Number = TypeVar("_Number", int, float)

ENGINE_HELP = (
    "threads: one device per core; processes: the same bits, in worker processes; batched: many small models "
    "at once, equal up to rounding; ray: the same bits as threads, on a cluster; auto: by the size of the "
    "model (default: the experiment's)"
)


def add_set_option(parser: argparse.ArgumentParser) -> None:
    text = "change a key of the experiment, e.g. rounds.global=10 (repeatable)"
    parser.add_argument("--set", action="append", default=[], metavar="A.B=VALUE", help=text)


def add_seeds_option(parser: argparse.ArgumentParser, text: str, example: str = "0,1") -> None:
    parser.add_argument("--seeds", type=parse_integers, metavar=f"{example},…", help=text)


def add_target_option(parser: argparse.ArgumentParser) -> None:
    text = "target of the tables (default: the experiment's)"
    parser.add_argument("--target", type=parse_number, metavar="QUALITY", help=text)


def add_out_option(parser: argparse.ArgumentParser, text: str) -> None:
    """Adds the option --out of commands that write a directory and know a default for it."""
    parser.add_argument("--out", type=Path, metavar="DIR", help=text)


def add_trust_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option --trust, for commands that read an experiment from a directory."""
    text = "allow the experiment of the directory to name code (module:function), which then runs here"
    parser.add_argument("--trust", action="store_true", help=text)


def select_code_policy(arguments: argparse.Namespace, directory: Path) -> "CodePolicy":
    """Whether the experiment of a directory may name code; it is never imported from that directory.

    Trusted code is searched where the run searched it: beside the experiment file that its command names, and
    in the current folder.
    """
    # Here and below, as the help of all commands must not wait for these.
    from cfel.plugins import ANY_CODE, NOT_FROM_DIRECTORIES, import_from

    if not arguments.trust:
        return NOT_FROM_DIRECTORIES
    import_from(*_find_experiment_folders(directory))
    return ANY_CODE


def _find_experiment_folders(directory: Path) -> list[Path]:
    """Folders of the experiment files in the command of a run that exist outside of its directory."""
    from cfel.runlog import RunDirectory, holds_run

    if not holds_run(directory):
        return []
    command = RunDirectory.open(directory).environment().command
    files = (Path(word) for word in command if word.endswith(".toml"))
    inside = directory.resolve()
    return [
        file.parent for file in files if file.is_file() and not file.resolve().parent.is_relative_to(inside)
    ]


def add_directory_argument(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help=text)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as one JSON document")


def add_experiment_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "experiment",
        type=Path,
        metavar="EXPERIMENT.toml",
        help="the experiment; `cfel keys` explains its keys",
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of all commands that simulate: --engine, --ray-address, --track, --set, --json."""
    from cfel.simulation.parameters import ENGINES
    from cfel.tracking import TRACKERS

    parser.add_argument("--engine", choices=ENGINES, help=ENGINE_HELP)
    parser.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="head node of the cluster, with --engine ray (default: start a cluster here)",
    )
    parser.add_argument(
        "--track",
        action="append",
        default=[],
        metavar="NAME",
        help=f"report every round to a tracker: {', '.join(TRACKERS)}; may be repeated",
    )
    add_set_option(parser)
    add_json_option(parser)


def select_run_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What those options mean to `cfel.run`, `cfel.compare`, `cfel.sweep` and `cfel.tune`."""
    return {"ray_address": arguments.ray_address, "track": arguments.track}


def load_from_arguments(arguments: argparse.Namespace) -> "Experiment":
    """Loads the experiment and applies --set and --engine; user-defined code is imported from its folder."""
    from cfel.experiment import load_experiment
    from cfel.plugins import ANY_CODE, import_from
    from cfel.system.backhaul import describe_bias
    from cfel.system.fleet import cluster_sizes

    # User-defined parts usually lie beside the experiment that names them.
    import_from(arguments.experiment.parent)
    experiment = replace_engine(
        load_experiment(arguments.experiment, arguments.set, ANY_CODE), arguments.engine
    )
    # Warn before the run, which may take hours, and not in its report.
    sizes = cluster_sizes(experiment.fleet.devices, experiment.fleet.clusters)
    for warning in (describe_bias(experiment.topology.weights, sizes), _describe_trace_end(experiment)):
        if warning is not None:
            Console(stderr=True, highlight=False).print(f"[yellow]warning:[/] {escape(warning)}")
    return experiment


def _describe_trace_end(experiment: "Experiment") -> str | None:
    """What follows the end of a trace that is shorter than the run; None if there is no such trace."""
    from cfel.system.device_tables import TraceParameters, describe_short_trace, read_trace

    given = experiment.fleet.conditions
    if not isinstance(given, TraceParameters) or given.after_end == "reject":
        return None
    rounds = experiment.rounds
    short = describe_short_trace(read_trace(given.file), rounds.global_rounds, rounds.edge_rounds)
    follows = "its last rounds stay" if given.after_end == "hold" else "it starts again from the first"
    return None if short is None else f"{short}; then {follows} (fleet.conditions.after_end)"


def replace_engine(experiment: "Experiment", engine: str | None) -> "Experiment":
    """The experiment with another engine; None keeps its own."""
    if engine is None:
        return experiment
    return replace(experiment, simulation=replace(experiment.simulation, engine=engine))


def parse_value(text: str, kind: type[_Number], is_allowed: Callable[[_Number], bool], words: str) -> _Number:
    """A number that is allowed; `words` say which are."""
    try:
        value: _Number | None = kind(text)
    except ValueError:
        value = None
    if value is None or not is_allowed(value):
        raise argparse.ArgumentTypeError(f"{text!r}: must be {words}")
    return value


def parse_number(text: str) -> float:
    return parse_value(text, float, lambda value: not math.isnan(value), "a number, or inf for no limit")


def parse_positive(text: str) -> float:
    return parse_value(text, float, lambda value: value > 0, "a number > 0, or inf for no limit")


def parse_cap(text: str) -> float:
    """A positive number; what is no number at all is told so first."""
    parse_number(text)
    return parse_positive(text)


def parse_share(text: str) -> float:
    return parse_value(text, float, lambda value: 0 < value <= 1, "a number > 0 and ≤ 1")


def parse_positive_integer(text: str) -> int:
    return parse_value(text, int, lambda value: value >= 1, "a whole number ≥ 1")


def parse_count(text: str) -> int:
    return parse_value(text, int, lambda value: value >= 0, "a whole number ≥ 0")


def parse_names(text: str) -> list[str]:
    """Names separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def parse_integers(text: str) -> list[int]:
    """Whole numbers separated by commas."""
    try:
        return [int(word) for word in parse_names(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: must be whole numbers separated by commas") from None
