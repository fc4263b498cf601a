"""Invitations to a federation: a one-time token for each node, and what the authority's side keeps of it.

A token names the authority by its fingerprint, so that the machine that joins knows whom to believe, and
carries a secret, so that the authority knows whom it invited. The authority stores only a digest of it:

    DIR/device-3.json       digest of the secret, when it expires, and the key that has used it

The first key that comes with the secret uses the invitation up. The same key may come again, as an answer can
get lost; any other is refused.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec

from cfel.deployment.protocol.messages import Digest, decode, encode
from cfel.deployment.security.identity import ROLES, Identity
from cfel.durable import read_bytes, replace_file, translate_os_errors, translate_parse_errors
from cfel.errors import InputError, NotAdmittedError, RejectedError

_PREFIX = "cfel-"
_SECRET_BYTES, _CHECK_BYTES = 16, 4
_MOST_CHARACTERS = 1000
_MOST_DIGITS = 9
# The end of the year 9999.
_Time = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799)]


class Token(msgspec.Struct, frozen=True, array_like=True):
    """What an operator hands to a machine: printed on one line, as `cfel join` takes it."""

    fingerprint: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]  # of the authority
    secret: Annotated[bytes, msgspec.Meta(min_length=_SECRET_BYTES, max_length=_SECRET_BYTES)]
    expires: _Time  # in seconds since 1970
    node: Annotated[str, msgspec.Meta(max_length=40)]  # as "device-3"
    address: Annotated[str, msgspec.Meta(max_length=300)]  # of `cfel invite`, "host:port"

    def __str__(self) -> str:
        content = encode(self)
        check = hashlib.sha256(content).digest()[:_CHECK_BYTES]
        return _PREFIX + base64.urlsafe_b64encode(content + check).decode().rstrip("=")

    @property
    def identity(self) -> Identity:
        """The node that the token is for."""
        return parse_identity(self.node)

    def check_expiry(self, now: float) -> None:
        """Raises a `NotAdmittedError` if the token has expired."""
        if now > self.expires:
            raise NotAdmittedError(_describe_expiry(self.node, self.expires))


def parse_token(text: str) -> Token:
    """The token in a text.

    Raises:
        InputError: it is none, or was not copied whole.
    """
    body = text.strip().removeprefix(_PREFIX)
    try:
        if len(text) > _MOST_CHARACTERS or body == text.strip():
            raise InputError("too long, or does not begin with cfel-")
        whole = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        content, check = whole[:-_CHECK_BYTES], whole[-_CHECK_BYTES:]
        if not content or hashlib.sha256(content).digest()[:_CHECK_BYTES] != check:
            raise InputError("it was changed on the way")
        token = decode(content, Token)
        parse_identity(token.node)
    except (ValueError, RejectedError) as error:
        raise InputError(f"token {text[:12]!r}…: is not one of `cfel invite`, or not the whole") from error
    return token


def parse_identity(name: str) -> Identity:
    """The node of a name such as "device-7".

    Raises:
        InputError: it names none.
    """
    role, _, number = name.rpartition("-")
    if role not in ROLES or not (number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS):
        raise InputError(f"{name!r}: must look like edge-0, device-7 or operator-0")
    return Identity(role, int(number))


class Joining(msgspec.Struct, frozen=True):
    """How a node that the experiment does not have is added to the fleet, once it has joined and runs."""

    edge: int | None = None  # of a device: its edge server
    address: str = ""  # of an edge server: where others reach it, "host:port"


class Invitation(msgspec.Struct, frozen=True):
    """What the authority's side keeps of a token."""

    secret_sha256: Digest
    expires: _Time  # in seconds since 1970
    used_by: Digest | None = None  # SHA-256 of the public key that has used it
    joining: "Joining | None" = None  # what is left to do to add it to a running fleet


