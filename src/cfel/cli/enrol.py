"""`cfel invite`, `cfel deploy` and `cfel join`: machines become nodes of a federation."""

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cfel.api.progress import defer_interrupt
from cfel.cli import options
from cfel.cli.certs import parse_lifetime
from cfel.cli.output import print_json
from cfel.deployment.host import RealDisk
from cfel.deployment.protocol.addresses import join_address
from cfel.deployment.security.certificates import fingerprint
from cfel.deployment.security.identity import Identity
from cfel.deployment.security.invitations import Token, parse_identity, parse_token
from cfel.errors import InputError, RunBusyError
from cfel.launch.enrolment import (
    INVITE_PORT,
    OperatorDirectory,
    add_port,
    find_own_address,
    prepare_operator,
    serve_invitations,
)
from cfel.launch.federation import Processes
from cfel.launch.logs import start_logging
from cfel.launch.machine import (
    choose_place,
    join_with_token,
    pack_hosts,
    read_inventory,
    set_up,
    start_services,
    unpack,
)
from cfel.launch.node import choose_exit_code, read_node, run_node
from cfel.wording import plural

EXAMPLES = {
    "invite": """  cfel invite federation --experiment experiment.toml --edges 10.0.0.1,10.0.0.2,10.0.0.3
  cfel invite federation device-4
  cfel invite federation device-20 --edge 1""",
    "deploy": """  cfel deploy inventory.toml --out federation
  cfel join gateway-1.tar.gz                          # on that host""",
    "join": """  cfel join cfel-ldwgTq…
  cfel join gateway-1.tar.gz --setup-only
  cfel join cfel-ldwgTq… --set data=my_samples:load --set data_path=samples.npz""",
}
_POLL_SECONDS = 0.2


def add_invite_options(parser: argparse.ArgumentParser) -> None:
    options.add_directory_argument(parser, "where you keep the federation")
    parser.add_argument(
        "nodes", nargs="*", metavar="NODE", help="such as device-4; default: all without certificate or token"
    )
    parser.add_argument("--experiment", type=Path, metavar="FILE", help="the first time: the experiment file")
    parser.add_argument(
        "--edges",
        type=options.parse_names,
        default=[],
        metavar="HOST[:PORT],…",
        help="the first time: addresses of all edge servers, in their order (default port 7400)",
    )
    parser.add_argument(
        "--file",
        type=Path,
        action="append",
        default=[],
        help="another file that every node needs, such as a module (repeatable)",
    )
    parser.add_argument(
        "--edge",
        type=options.parse_count,
        metavar="I",
        help="add a device that is not in the experiment, to this edge server",
    )
    parser.add_argument(
        "--address", metavar="HOST[:PORT]", help="add an edge server that is not in the experiment"
    )
    parser.add_argument(
        "--at",
        metavar="HOST[:PORT]",
        help=f"address of this machine for others (default: found out; port {INVITE_PORT})",
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help="address to listen on, if not --at")
    parser.add_argument(
        "--expires",
        type=options.parse_positive,
        default=24.0,
        metavar="HOURS",
        help="of the tokens (default 24)",
    )
    parser.add_argument(
        "--hours", type=parse_lifetime, default=720.0, help="lifetime of certificates (default 720)"
    )
    options.add_json_option(parser)
    parser.set_defaults(run=invite)


def invite(arguments: argparse.Namespace) -> None:
    """Prints a token for each node, and serves until all have joined."""
    federation = OperatorDirectory(arguments.directory)
    if (arguments.experiment is None) != (not arguments.edges):
        raise InputError("--experiment and --edges go together")
    if arguments.edges:
        edges = [add_port(each) for each in arguments.edges]
        federation = prepare_operator(arguments.directory, arguments.experiment, edges, arguments.file)
    addresses = federation.read_operator().node.addresses
    at = arguments.at or join_address(find_own_address(addresses[0]), INVITE_PORT)
    at = add_port(at, INVITE_PORT)
    tokens = _invite(federation, arguments, at)
    try:
        with RealDisk().reserve(federation.path / "invitations"):
            _serve(federation, arguments, tokens, arguments.listen or at)
    except RunBusyError:
        _print_tokens(tokens, arguments.json)
        words = "another `cfel invite` serves this directory; it admits these nodes, too"
        Console(stderr=True, highlight=False).print(words)


