"""How `cfel run` and `cfel up` end: the report is drawn, and the last round told."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cfel.cli.shared import print_json
from cfel.experiment import Experiment
from cfel.report import write_report
from cfel.runlog import RoundRecord


def tell_ending(
    arguments: argparse.Namespace, experiment: Experiment, out: Path, records: Sequence[RoundRecord]
) -> int:
    """Prints what a run came to, as a document with --json; the exit code."""
    page, last = write_report(out, experiment.simulation.target), records[-1]
    if arguments.json:
        print_json(
            {
                "directory": str(out),
                "rounds": len(records),
                "accuracy": last.accuracy,
                "seconds": last.seconds,
                "joules": last.joules,
                "model_sha256": last.model_sha256,
            }
        )
        return 0
    console = Console(highlight=False)
    accuracy = "not evaluated" if last.accuracy is None else f"{100 * last.accuracy:.2f} %"
    console.print(f"{len(records)} rounds: accuracy {accuracy}, {last.seconds:,.0f} s, {last.joules:,.0f} J")
    console.print(f"report: {page}")
    return 0
