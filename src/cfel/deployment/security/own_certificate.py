"""A member's own certificate, key and authority, looked at before anybody else does.

What is wrong with them would otherwise show as silence: other members end the handshake and say nothing.
Whether a certificate was revoked is for those who let its owner in, and not asked here.
"""

from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from cfel.deployment.security.identity import Identity, identity_of
from cfel.errors import DeploymentError, NotAdmittedError, RejectedError, reason


def read_own(directory: Path, identity: Identity, now: datetime | None = None) -> tuple[bytes, bytes, bytes]:
    """The authority's certificate, the member's, and its key, as files hold them.

    Args:
        directory: where they are.
        identity: whose they have to be.
        now: the time of day; the present by default.

    Raises:
        DeploymentError: one of them is missing or is not what it should be; names the file.
        NotAdmittedError: the certificate or its authority has expired, or is not valid yet.
    """
    paths = (directory / "authority.pem", directory / f"{identity}.pem", directory / f"{identity}.key")
    authority, certificate, key = (_content(path) for path in paths)
    issuer, own = _certificate(paths[0], authority), _certificate(paths[1], certificate)
    _check_owner(paths[1], own, identity)
    _check_key(paths[2], key, paths[1], own)
    _check_issuer(paths[1], own, paths[0], issuer)
    today = now or datetime.now(UTC)
    _check_dates(paths[0], issuer, today, "make a new authority and all certificates with `cfel certs`")
    _check_dates(paths[1], own, today, f"renew it with `cfel certs --renew {identity}` and copy it here")
    return authority, certificate, key


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise DeploymentError(
            f"{path} does not exist: copy it from the directory in which `cfel certs` made it"
        ) from error
    except OSError as error:
        raise DeploymentError(f"cannot read {path}: {reason(error)}") from error


def _certificate(path: Path, content: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError as error:
        raise DeploymentError(f"{path} is not a certificate") from error


def _check_owner(path: Path, own: x509.Certificate, identity: Identity) -> None:
    try:
        found = identity_of(own)
    except RejectedError as error:
        raise DeploymentError(f"{path} is not of {identity}: {error}") from error
    if found != identity:
        raise DeploymentError(f"{path} is of {found}")


def _check_key(path: Path, content: bytes, beside: Path, own: x509.Certificate) -> None:
    try:
        key = load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise DeploymentError(f"{path} is not a key that `cfel certs` made") from error
    if _plain(key.public_key()) != _plain(own.public_key()):
        raise DeploymentError(f"{path} does not belong to {beside}")


def _plain(key: CertificatePublicKeyTypes | PublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _check_issuer(path: Path, own: x509.Certificate, beside: Path, issuer: x509.Certificate) -> None:
    try:
        own.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise DeploymentError(f"{path} was not issued by {beside}") from error


def _check_dates(path: Path, certificate: x509.Certificate, now: datetime, advice: str) -> None:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        raise NotAdmittedError(f"{path} expired on {end:%Y-%m-%d %H:%M} UTC: {advice}")
    if now < begin:
        raise NotAdmittedError(
            f"{path} is not valid before {begin:%Y-%m-%d %H:%M} UTC, and this machine's clock shows "
            f"{now:%Y-%m-%d %H:%M} UTC"
        )