def _invite(federation: OperatorDirectory, arguments: argparse.Namespace, at: str) -> dict[Identity, Token]:
    named = [parse_identity(name) for name in arguments.nodes]
    address = "" if arguments.address is None else add_port(arguments.address)
    # All are checked before the first token is made.
    joining = {
        each: None if federation.is_known(each) else federation.plan_joining(each, arguments.edge, address)
        for each in named
    }
    authority = fingerprint(federation.authority)
    return {
        each: federation.invitations.invite(each, authority, at, arguments.expires, joining.get(each))
        for each in named or federation.list_absent()
    }


def _print_tokens(tokens: dict[Identity, Token], json: bool) -> None:
    if json:
        print_json({str(identity): str(token) for identity, token in tokens.items()})
    else:
        console = Console(highlight=False)
        width = max((len(str(each)) for each in tokens), default=0)
        for identity, token in tokens.items():
            console.print(f"{identity!s:{width}}  cfel join {token}", soft_wrap=True)
    # A program that reads the tokens must not wait for the last machine.
    sys.stdout.flush()


def _serve(
    federation: OperatorDirectory, arguments: argparse.Namespace, tokens: dict[Identity, Token], listen: str
) -> None:
    """Prints the tokens as soon as they can be used, and serves."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    errors = Console(stderr=True, highlight=False)

    def on_join(identity: Identity) -> None:
        waiting = len(federation.invitations.list_open())
        errors.print(f"{identity} has joined; {plural(waiting, 'invitation')} open")

    def on_start() -> None:
        _print_tokens(tokens, arguments.json)
        waiting = plural(len(federation.invitations.list_open()), "node")
        errors.print(
            f"waiting at {escape(listen)} for {waiting} to join; after Ctrl-C, `cfel invite "
            f"{escape(str(federation.path))}` waits on, and tokens stay valid",
            soft_wrap=True,
        )

    def on_add(identity: Identity, first: int | str) -> None:
        added = f"belongs to the federation from round {first} on"
        words = added if isinstance(first, int) else f"cannot be added to the federation: {first}"
        errors.print(f"{identity} {escape(words)}", soft_wrap=True)

    asyncio.run(serve_invitations(federation, listen, arguments.hours, on_join, on_start, on_add))


def add_deploy_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inventory", type=Path, metavar="INVENTORY.toml", help="which host runs which nodes; see the guide"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="where you keep the federation"
    )
    parser.set_defaults(run=deploy)


def deploy(arguments: argparse.Namespace) -> None:
    """Writes one archive per host."""
    for archive in pack_hosts(read_inventory(arguments.inventory), arguments.out):
        Console(highlight=False).print(escape(str(archive)), soft_wrap=True)


def add_join_options(parser: argparse.ArgumentParser) -> None:
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
    parser.set_defaults(run=join, choose_exit_code=choose_exit_code)


def join(arguments: argparse.Namespace) -> None:
    """Sets the nodes up and starts them."""
    errors = Console(stderr=True, highlight=False)
    changes = dict(_parse_change(each) for each in arguments.set)
    place = choose_place(arguments.out)
    setups = [
        setup
        for source in arguments.sources
        for setup in (
            unpack(Path(source)) if Path(source).is_file() else [join_with_token(place, parse_token(source))]
        )
    ]
    configs = [set_up(place, setup, changes) for setup in setups]
    for config in configs:
        errors.print(f"{config.stem} is set up in {escape(str(config.parent))}", soft_wrap=True)
    if arguments.setup_only:
        return
    if place.is_service:
        start_services([setup.identity for setup in setups])
        return
    _run_here(configs, errors)


def _parse_change(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set {text}: must be KEY=VALUE")
    return key.strip(), value.strip()


def _run_here(configs: Sequence[Path], errors: Console) -> None:
    """Runs the nodes until the experiment is over; stopped before that, it exits with 130."""
    if len(configs) == 1:
        start_logging(None, read_node(configs[0]).log)
        if not run_node(configs[0]):
            raise KeyboardInterrupt
        return
    with defer_interrupt(errors.print, "stopping all nodes") as interrupted, Processes(configs) as processes:
        while not processes.are_over:
            if interrupted():
                raise KeyboardInterrupt
            for name in processes.restart_dead():
                errors.print(f"{name} was rejected; see its log")
            time.sleep(_POLL_SECONDS)
