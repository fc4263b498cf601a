"""`python -m benchmarks NAME [--quick] [--only PART] [--json]`: runs one benchmark and prints its results."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from rich.console import Console

from cfel.cli.output import print_json
from cfel.errors import CfelError, InputError
from cfel.extras import explain_missing_extra

BENCHMARKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "solver": ("gap, speed and memory of the solver", ()),
    "simulation": (
        "the round loop compared with a bare PyTorch loop",
        ("mlp", "small_cnn", "resnet20", "leaf_cnn"),
    ),
    "coding": ("size and speed of updates with few bits per value", ()),
    "scaleout": ("the Ray engine compared with threads", ()),
    "deployment": ("overhead and memory of real processes", ("overhead", "memory", "flat")),
    "coordinator": ("whether what the coordinator handles grows with devices", ("memory_transport", "tls")),
    "resilience": ("what faults cost a federation", ("slow_link", "gone", "coordinator")),
    "peers": ("the same rounds in cfel, a bare loop, pfl, Flower and fluke", ("small_cnn", "leaf_cnn")),
    "gpu": ("whether engines agree on a GPU, and their speed", ()),
}
"""Summary and parts of each benchmark; its module has a function `measure(quick, only)`."""


class Results(Protocol):
    """What a benchmark has measured."""

    def document(self) -> dict[str, Any]:
        """The results as plain values."""

    def show(self, console: Console) -> None:
        """Prints the results as tables."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one benchmark; exit codes as of `cfel`."""
    options = _build_parser().parse_args(arguments)
    try:
        with explain_missing_extra():
            measure = import_module(f"benchmarks.{options.name}").measure
            results: Results = measure(quick=options.quick, only=options.only)
    except CfelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    if options.json:
        print_json(results.document())
    else:
        results.show(Console(highlight=False))
    return 0


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure cfel on this machine.")
    names = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    for name, (summary, parts) in BENCHMARKS.items():
        options = names.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        options.add_argument("--quick", action="store_true", help="fewer and smaller measurements")
        if parts:
            options.add_argument("--only", choices=parts, help="run one part only")
        options.add_argument("--json", action="store_true", help="print the results as one JSON document")
        options.set_defaults(only=None)
    return parser


if __name__ == "__main__":
    sys.exit(main())
