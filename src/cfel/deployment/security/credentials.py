"""A node's certificate, key and authority, and the list of revoked ones, read again when their files change.

They are checked before the first connection: a bad certificate would show only as silence, as other nodes end
the handshake and say nothing. New files are used once they are complete and valid; until then, and whatever
is wrong with them, the node keeps those that it has. The list of revoked certificates is never less strict by
accident. A node warns before its own certificate expires; `cfel certs --renew` renews it.
"""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from cfel.deployment.security.identity import Identity, read_identity
from cfel.durable import read_bytes
from cfel.errors import CredentialsError, DeploymentError, NotAdmittedError, StorageError

REVOKED = "revoked.txt"
OnProblem = Callable[[str], None]
"""Receives a message that says what is wrong with the list."""

_MOST_SHOWN = 40
_MOST_LIST_BYTES = 64 * 1024**2


class Revocations:
    """The serial numbers of revoked certificates.

    Args:
        path: the file; it need not exist.
        on_problem: called when a change of the file leaves it with a fault.
    """

    def __init__(self, path: Path, on_problem: OnProblem) -> None:
        self._path, self._on_problem = path, on_problem
        self._seen: tuple[int, int, int] | None = None
        self._revoked: frozenset[int] = frozenset()

    def __contains__(self, serial: object) -> bool:
        """Whether a serial number is on the list as the file is now."""
        self._refresh()
        return serial in self._revoked

    def _refresh(self) -> None:
        try:
            found = self._path.stat()
        except OSError as error:
            if self._seen:
                self._on_problem(f"{self._path.name}: the previous list stays in force: {error.strerror}")
            self._seen = None
            return
        # The inode shows a file that was replaced within one tick of the clock by one of the same size.
        now = (found.st_mtime_ns, found.st_size, found.st_ino)
        if now != self._seen:
            self._read()
        self._seen = now

    def _read(self) -> None:
        try:
            content = read_bytes(self._path, max_bytes=_MOST_LIST_BYTES, follow_links=True)
        except StorageError as error:
            self._on_problem(f"{self._path.name}: the previous list stays in force: {error}")
            return
        lines = content.decode("ascii", "replace").splitlines()
        serials = {number: _parse_serial(line) for number, line in enumerate(lines, 1) if line.strip()}
        good = frozenset(serial for serial in serials.values() if serial is not None)
        bad = [number for number, serial in serials.items() if serial is None]
        for number in bad:
            shown = lines[number - 1].strip()[:_MOST_SHOWN]
            self._on_problem(f"{self._path.name}, line {number}: {shown!r} is not a serial number")
        # A list with bad lines may be half written, so it readmits nobody.
        self._revoked = good | self._revoked if bad else good


def _parse_serial(line: str) -> int | None:
    try:
        return int(line.strip(), 16)
    except ValueError:
        return None


_MAX_BYTES = 1024**2


def read_credentials(
    directory: Path, identity: Identity, now: datetime | None = None
) -> tuple[bytes, bytes, bytes]:
    """Returns the authority's certificate, the node's certificate and its key, in PEM format.

    Args:
        directory: where they are.
        identity: whose they must be.
        now: the time of day; by default the current time.

    Raises:
        CredentialsError: one of them is missing or is not what it should be; names the file.
        NotAdmittedError: the certificate or its authority has expired.
        DeploymentError: one of them is not valid yet, by this machine's clock.
    """
    paths = credential_paths(directory, identity)
    authority, certificate, key = (_read(path) for path in paths)
    issuer, own = _parse_certificate(paths[0], authority), _parse_certificate(paths[1], certificate)
    _check_owner(paths[1], own, identity)
    _check_key(paths[2], key, paths[1], own)
    _check_issuer(paths[1], own, paths[0], issuer)
    today = now or datetime.now(UTC)
    _check_dates(paths[0], issuer, today, "make a new authority and all certificates with `cfel certs`")
    _check_dates(paths[1], own, today, f"renew it with `cfel certs --renew {identity}` and copy it here")
    return authority, certificate, key


def credential_paths(directory: Path, identity: Identity) -> tuple[Path, Path, Path]:
    """Where the authority's certificate, the node's certificate and its key are."""
    return directory / "authority.pem", directory / f"{identity}.pem", directory / f"{identity}.key"


def read_host_names(path: Path) -> tuple[str, ...]:
    """The host names in a certificate, besides IP addresses.

    Raises:
        CredentialsError: it cannot be read.
    """
    certificate = _parse_certificate(path, _read(path))
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(names.get_values_for_type(x509.DNSName))


def _read(path: Path) -> bytes:
    try:
        # Not just any file: the directory may be somebody else's, and a pipe would never end.
        return read_bytes(path, max_bytes=_MAX_BYTES, follow_links=True)
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise CredentialsError(
                f"{path} does not exist: copy it from the directory in which `cfel certs` made it"
            ) from error
        raise CredentialsError(str(error)) from error


