"""Tokens: what they carry, and which are refused."""

from pathlib import Path

import pytest

from cfel.deployment.security.identity import Identity
from cfel.deployment.security.invitations import Invitations, Token, parse_identity, parse_token
from cfel.errors import InputError, NotAdmittedError, RejectedError
from tests.support.clock import Clock

AUTHORITY = bytes(range(32))
DEVICE = Identity("device", 3)
KEY, OTHER_KEY = b"a public key", b"another one"


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000_000.0)


@pytest.fixture
def invitations(tmp_path: Path, clock: Clock) -> Invitations:
    return Invitations(tmp_path / "invitations", clock)


def invite(invitations: Invitations, identity: Identity = DEVICE, hours: float = 2.0) -> Token:
    return invitations.invite(identity, AUTHORITY, "10.0.0.9:7399", hours)


def test_a_token_carries_what_a_machine_has_to_know(invitations: Invitations) -> None:
    """It expires two hours after the time of the clock: 1,000,000 s + 7,200 s."""
    token = parse_token(f" {invite(invitations)}\n")
    assert (token.fingerprint, token.node, token.address) == (AUTHORITY, "device-3", "10.0.0.9:7399")
    assert (token.identity, token.expires, len(token.secret)) == (DEVICE, 1_007_200, 16)


def test_the_secret_is_not_stored(invitations: Invitations, tmp_path: Path) -> None:
    token = invite(invitations)
    stored = (tmp_path / "invitations" / "device-3.json").read_bytes()
    assert token.secret not in stored
    assert token.secret.hex().encode() not in stored


@pytest.mark.parametrize("damage", ["cut", "changed", "prefix", "empty", "words", "long"])
def test_a_token_that_was_not_copied_whole_is_refused(invitations: Invitations, damage: str) -> None:
    text = str(invite(invitations))
    swapped = "A" if text[40] != "A" else "B"
    damaged = {
        "cut": text[:-1],
        "changed": text[:40] + swapped + text[41:],
        "prefix": text.removeprefix("cfel-"),
        "empty": "cfel-",
        "words": "cfel-not a token at all",
        "long": text + "A" * 1000,
    }
    with pytest.raises(InputError, match=r"token .* is not one of `cfel invite`, or not the whole"):
        parse_token(damaged[damage])


def test_a_token_works_once(invitations: Invitations) -> None:
    token = invite(invitations)
    assert invitations.use("device-3", token.secret, KEY) == DEVICE
    with pytest.raises(NotAdmittedError, match="device-3 has been used by another machine"):
        invitations.use("device-3", token.secret, OTHER_KEY)


def test_the_same_key_may_come_again(invitations: Invitations) -> None:
    """The first answer may have been lost on the way."""
    token = invite(invitations)
    invitations.use("device-3", token.secret, KEY)
    assert invitations.use("device-3", token.secret, KEY) == DEVICE


def test_an_expired_token_is_refused_on_both_sides(invitations: Invitations, clock: Clock) -> None:
    token = invite(invitations, hours=1)
    clock.seconds += 3601
    with pytest.raises(NotAdmittedError, match=r"device-3 expired on 1970-01-12 14:46 UTC: make another"):
        invitations.use("device-3", token.secret, KEY)
    with pytest.raises(NotAdmittedError, match="expired"):
        token.check_expiry(clock())
    token.check_expiry(clock() - 2)


def test_a_forged_token_is_refused(invitations: Invitations) -> None:
    invite(invitations)
    with pytest.raises(NotAdmittedError, match="device-3 was not made here"):
        invitations.use("device-3", bytes(16), KEY)
    with pytest.raises(NotAdmittedError, match="device-4 was not made here"):
        invitations.use("device-4", bytes(16), KEY)


def test_a_token_for_another_role_is_refused(invitations: Invitations) -> None:
    """A device that calls itself an edge server, with the secret of its own token."""
    token = invite(invitations)
    invite(invitations, Identity("edge", 0))
    with pytest.raises(NotAdmittedError, match="the token is for device-3, not for edge-0"):
        invitations.use("edge-0", token.secret, KEY)


@pytest.mark.parametrize(
    "name", ["", "device", "device-", "device--1", "boss-0", "../x-1", "device-1234567890"]
)
def test_a_name_that_is_none(invitations: Invitations, name: str) -> None:
    with pytest.raises(RejectedError, match="must look like"):
        invitations.use(name, bytes(16), KEY)
    with pytest.raises(InputError, match="must look like"):
        parse_identity(name)


def test_a_newer_token_replaces_the_older(invitations: Invitations) -> None:
    old, new = invite(invitations), invite(invitations)
    with pytest.raises(NotAdmittedError, match="a newer one has replaced it"):
        invitations.use("device-3", old.secret, KEY)
    assert invitations.use("device-3", new.secret, KEY) == DEVICE


def test_who_is_awaited(invitations: Invitations, clock: Clock) -> None:
    """Neither those who came nor those who are too late."""
    assert invitations.list_open() == []
    short = Identity("device", 1)
    invite(invitations, short, hours=1)
    invite(invitations, Identity("edge", 0))
    token = invite(invitations)
    invitations.use("device-3", token.secret, KEY)
    assert invitations.list_open() == [short, Identity("edge", 0)]
    clock.seconds += 3601
    assert invitations.list_open() == [Identity("edge", 0)]
