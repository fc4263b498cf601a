"""`cfel run`: one simulation."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

import cfel
from cfel.api.results import RunResult, write_report_if_possible
from cfel.cli.arguments import Commands, add_command, add_json_option, add_out_option, add_set_option
from cfel.cli.output import print_json, use_plain_spaces
from cfel.errors import RunDirectoryError
from cfel.experiment import Experiment, load_experiment
from cfel.plugins import ANY_CODE, import_from
from cfel.report.summary import describe_overruns, find_overruns
from cfel.rounds.parameters import ENGINES
from cfel.runlog import RoundRecord, RunDirectory, holds_run
from cfel.system import TraceParameters, cluster_sizes, describe_bias, describe_short_trace, read_trace
from cfel.tracking import TRACKERS
from cfel.wording import format_amount, plural

EXAMPLE = """  cfel run experiment.toml --out runs/first --set rounds.global=10
  cfel run experiment.toml --out runs/first --resume"""

ENGINE_HELP = (
    "threads: one device per core; processes: the same bits, in worker processes; batched: many small models "
    "at once, equal up to rounding; ray: the same bits as threads, on a cluster; auto: by the size of the "
    "model (default: the experiment's)"
)


def register(commands: Commands, name: str) -> None:
    parser = add_command(commands, name, EXAMPLE)
    add_experiment_argument(parser)
    add_out_option(parser, "run directory (default runs/NAME)")
    parser.add_argument("--resume", action="store_true", help="resume the run in DIR")
    add_run_options(parser)
    parser.set_defaults(run=run)


def add_experiment_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the experiment file."""
    parser.add_argument(
        "experiment",
        type=Path,
        metavar="EXPERIMENT.toml",
        help="the experiment; `make docs` builds docs/reference/experiment.md, which explains its keys",
    )


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of all commands that simulate: --engine, --ray-address, --track, --set, --json."""
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


def load_from_arguments(arguments: argparse.Namespace) -> Experiment:
    """Loads the experiment and applies --set and --engine; user-defined code is imported from its folder."""
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


def _describe_trace_end(experiment: Experiment) -> str | None:
    """What follows the end of a trace that is shorter than the run; None if there is no such trace."""
    given = experiment.fleet.conditions
    if not isinstance(given, TraceParameters) or given.after_end == "reject":
        return None
    rounds = experiment.rounds
    short = describe_short_trace(read_trace(given.file), rounds.global_rounds, rounds.edge_rounds)
    follows = "its last rounds stay" if given.after_end == "hold" else "it starts again from the first"
    return None if short is None else f"{short}; then {follows} (fleet.conditions.after_end)"


def replace_engine(experiment: Experiment, engine: str | None) -> Experiment:
    """The experiment with another engine; None keeps its own."""
    if engine is None:
        return experiment
    return replace(experiment, simulation=replace(experiment.simulation, engine=engine))


def run(arguments: argparse.Namespace) -> int:
    experiment = load_from_arguments(arguments)
    out: Path = arguments.out or Path("runs") / experiment.name
    if holds_run(out) and not arguments.resume:
        raise RunDirectoryError(_describe_existing_run(out, experiment))
    done: list[RoundRecord] = []
    result = cfel.run(
        experiment, out, resume=arguments.resume, on_round=done.append, **select_run_options(arguments)
    )
    if not done:
        _note(f"{out} is already finished: {_explain_end(result.records[-1], experiment)}")
    return print_run_result(arguments, result, " simulated")


def print_run_result(arguments: argparse.Namespace, result: RunResult, kind: str = "") -> int:
    """Writes the report, prints the last round and returns the exit code; also the end of `cfel up`.

    `kind` says which seconds they are, where that is known.
    """
    page = write_report_if_possible(result.path, result.experiment.rounds.target, _note)
    if arguments.json:
        print_json(result.summary)
        return 0
    console, last = Console(highlight=False), result.records[-1]
    console.print(
        f"{plural(len(result.records), 'global round')}: {_describe_end(result, kind)}", soft_wrap=True
    )
    if last.metrics:
        further = {each.name: each for each in result.run.fleet.metrics[1:]}
        values = ", ".join(f"{name} {further[name].format(value)}" for name, value in last.metrics.items())
        console.print(f"metrics of the task: {escape(use_plain_spaces(values))}", soft_wrap=True)
    for sentence in describe_overruns(result.run):
        console.print(f"[yellow]warning:[/] {escape(sentence)}", soft_wrap=True)
    if page is not None:
        console.print(f"report: {escape(str(page))}", soft_wrap=True)
    return 0


def _describe_end(result: RunResult, kind: str) -> str:
    """Quality and realised costs of the last round, with their shares of the budgets, where there are any."""
    last, fleet, metric = result.records[-1], result.run.fleet, result.run.fleet.metrics[0]
    quality = "not evaluated" if last.accuracy is None else metric.format(last.accuracy)
    spent = last.seconds_realised, last.joules_realised
    seconds = f"{format_amount(spent[0])} s{kind}{_format_share(spent[0], fleet.seconds_budget)}"
    # Once is enough, on a line that is long already.
    words = " of the budget" if fleet.seconds_budget is None else ""
    joules = f"{format_amount(spent[1])} J{_format_share(spent[1], fleet.joules_budget, words)}"
    return use_plain_spaces(f"test {metric.name} {quality}, {seconds}, {joules}{_describe_within(result)}")


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
