"""`cfel report`, `watch`, `recount`, `export` and `predict`: what one does with the directory of a run.

Each imports only what it needs, as each needs other packages.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from cfel.cli import options, output
from cfel.durable import replace_file
from cfel.errors import InputError
from cfel.wording import format_amount, plural

if TYPE_CHECKING:
    from cfel.dashboard import RunWatcher

EXAMPLES = {
    "report": """  cfel report runs/first
  cfel report runs/table --target 0.7 --tensorboard
  cfel report runs/table --export paper --format latex,pdf""",
    "watch": """  cfel watch runs/first
  CFEL_DASHBOARD_TOKEN=… cfel watch runs/table --host 0.0.0.0 --port 8470""",
    "recount": """  cfel recount runs/cef/seed-0 --out recounted/cef \\
    --set fleet.conditions.channel_floor=0 --set scheme.slow_clocks=true""",
    "export": """  cfel export runs/first --to model.safetensors
  cfel export runs/first --to model.onnx --edge 3""",
    "predict": """  cfel predict model.safetensors samples.npy
  cfel predict runs/first samples.npz --to scores.npy""",
}
FORMATS = "svg,png,csv"
TOKEN_VARIABLE = "CFEL_DASHBOARD_TOKEN"  # noqa: S105 — the variable's name


def add_report_options(parser: argparse.ArgumentParser) -> None:
    options.add_directory_argument(parser, "directory of a run, a comparison or a sweep")
    parser.add_argument(
        "--target",
        type=options.parse_number,
        metavar="QUALITY",
        help="target of the table (default: the experiment's)",
    )
    parser.add_argument(
        "--export",
        type=Path,
        metavar="TO",
        help="only write every figure and the main table into the directory TO, and nothing into DIR",
    )
    parser.add_argument(
        "--format",
        type=options.parse_names,
        metavar="NAME,…",
        help="formats of --export: svg, png, pdf for figures, markdown, latex for the table, csv for "
        f"the numbers of both (default {FORMATS})",
    )
    parser.add_argument("--tensorboard", action="store_true", help="also write TensorBoard event files")
    options.add_json_option(parser)
    parser.set_defaults(run=report)


def report(arguments: argparse.Namespace) -> None:
    from cfel.report.figures import export_results
    from cfel.report.page import write_report
    from cfel.tracking import write_events

    paths: Sequence[Path]
    if arguments.export is not None:
        if arguments.tensorboard:
            raise InputError("--tensorboard: writes into DIR, so it cannot be used with --export")
        formats = options.parse_names(FORMATS) if arguments.format is None else arguments.format
        paths = export_results(arguments.directory, arguments.export, formats, arguments.target)
        document: object = {"files": [str(path) for path in paths]}
    else:
        if arguments.format is not None:
            raise InputError("--format: needs --export TO, the directory for the files")
        page = write_report(arguments.directory, arguments.target)
        events = write_events(arguments.directory) if arguments.tensorboard else ()
        paths = (page, *events)
        document = {"report": str(page), "tensorboard": [str(path) for path in events]}
    if arguments.json:
        output.print_json(document)
    else:
        for path in paths:
            output.print_line(str(path))


def add_watch_options(parser: argparse.ArgumentParser) -> None:
    options.add_directory_argument(parser, "directory of a run or a comparison")
    parser.add_argument("--port", type=options.parse_count, default=0, help="port (default: any free one)")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help=f"address to listen on (default 127.0.0.1; others need {TOKEN_VARIABLE})",
    )
    parser.add_argument(
        "--name", action="append", default=[], help="host name to accept in requests (repeatable)"
    )
    parser.add_argument("--certificate", type=Path, metavar="FILE.pem", help="TLS certificate; needs --key")
    parser.add_argument("--key", type=Path, metavar="FILE.pem", help="private key of the certificate")
    parser.add_argument(
        "--every",
        type=options.parse_positive,
        default=0.5,
        metavar="SECONDS",
        help="update interval (default 0.5)",
    )
    parser.set_defaults(run=watch)


def watch(arguments: argparse.Namespace) -> None:
    from cfel.dashboard import RunWatcher

    watcher = RunWatcher(arguments.directory)
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve_dashboard(watcher, arguments))


async def _serve_dashboard(watcher: "RunWatcher", arguments: argparse.Namespace) -> None:
    from cfel.dashboard import Dashboard, serve

    # Not an option, as other users of the machine can see command lines.
    token = os.environ.get(TOKEN_VARIABLE) or None
    app = Dashboard(watcher.snapshot, watcher.changes(arguments.every), token, arguments.name)
    tls = {"certificate": arguments.certificate, "key": arguments.key}
    async with serve(app, arguments.host, arguments.port, **tls) as address:
        console = Console(highlight=False)
        console.print(f"dashboard: {escape(address)}", soft_wrap=True)
        console.print("Press Ctrl-C to stop the dashboard; the run continues.")
        await asyncio.Event().wait()


def add_recount_options(parser: argparse.ArgumentParser) -> None:
    from cfel.api.recount import CHANGEABLE

    options.add_directory_argument(parser, "the run directory")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write the new log")
    options.add_set_option(parser)
    options.add_trust_option(parser)
    options.add_json_option(parser)
    parser.epilog = (
        f"Works for schemes that ask the same of every device whatever it costs, such as CEF.\n"
        f"Keys that may change: {', '.join(CHANGEABLE)}\n\n{parser.epilog}"
    )
    parser.set_defaults(run=recount)


def recount(arguments: argparse.Namespace) -> None:
    """Writes the new run directory and prints its totals."""
    from cfel.api import recount as api

    code = options.select_code_policy(arguments, arguments.directory)
    records = api.recount(arguments.directory, arguments.out, arguments.set, code, sys.argv)
    last = records[-1]
    if arguments.json:
        output.print_json({"rounds": len(records), "seconds": last.seconds, "joules": last.joules})
    else:
        costs = f"{format_amount(last.seconds)} s and {format_amount(last.joules)} J in all"
        output.print_line(f"{arguments.out}: {plural(len(records), 'round')} recounted, {costs}")


def add_export_options(parser: argparse.ArgumentParser) -> None:
    options.add_directory_argument(parser, "the run directory")
    parser.add_argument(
        "--to",
        type=Path,
        required=True,
        metavar="FILE",
        help="model.safetensors (names and shapes of the torch module) or model.onnx (normalised inputs in, "
        "scores out; needs 'cfel[onnx]')",
    )
    parser.add_argument(
        "--edge",
        type=options.parse_count,
        metavar="N",
        help="model of edge server N (default: the consensus of all)",
    )
    parser.add_argument(
        "--device",
        type=options.parse_count,
        metavar="N",
        help="model that device N keeps to itself, where devices do (model.personal, ditto)",
    )
    options.add_trust_option(parser)
    options.add_json_option(parser)
    parser.set_defaults(run=export)


def export(arguments: argparse.Namespace) -> None:
    """Writes the trained model of a run to a file, and prints which one it is."""
    from cfel.api.models import export_model

    code = options.select_code_policy(arguments, arguments.directory)
    found = export_model(arguments.directory, arguments.to, arguments.edge, code, arguments.device)
    if arguments.json:
        whose = {"edge": arguments.edge, "device": arguments.device}
        output.print_json({"file": str(arguments.to), "round": found.round, **whose})
    else:
        output.print_line(f"{arguments.to}: {found.whose} after global round {found.round}")


def add_predict_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", type=Path, metavar="FILE|DIR", help="a file of `cfel export`, or a run directory"
    )
    parser.add_argument(
        "samples",
        type=Path,
        metavar="SAMPLES",
        help="an .npy or .npz array of raw samples, in the shape and type (dtype) of the data set; "
        "the error for others names what the model takes",
    )
    parser.add_argument("--to", type=Path, metavar="FILE", help="also write the model's outputs, as .npy")
    parser.add_argument(
        "--device",
        type=options.parse_count,
        metavar="N",
        help="model that device N keeps, of a run directory",
    )
    options.add_trust_option(parser)
    options.add_json_option(parser)
    parser.set_defaults(run=predict)


def predict(arguments: argparse.Namespace) -> None:
    import numpy as np

    from cfel.api import models

    folder = arguments.model if arguments.model.is_dir() else arguments.model.parent
    code = options.select_code_policy(arguments, folder)
    found = models.predict(arguments.model, arguments.samples, code, arguments.device)
    if arguments.to is not None:
        content = BytesIO()
        np.save(content, found.outputs)
        replace_file(arguments.to, content.getvalue())
    samples: list[dict[str, Any]] = [{"outputs": each} for each in found.outputs.tolist()]
    heading, lines = "sample: outputs", [str(each["outputs"]) for each in samples]
    if found.labels is not None and found.shares is not None:
        columns = list(zip(found.labels.tolist(), found.shares.tolist(), strict=True))
        samples = [{"label": label, "probability": share} for label, share in columns]
        heading = "sample: class (probability)"
        lines = [f"{label} ({100 * share:.1f} %)" for label, share in columns]
    if arguments.json:
        output.print_json({"samples": samples})
    else:
        output.print_line(heading)
        for number, line in enumerate(lines):
            output.print_line(f"{number}: {line}")
