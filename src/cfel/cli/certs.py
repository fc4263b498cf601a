"""`cfel certs`: the private certificate authority of a federation."""

import argparse
from pathlib import Path

from rich.console import Console

from cfel.cli.shared import Commands, add_command, count, positive
from cfel.errors import InputError
from cfel.runtime.certificates import issue, make_authority, revoke
from cfel.runtime.identity import ROLES, Identity

EXAMPLE = """  cfel certs --out certificates --edges 3 --devices 6
  cfel certs --out certificates --renew device-4 --hours 24
  cfel certs --out certificates --revoke device-4"""


def register(commands: Commands) -> None:
    """Adds the command."""
    parser = add_command(commands, "certs", EXAMPLE)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the authority's directory")
    parser.add_argument("--edges", type=count, default=0, metavar="M", help="edge servers 0 to M-1")
    parser.add_argument("--devices", type=count, default=0, metavar="N", help="devices 0 to N-1")
    parser.add_argument("--renew", action="append", default=[], metavar="ROLE-NUMBER", help="issue again")
    parser.add_argument("--revoke", action="append", default=[], metavar="ROLE-NUMBER", help="let in no more")
    parser.add_argument("--hours", type=positive, default=720.0, help="lifetime (default 720)")
    parser.add_argument("--host", action="append", default=[], help="further name or address of edge servers")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Makes what is asked for; an authority that exists is used."""
    directory: Path = arguments.out
    make_authority(directory)
    members = [
        *(Identity("edge", i) for i in range(arguments.edges)),
        *(Identity("device", n) for n in range(arguments.devices)),
        *([Identity("operator", 0)] if arguments.edges else []),
        *(_identity(name) for name in arguments.renew),
    ]
    for member in members:
        issue(directory, member, arguments.hours, arguments.host if member.role == "edge" else ())
    for name in arguments.revoke:
        revoke(directory, _identity(name))
    console = Console(highlight=False)
    console.print(f"{directory}: {len(members)} certificates issued, {len(arguments.revoke)} revoked")
    return 0


def _identity(name: str) -> Identity:
    role, _, number = name.rpartition("-")
    if role not in ROLES or not number.isdigit():
        raise InputError(f"{name!r}: must look like edge-0, device-7 or operator-0")
    return Identity(role, int(number))
