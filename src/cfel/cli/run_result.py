"""The end of `cfel run` and `cfel up`: write the report and print the result."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cfel.cli.output import print_json
from cfel.experiment import Experiment
from cfel.report import load_run, write_report
from cfel.report.overruns import describe_overruns, list_overruns
from cfel.runlog import RoundRecord
from cfel.wording import plural


def print_run_result(
    arguments: argparse.Namespace, experiment: Experiment, out: Path, records: Sequence[RoundRecord]
) -> int:
    """Writes the report, prints the last round and returns the exit code."""
    page, last, run = write_report(out, experiment.rounds.target), records[-1], load_run(out)
    if arguments.json:
        print_json(
            {
                "directory": str(out),
                "rounds": len(records),
                "accuracy": last.accuracy,
                "seconds": last.seconds,
                "joules": last.joules,
                "model_sha256": last.model_sha256,
                "over_budget": list_overruns([run]).get(str(run.seed)),
            }
        )
        return 0
    console = Console(highlight=False)
    accuracy = "not evaluated" if last.accuracy is None else f"{100 * last.accuracy:.2f} %"
    console.print(
        f"{plural(len(records), 'round')}: accuracy {accuracy}, {last.seconds:,.0f} s, {last.joules:,.0f} J"
    )
    for sentence in describe_overruns(run):
        console.print(f"[yellow]warning:[/] {escape(sentence)}", soft_wrap=True)
    console.print(f"report: {escape(str(page))}", soft_wrap=True)
    return 0
