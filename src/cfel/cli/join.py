"""`cfel join`: makes this machine a node of a federation, or several."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cfel.api.progress import defer_interrupt
from cfel.cli.options import Commands, add_command
from cfel.deployment.security.invitations import parse_token
from cfel.errors import InputError
from cfel.launch.federation import Processes
from cfel.launch.logs import start_logging
from cfel.launch.machine import (
    NodeSetup,
    Place,
    choose_place,
    join_with_token,
    set_up,
    start_services,
    unpack,
)
from cfel.launch.node import choose_exit_code, read_node, run_node

EXAMPLE = """  cfel join cfel-ldwgTq…
  cfel join gateway-1.tar.gz --setup-only
  cfel join cfel-ldwgTq… --set data=my_samples:load --set data_path=samples.npz"""
_POLL_SECONDS = 0.2


def register(commands: Commands, name: str) -> None:
    """Adds the command."""
    parser = add_command(commands, name, EXAMPLE)
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="TOKEN|ARCHIVE",
        help="tokens of `cfel invite`, or an archive of `cfel deploy`",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="set up in DIR/NODE and run in the foreground (default: services in /etc/cfel, as root with "
        "systemd; else the current folder)",
    )
    parser.add_argument("--setup-only", action="store_true", help="start nothing")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a key of the node's configuration, such as listen, dashboard, data or data_path (repeatable)",
    )
    parser.set_defaults(run=run, choose_exit_code=choose_exit_code)


def run(arguments: argparse.Namespace) -> int:
    """Sets the nodes up and starts them."""
    errors = Console(stderr=True, highlight=False)
    changes = dict(_parse_change(each) for each in arguments.set)
    place = choose_place(arguments.out)
    setups = [setup for source in arguments.sources for setup in _find_setups(place, source)]
    configs = [set_up(place, setup, changes) for setup in setups]
    for config in configs:
        errors.print(f"{config.stem} is set up in {escape(str(config.parent))}", soft_wrap=True)
    if arguments.setup_only:
        return 0
    if place.is_service:
        start_services([setup.identity for setup in setups])
        return 0
    return _run_here(configs, errors)


def _find_setups(place: Place, source: str) -> list[NodeSetup]:
    if Path(source).is_file():
        return unpack(Path(source))
    return [join_with_token(place, parse_token(source))]


def _parse_change(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set {text}: must be KEY=VALUE")
    return key.strip(), value.strip()


def _run_here(configs: Sequence[Path], errors: Console) -> int:
    """Runs the nodes until the experiment is over; stopped before that, it exits with 130."""
    if len(configs) == 1:
        start_logging(None, read_node(configs[0]).log)
        if not run_node(configs[0]):
            raise KeyboardInterrupt
        return 0
    with defer_interrupt(errors.print, "stopping all nodes") as interrupted, Processes(configs) as processes:
        while not processes.are_over:
            if interrupted():
                raise KeyboardInterrupt
            for name in processes.restart_dead():
                errors.print(f"{name} was rejected; see its log")
            time.sleep(_POLL_SECONDS)
    return 0
