"""`cfel watch`: serves a live dashboard of a run or a comparison that another process executes."""

import argparse
import asyncio
import os
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cfel.cli.options import Commands, add_command, parse_count, parse_positive
from cfel.dashboard import RunWatcher, dashboard_app, serve

EXAMPLE = """  cfel watch runs/first
  CFEL_DASHBOARD_TOKEN=… cfel watch runs/table --host 0.0.0.0 --port 8470"""
TOKEN_VARIABLE = "CFEL_DASHBOARD_TOKEN"  # noqa: S105 — the variable's name


def register(commands: Commands, name: str) -> None:
    parser = add_command(commands, name, EXAMPLE)
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory of a run or a comparison")
    parser.add_argument("--port", type=parse_count, default=0, help="port (default: any free one)")
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
        "--every", type=parse_positive, default=0.5, metavar="SECONDS", help="update interval (default 0.5)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    watcher = RunWatcher(arguments.directory)
    # Not an option, as other users of the machine can see command lines.
    token = os.environ.get(TOKEN_VARIABLE) or None
    try:
        asyncio.run(_serve(watcher, token, arguments))
    except KeyboardInterrupt:
        return 0
    return 0


async def _serve(watcher: RunWatcher, token: str | None, arguments: argparse.Namespace) -> None:
    app = dashboard_app(watcher.snapshot, watcher.changes(arguments.every), token, arguments.name)
    tls = {"certificate": arguments.certificate, "key": arguments.key}
    async with serve(app, arguments.host, arguments.port, **tls) as address:
        console = Console(highlight=False)
        console.print(f"dashboard: {escape(address)}", soft_wrap=True)
        console.print("Press Ctrl-C to stop the dashboard; the run continues.")
        await asyncio.Event().wait()