def _parse_certificate(path: Path, content: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError as error:
        raise CredentialsError(f"{path} is not a certificate") from error


def _check_owner(path: Path, own: x509.Certificate, identity: Identity) -> None:
    try:
        found = read_identity(own)
    except NotAdmittedError as error:
        raise CredentialsError(f"{path} is not the certificate of {identity}: {error}") from error
    if found != identity:
        raise CredentialsError(f"{path} is the certificate of {found}")


def _check_key(path: Path, content: bytes, certificate: Path, own: x509.Certificate) -> None:
    try:
        key = load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CredentialsError(f"{path} is not a key that `cfel certs` made") from error
    if _encode(key.public_key()) != _encode(own.public_key()):
        raise CredentialsError(f"{path} does not belong to {certificate}")


def _encode(key: CertificatePublicKeyTypes | PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _check_issuer(path: Path, own: x509.Certificate, authority: Path, issuer: x509.Certificate) -> None:
    try:
        own.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise CredentialsError(f"{path} was not issued by {authority}") from error


def _check_dates(path: Path, certificate: x509.Certificate, now: datetime, advice: str) -> None:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        raise NotAdmittedError(f"{path} expired on {end:%Y-%m-%d %H:%M} UTC: {advice}")
    if now < begin:
        # A clock may be wrong for a while after the start of a machine, so this may pass.
        raise DeploymentError(
            f"{path} is not valid before {begin:%Y-%m-%d %H:%M} UTC, and this machine's clock shows "
            f"{now:%Y-%m-%d %H:%M} UTC"
        )


MOST_NOTICE = timedelta(days=7)
"""Warnings begin so long before the end, or in the last quarter of a shorter lifetime."""
SHARE_OF_LIFETIME = 4
REPEAT = timedelta(hours=6)
_CHECK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Validity:
    """From when to when a node's certificate is valid."""

    identity: Identity
    begin: datetime
    end: datetime

    @classmethod
    def read(cls, certificate_pem: bytes) -> "Validity":
        """Reads it from the certificate."""
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        return cls(read_identity(certificate), begin, end)

    def describe(self, now: datetime | None = None) -> str:
        """The warning, or nothing while the certificate is valid for long."""
        notice = min(MOST_NOTICE, (self.end - self.begin) / SHARE_OF_LIFETIME)
        now = now or datetime.now(UTC)
        if now <= self.end - notice:
            return ""
        verb = "expired" if now > self.end else "expires"
        return (
            f"the certificate of {self.identity} {verb} on {self.end:%Y-%m-%d %H:%M} UTC: renew it with "
            f"`cfel certs --renew {self.identity}` and copy it to this node; no restart is needed"
        )


@asynccontextmanager
async def watch_expiry(
    find_validity: Callable[[], Validity], now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> AsyncIterator[None]:
    """Logs the warning once it is due, again and again, until the block ends.

    Args:
        find_validity: of the certificate in use, which may be renewed.
        now: the time of day.
    """
    task = asyncio.create_task(_log_expiry(find_validity, now))
    try:
        yield
    finally:
        task.cancel()


async def _log_expiry(find_validity: Callable[[], Validity], now: Callable[[], datetime]) -> None:
    said, said_at = "", now()
    while True:
        warning = find_validity().describe(now())
        is_due = warning != said or now() - said_at > REPEAT
        if warning and is_due:
            _LOG.warning("%s", warning)
            said_at = now()
        said = warning
        await asyncio.sleep(_CHECK_SECONDS)


LOOK_SECONDS = 1.0
"""How often files are looked at, at most."""
SETTLE_SECONDS = 10.0
"""Files that are copied one after the other do not match for a moment; after this it is a problem."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Credentials:
    """A node's certificate, key and authority in PEM format, and where the list of revoked ones is."""

    authority: bytes
    certificate: bytes
    key: bytes
    revoked: Path

    @classmethod
    def read(cls, directory: Path, identity: Identity) -> "Credentials":
        """Reads those that `cfel certs` wrote to a directory.

        Raises:
            CredentialsError: one of them is missing, or they do not belong to the node or to each other.
            DeploymentError: the certificate is not valid yet, by this machine's clock.
        """
        return cls(*read_credentials(directory, identity), directory / REVOKED)

    def current(self) -> "Credentials":
        """See `CredentialSource`: always these."""
        return self


class CredentialSource(Protocol):
    """Where connections take their credentials from."""

    def current(self) -> Credentials:
        """Those to use for new connections; the same object while they do not change."""
        ...


class CredentialFiles:
    """The files of one node.

    Args:
        directory: where they are.
        identity: the node.
        now: a monotonic clock.

    Attributes:
        problem: why new files are not used, in words; empty if there are none.

    Raises:
        DeploymentError: as `Credentials.read`.
    """

    def __init__(
        self, directory: Path, identity: Identity, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory, self._identity, self._now = directory, identity, now
        self._paths = credential_paths(directory, identity)
        # gRPC asks from threads of its own.
        self._lock = threading.Lock()
        self._seen = self._look()
        self._credentials = Credentials.read(directory, identity)
        self._validity = Validity.read(self._credentials.certificate)
        self._looked_at, self._changed_at = now(), now()
        self._is_settled = True
        self.problem = ""

    @property
    def validity(self) -> Validity:
        """From when to when the certificate in use is valid."""
        return self._validity

    def current(self) -> Credentials:
        """See `CredentialSource`."""
        with self._lock:
            if self._now() - self._looked_at >= LOOK_SECONDS:
                self._looked_at = self._now()
                self._refresh()
            return self._credentials

    def _refresh(self) -> None:
        seen = self._look()
        if seen != self._seen:
            self._seen, self._changed_at, self._is_settled = seen, self._now(), False
        if self._is_settled:
            return
        try:
            found = Credentials.read(self._directory, self._identity)
        except DeploymentError as error:
            self._note(error)
            return
        self._is_settled, self.problem = True, ""
        if found != self._credentials:
            self._credentials, self._validity = found, Validity.read(found.certificate)
            _LOG.info("new certificate in use, valid until %s", f"{self._validity.end:%Y-%m-%d %H:%M} UTC")

    def _note(self, error: DeploymentError) -> None:
        if self._now() - self._changed_at < SETTLE_SECONDS:
            return
        self._is_settled = True
        self.problem = f"the new certificate files are not used: {error}"
        _LOG.warning("%s", self.problem)

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Changes when a file does."""
        return tuple(_look(path) for path in self._paths)


def _look(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    # The inode shows a file that was replaced within one tick of the clock by one of the same size.
    return found.st_mtime_ns, found.st_size, found.st_ino
