"""`cfel reproduce`: a table or figure of the paper, measured here and shown beside the paper's values."""

import argparse
import os
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cfel.api.runs import PlannedRun, make_options, run_all
from cfel.cli import options, output
from cfel.report.landed import land_study
from cfel.reproduce.items import (
    DATASETS,
    ITEMS,
    SCALES,
    ReproductionRequest,
    find_experiments,
    load_rates,
    plan_runs,
)
from cfel.reproduce.reproduction import (
    count_rounds_left,
    estimate_seconds,
    measure_pace,
    write_results,
)
from cfel.wording import plural

EXAMPLES = {
    "reproduce": """  cfel reproduce table1 --dataset cifar10 --data data/cifar10 --scale smoke
  cfel reproduce q --dataset femnist --data data/femnist --seeds 0,1
  cfel reproduce rates --dataset cifar10 --data data/cifar10
  cfel reproduce table1 --dataset femnist --data data/femnist --scale full --land results/femnist"""
}


def add_reproduce_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("item", choices=ITEMS, help="table or figure; rates selects the learning rates")
    parser.add_argument("--dataset", choices=DATASETS, required=True, help="data set")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of the data set")
    parser.add_argument(
        "--scale", choices=SCALES, default="reduced", help="size of the experiment (default reduced)"
    )
    options.add_out_option(parser, "output directory (default reproduced/ITEM-DATASET-SCALE)")
    parser.add_argument(
        "--schemes",
        type=options.parse_names,
        metavar="A,B,…",
        help="schemes to run (default: all of the paper, and HCEF+)",
    )
    options.add_seeds_option(parser, "seeds of each scheme (default: depends on item and scale)")
    parser.add_argument("--stop", choices=("target",), help="stop every run once it reaches the target")
    parser.add_argument(
        "--rates",
        type=Path,
        metavar="FILE",
        help="learning rate of each scheme (default experiments/rates.toml)",
    )
    parser.add_argument(
        "--land",
        type=Path,
        metavar="DIR",
        help="also write the results there as tables, without local paths, to commit them",
    )
    parser.add_argument("--report-only", action="store_true", help="run nothing, report on the runs in DIR")
    options.add_run_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Executes the missing runs and prints the comparison with the paper."""
    request = _build_request(arguments)
    shared = "table1" if request.item == "accuracy" else request.item  # the same runs, shown differently
    out: Path = arguments.out or Path("reproduced") / f"{shared}-{request.dataset}-{request.scale}"
    if not arguments.report_only:
        _run_all(request, arguments, out)
    document, shown = write_results(request, out)
    landed = [] if arguments.land is None else land_study(out, arguments.land)
    if arguments.json:
        output.print_json(document)
        return
    console = Console(highlight=False)
    for table in shown:
        grid = output.new_table(*table.headings)
        for row in table.rows:
            grid.add_row(*map(escape, row))
        output.print_table(console, escape(table.title), grid)
    if note := document["paper"]["note"]:
        console.print(f"[dim]{escape(note)}[/]")
    output.print_report_path(console, out)
    if request.item == "rates":
        use = "use it with --rates, or copy it to experiments/rates.toml"
        console.print(f"learning rates: {escape(str(out / 'rates.toml'))} ({use})", soft_wrap=True)
    if landed:
        files = plural(len(landed), "file")
        console.print(f"landed in {files}: {escape(str(arguments.land))}", soft_wrap=True)


def _build_request(arguments: argparse.Namespace) -> ReproductionRequest:
    changes = tuple(arguments.set)
    if arguments.engine is not None:
        changes += (f"simulation.engine={arguments.engine}",)
    return ReproductionRequest(
        item=arguments.item,
        dataset=arguments.dataset,
        data=arguments.data,
        scale=arguments.scale,
        schemes=None if arguments.schemes is None else tuple(arguments.schemes),
        seeds=None if arguments.seeds is None else tuple(arguments.seeds),
        stop=arguments.stop,
        changes=changes,
    )


def _run_all(request: ReproductionRequest, arguments: argparse.Namespace, out: Path) -> None:
    table = arguments.rates or find_experiments() / "rates.toml"
    rates = {} if request.item == "rates" else load_rates(table, request.dataset, request.scale)
    runs = plan_runs(request, rates, out)
    wanted = make_options(arguments.track, arguments.ray_address, resume=True)
    with wanted.show_progress([run.experiment for run in runs]) as options:
        options.notify(describe_forecast(runs))
        run_all(runs, out, options)


def describe_forecast(runs: list[PlannedRun]) -> str:
    """How many rounds are left and how long they will take, in one line."""
    rounds = sum(count_rounds_left(run) for run in runs)
    if not rounds:
        return f"nothing left to run: {plural(len(runs), 'run')} finished"
    seconds = estimate_seconds(runs, measure_pace(runs[0].experiment))
    workers = runs[0].experiment.simulation.workers or os.cpu_count() or 1
    return (
        f"{plural(len(runs), 'run')}, {plural(rounds, 'global round')} left: at most about "
        f"{_format_duration(seconds)} on {plural(workers, 'worker')}, estimated from a few steps timed now"
    )


def _format_duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