class Invitations:
    """The invitations in a directory, one per node; a newer one replaces the older.

    Args:
        directory: where they are; it is made when the first is written.
        now: the time of day, in seconds since 1970.
    """

    def __init__(self, directory: Path, now: Callable[[], float]) -> None:
        self._directory, self._now = directory, now

    def invite(
        self, identity: Identity, authority: bytes, address: str, hours: float, joining: Joining | None = None
    ) -> Token:
        """Makes an invitation; one that replaces another keeps what is left to do for its node.

        Args:
            identity: whom it is for.
            authority: fingerprint of the authority.
            address: where the machine finds `cfel invite`.
            hours: how long it is valid.
            joining: how to add it to the fleet; None if it belongs to it.
        """
        if joining is None and (before := self._read(identity)) is not None:
            joining = before.joining
        expires = int(self._now() + 3600 * hours)
        token = Token(authority, secrets.token_bytes(_SECRET_BYTES), expires, str(identity), address)
        self._write(identity, Invitation(_digest(token.secret), expires, joining=joining))
        return token

    def list_open(self) -> list[Identity]:
        """Who was invited and has neither come nor is too late."""
        return [identity for identity, each in self._list() if self._is_open(each)]

    def list_joining(self, *, arrived: bool = False) -> dict[Identity, Joining]:
        """Who is to be added to the fleet: has come or, unless only those are asked for, may still come."""
        return {
            identity: each.joining
            for identity, each in self._list()
            if each.joining is not None and (each.used_by or (not arrived and self._is_open(each)))
        }

    def finish_joining(self, identity: Identity) -> None:
        """Nothing is left to do for a node."""
        if (found := self._read(identity)) is not None:
            self._write(identity, msgspec.structs.replace(found, joining=None))

    def _is_open(self, each: Invitation) -> bool:
        return each.used_by is None and each.expires >= self._now()

    def _list(self) -> list[tuple[Identity, Invitation]]:
        names = (path.stem for path in self._directory.glob("*.json"))
        found = ((identity, self._read(identity)) for identity in sorted(map(parse_identity, names)))
        return [(identity, each) for identity, each in found if each is not None]

    def use(self, name: str, secret: bytes, public_key: bytes) -> Identity:
        """Uses an invitation up; returns whom it is for.

        Args:
            name: the node that the token names.
            secret: of the token.
            public_key: of the machine that joins.

        Raises:
            RejectedError: the name is none of a node.
            NotAdmittedError: the token was not made here, is for another node, has expired or has been used.
        """
        try:
            identity = parse_identity(name)
        except InputError as error:
            raise RejectedError(str(error)) from error
        found = self._read(identity)
        if found is None or not hmac.compare_digest(found.secret_sha256, _digest(secret)):
            raise NotAdmittedError(self._explain_unknown(name, secret))
        if self._now() > found.expires:
            raise NotAdmittedError(_describe_expiry(name, found.expires))
        user = _digest(public_key)
        if found.used_by not in (None, user):
            raise NotAdmittedError(
                f"the token for {name} has been used by another machine: if that was none of yours, revoke "
                f"{name}; make another token with `cfel invite`"
            )
        self._write(identity, msgspec.structs.replace(found, used_by=user))
        return identity

    def _explain_unknown(self, name: str, secret: bytes) -> str:
        for path in sorted(self._directory.glob("*.json")):
            found = self._read(parse_identity(path.stem))
            if found is not None and hmac.compare_digest(found.secret_sha256, _digest(secret)):
                return f"the token is for {path.stem}, not for {name}"
        return f"the token for {name} was not made here, or a newer one has replaced it"

    def _read(self, identity: Identity) -> Invitation | None:
        path = self._directory / f"{identity}.json"
        if not path.exists():
            return None
        with translate_parse_errors(path):
            return msgspec.json.decode(read_bytes(path), type=Invitation)

    def _write(self, identity: Identity, invitation: Invitation) -> None:
        with translate_os_errors("create", self._directory):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._directory / f"{identity}.json", msgspec.json.encode(invitation), private=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _describe_expiry(name: str, expires: int) -> str:
    when = datetime.fromtimestamp(expires, UTC)
    return f"the token for {name} expired on {when:%Y-%m-%d %H:%M} UTC: make another with `cfel invite`"
