"""The end of `cfel run` and `cfel up`: write the report and print the result."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cfel.api.results import load_result
from cfel.api.runs import write_report_if_possible
from cfel.cli.output import print_json
from cfel.experiment import Experiment
from cfel.report.overruns import describe_overruns
from cfel.runlog import RoundRecord
from cfel.wording import plural


def print_run_result(
    arguments: argparse.Namespace, experiment: Experiment, out: Path, records: Sequence[RoundRecord]
) -> int:
    """Writes the report, prints the last round and returns the exit code."""
    console = Console(highlight=False)
    page = write_report_if_possible(out, experiment.rounds.target, _note)
    result, last = load_result(out, experiment), records[-1]
    if arguments.json:
        print_json(result.summary)
        return 0
    accuracy = "not evaluated" if last.accuracy is None else f"{100 * last.accuracy:.2f} %"
    console.print(
        f"{plural(len(records), 'round')}: accuracy {accuracy}, {last.seconds:,.0f} s, {last.joules:,.0f} J"
    )
    if last.metrics:
        values = ", ".join(f"{name} {value:.4g}" for name, value in last.metrics.items())
        console.print(f"metrics of the task: {escape(values)}", soft_wrap=True)
    for sentence in describe_overruns(result.run):
        console.print(f"[yellow]warning:[/] {escape(sentence)}", soft_wrap=True)
    if page is not None:
        console.print(f"report: {escape(str(page))}", soft_wrap=True)
    return 0


def _note(text: str) -> None:
    Console(stderr=True, highlight=False).print(escape(text), soft_wrap=True)
