"""`cfel run`: one simulation."""

import argparse
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cfel.api import runs
from cfel.api.results import RunResult, write_report_if_possible
from cfel.cli import options, output
from cfel.errors import RunDirectoryError
from cfel.experiment import Experiment
from cfel.report.summary import describe_overruns, find_overruns
from cfel.runlog import RoundRecord, RunDirectory, holds_run
from cfel.wording import format_amount, plural

EXAMPLES = {
    "run": """  cfel run experiment.toml --out runs/first --set rounds.global=10
  cfel run experiment.toml --out runs/first --resume"""
}


def add_run_options(parser: argparse.ArgumentParser) -> None:
    options.add_experiment_argument(parser)
    options.add_out_option(parser, "run directory (default runs/NAME)")
    parser.add_argument("--resume", action="store_true", help="resume the run in DIR")
    options.add_run_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    experiment = options.load_from_arguments(arguments)
    out: Path = arguments.out or Path("runs") / experiment.name
    if holds_run(out) and not arguments.resume:
        raise RunDirectoryError(_describe_existing_run(out, experiment))
    done: list[RoundRecord] = []
    result = runs.run(
        experiment,
        out,
        resume=arguments.resume,
        on_round=done.append,
        **options.select_run_options(arguments),
    )
    if not done:
        _note(f"{out} is already finished: {_explain_end(result.records[-1], experiment)}")
    print_run_result(arguments, result, " simulated")


def print_run_result(arguments: argparse.Namespace, result: RunResult, kind: str = "") -> None:
    """Writes the report and prints the last round; also the end of `cfel up`.

    `kind` says which seconds they are, where that is known.
    """
    page = write_report_if_possible(result.path, result.experiment.rounds.target, _note)
    if arguments.json:
        output.print_json(result.summary)
        return
    console, last = Console(highlight=False), result.records[-1]
    console.print(
        f"{plural(len(result.records), 'global round')}: {_describe_end(result, kind)}", soft_wrap=True
    )
    if last.metrics:
        further = {each.name: each for each in result.run.fleet.metrics[1:]}
        values = ", ".join(f"{name} {further[name].format(value)}" for name, value in last.metrics.items())
        console.print(f"metrics of the task: {escape(output.use_plain_spaces(values))}", soft_wrap=True)
    for sentence in describe_overruns(result.run):
        console.print(f"[yellow]warning:[/] {escape(sentence)}", soft_wrap=True)
    if page is not None:
        console.print(f"report: {escape(str(page))}", soft_wrap=True)


def _describe_end(result: RunResult, kind: str) -> str:
    """Quality and realised costs of the last round, with their shares of the budgets, where there are any."""
    last, fleet, metric = result.records[-1], result.run.fleet, result.run.fleet.metrics[0]
    quality = "not evaluated" if last.accuracy is None else metric.format(last.accuracy)
    spent = last.seconds_realised, last.joules_realised
    seconds = f"{format_amount(spent[0])} s{kind}{_format_share(spent[0], fleet.seconds_budget)}"
    # Once is enough, on a line that is long already.
    words = " of the budget" if fleet.seconds_budget is None else ""
    joules = f"{format_amount(spent[1])} J{_format_share(spent[1], fleet.joules_budget, words)}"
    return output.use_plain_spaces(
        f"test {metric.name} {quality}, {seconds}, {joules}{_describe_within(result)}"
    )


def _describe_within(result: RunResult) -> str:
    """The quality within the budgets, where the run went on beyond them."""
    within, metric = result.summary["quality_within_budgets"], result.run.fleet.metrics[0]
    if within == result.records[-1].accuracy or not find_overruns(result.run):
        return ""
    return f"; within the budgets: {metric.name} {metric.format(within)}"


def _format_share(spent: float, budget: float | None, words: str = " of the budget") -> str:
    return "" if budget is None else f" ({format_amount(100 * spent / budget)} %{words})"


def _note(text: str) -> None:
    Console(stderr=True, highlight=False).print(escape(text), soft_wrap=True)


def _describe_existing_run(out: Path, experiment: Experiment) -> str:
    """Why a new run cannot start in a directory, and what to do instead."""
    records = RunDirectory.open(out).records()
    total = experiment.rounds.global_rounds
    if records and records[-1].round >= total:
        return f"{out} already holds a finished run: {_explain_end(records[-1], experiment)}"
    done = f"{len(records)} of {plural(total, 'round')} done"
    return f"{out} already holds a run, {done}: add --resume to continue it, or choose another --out"


def _explain_end(last: RoundRecord, experiment: Experiment) -> str:
    """Why a run has finished, and how to get more rounds."""
    total = experiment.rounds.global_rounds
    if last.round >= total:
        # The experiment may ask for fewer rounds than the run has.
        done = f"{last.round} of {plural(max(total, last.round), 'round')} done"
        return (
            f"{done}. rounds.global cannot change during a run, as the plans spread the budgets over all "
            "rounds: for a longer run choose another --out"
        )
    return (
        f"it stopped at its {experiment.rounds.stop} after {last.round} of {plural(total, 'round')}. To "
        "continue, add --resume and --set rounds.stop=rounds, or another rounds.target"
    )
