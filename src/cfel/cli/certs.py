"""`cfel certs`: the private certificate authority of a federation and its certificates."""

import argparse
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cfel.cli.options import parse_count, parse_value
from cfel.deployment.security.certificates import (
    AUTHORITY_DAYS,
    check_authority,
    is_issued,
    issue,
    make_authority,
    revoke,
)
from cfel.deployment.security.identity import Identity
from cfel.deployment.security.invitations import parse_identity
from cfel.errors import InputError
from cfel.wording import plural

EXAMPLES = {
    "certs": """  cfel certs --out certificates --edges 3 --devices 6
  cfel certs --out certificates --renew device-4 --hours 24
  cfel certs --out certificates --revoke device-4"""
}


def add_certs_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="directory of the certificate authority"
    )
    for kind, letter, words in (("edges", "M", "edge servers"), ("devices", "N", "devices")):
        text = f"issue for {words} 0 to {letter}-1"
        parser.add_argument(f"--{kind}", type=parse_count, default=0, metavar=letter, help=text)
    for verb, text in (("renew", "issue again (repeatable)"), ("revoke", "revoke (repeatable)")):
        parser.add_argument(f"--{verb}", action="append", default=[], metavar="ROLE-NUMBER", help=text)
    parser.add_argument("--hours", type=parse_lifetime, default=720.0, help="lifetime in hours (default 720)")
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        help="additional host name or address of edge servers (repeatable)",
    )
    parser.set_defaults(run=certify)


def certify(arguments: argparse.Namespace) -> None:
    """Creates the authority and missing certificates, renews and revokes; keeps everything else."""
    directory: Path = arguments.out
    renewed = [parse_identity(name) for name in arguments.renew]
    revoked = [parse_identity(name) for name in arguments.revoke]
    if renewed or revoked:
        check_authority(directory)
        for identity in (*renewed, *revoked):
            if not is_issued(directory, identity):
                raise InputError(f"{identity}: {directory} holds no certificate to renew or revoke")
    else:
        make_authority(directory)
    wanted = [
        *(Identity("edge", i) for i in range(arguments.edges)),
        *(Identity("device", n) for n in range(arguments.devices)),
        # `cfel status` needs an identity too.
        *([Identity("operator", 0)] if arguments.edges else []),
    ]
    missing = [identity for identity in wanted if not is_issued(directory, identity)]
    # Revoke first: a node named in both options loses its old certificate, not the new one.
    for identity in revoked:
        revoke(directory, identity)
    for identity in (*missing, *renewed):
        issue(directory, identity, arguments.hours, arguments.host if identity.role == "edge" else ())
    issued, left = len(missing) + len(renewed), len(wanted) - len(missing)
    already = f" ({left} already there, use --renew to replace)" if left else ""
    Console(highlight=False).print(
        f"{escape(str(directory))}: {plural(issued, 'certificate')} issued{already}, {len(revoked)} revoked",
        soft_wrap=True,
    )


def parse_lifetime(text: str) -> float:
    """A number of hours, at most the lifetime of the authority."""
    most = 24 * AUTHORITY_DAYS
    words = f"a number of hours > 0 and ≤ {most} ({AUTHORITY_DAYS} days, the lifetime of the authority)"
    return parse_value(text, float, lambda hours: 0 < hours <= most, words)
