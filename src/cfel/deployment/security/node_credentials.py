"""Reads a node's certificate, key and authority, and checks them before the first connection.

Without this check a bad certificate would show only as silence: other nodes end the handshake and say
nothing. Whether a certificate was revoked is checked by the nodes it connects to, not here.
"""

from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from cfel.deployment.security.identity import Identity, read_identity
from cfel.durable import read_bytes
from cfel.errors import CredentialsError, DeploymentError, NotAdmittedError, StorageError

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
