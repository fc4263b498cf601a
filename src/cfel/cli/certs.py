"""`cfel certs`: the private certificate authority of a federation."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cfel.cli.shared import Commands, add_command, count
from cfel.deployment.security.certificates import (
    AUTHORITY_DAYS,
    check_authority,
    is_issued,
    issue,
    make_authority,
    revoke,
)
from cfel.deployment.security.identity import ROLES, Identity
from cfel.errors import InputError

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
    parser.add_argument("--hours", type=_lifetime, default=720.0, help="lifetime (default 720)")
    parser.add_argument("--host", action="append", default=[], help="further name or address of edge servers")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Makes what is missing and asked for; an authority and certificates that exist are left as they are."""
    directory: Path = arguments.out
    renewed = [_identity(name) for name in arguments.renew]
    revoked = [_identity(name) for name in arguments.revoke]
    if renewed or revoked:
        check_authority(directory)
        _refuse_strangers(directory, [*renewed, *revoked])
    else:
        make_authority(directory)
    wanted = _members(arguments.edges, arguments.devices)
    missing = [member for member in wanted if not is_issued(directory, member)]
    # First: whoever is named in both loses the old certificate, not the new one.
    for member in revoked:
        revoke(directory, member)
    for member in (*missing, *renewed):
        issue(directory, member, arguments.hours, arguments.host if member.role == "edge" else ())
    _tell(
        directory, issued=len(missing) + len(renewed), left=len(wanted) - len(missing), revoked=len(revoked)
    )
    return 0


def _members(edges: int, devices: int) -> list[Identity]:
    return [
        *(Identity("edge", i) for i in range(edges)),
        *(Identity("device", n) for n in range(devices)),
        *([Identity("operator", 0)] if edges else []),
    ]


def _refuse_strangers(directory: Path, members: Sequence[Identity]) -> None:
    for member in members:
        if not is_issued(directory, member):
            raise InputError(f"{member}: {directory} has no certificate of it to renew or to revoke")


def _tell(directory: Path, *, issued: int, left: int, revoked: int) -> None:
    already = f" ({left} were there already; --renew replaces them)" if left else ""
    Console(highlight=False).print(
        f"{escape(str(directory))}: {issued} certificates issued{already}, {revoked} revoked", soft_wrap=True
    )


def _lifetime(text: str) -> float:
    """Hours, at most as many as the authority itself has."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 24 * AUTHORITY_DAYS:
        most = f"{24 * AUTHORITY_DAYS} ({AUTHORITY_DAYS} days, the authority's own lifetime)"
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number of hours > 0 and ≤ {most}")
    return value


def _identity(name: str) -> Identity:
    role, _, number = name.rpartition("-")
    if role not in ROLES or not number.isdigit():
        raise InputError(f"{name!r}: must look like edge-0, device-7 or operator-0")
    return Identity(role, int(number))
