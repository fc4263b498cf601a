"""A private certificate authority: one per federation, with short-lived certificates for its nodes.

    DIR/
    ├── authority.pem, authority.key     the authority; the key stays where certificates are made
    ├── edge-0.pem, edge-0.key           a node's certificate and key
    └── revoked.txt                      serial numbers of revoked certificates

The role and the number are in the certificate (`cfel://device/7`); a node's own claims do not count.
"""

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cfel.deployment.security.credentials import REVOKED, Revocations
from cfel.deployment.security.identity import Identity
from cfel.durable import read_bytes, replace_file, translate_os_errors
from cfel.errors import CredentialsError, DeploymentError, RejectedError

AUTHORITY_DAYS = 3650
# Clocks of the nodes may differ by this much.
SKEW = timedelta(minutes=5)


def make_authority(directory: Path, now: datetime | None = None) -> None:
    """Creates the authority, unless the directory has one already."""
    if (directory / "authority.pem").exists():
        return
    with translate_os_errors("create", directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cfel authority")])
    begin = (now or datetime.now(UTC)) - SKEW
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=AUTHORITY_DAYS))
        # It may sign certificates of nodes, but no further authorities.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_key(directory / "authority.key", key)
    replace_file(directory / "authority.pem", _pem(certificate))


def issue(
    directory: Path,
    identity: Identity,
    hours: float,
    hosts: Sequence[str] = (),
    now: datetime | None = None,
) -> int:
    """Issues (or renews) a node's certificate.

    Args:
        directory: the authority's.
        identity: whose certificate it is.
        hours: lifetime.
        hosts: host names and addresses besides the node's name.
        now: start of the lifetime; by default the current time.

    Returns:
        The serial number, by which it can be revoked.

    Raises:
        DeploymentError: there is no authority here.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _Subject(str(identity), _names(identity, hosts), _purposes(identity))
    certificate = _sign(directory, subject, key.public_key(), hours, now)
    _write_key(directory / f"{identity}.key", key)
    replace_file(directory / f"{identity}.pem", _pem(certificate))
    return certificate.serial_number


def issue_for_request(
    directory: Path,
    identity: Identity,
    request_pem: bytes,
    hours: float,
    hosts: Sequence[str] = (),
    now: datetime | None = None,
) -> bytes:
    """Issues a node's certificate for a key that stays on the node's machine.

    Whom it is for, the caller decides: names in the request do not count. The authority keeps a copy.

    Args:
        directory: the authority's.
        identity: whose certificate it is.
        request_pem: made by `make_request`.
        hours: lifetime.
        hosts: host names and addresses besides the node's name.
        now: start of the lifetime; by default the current time.

    Returns:
        The certificate, in PEM format.

    Raises:
        RejectedError: the request is not valid.
    """
    key = _read_request(request_pem)
    subject = _Subject(str(identity), _names(identity, hosts), _purposes(identity))
    certificate = _pem(_sign(directory, subject, key, hours, now))
    replace_file(directory / f"{identity}.pem", certificate)
    return certificate


def make_request(path: Path) -> bytes:
    """A request for a certificate of the key at `path`, which is made unless it is there; in PEM format."""
    if not path.exists():
        _write_key(path, ec.generate_private_key(ec.SECP256R1()))
    key = _load_key(path)
    empty = x509.CertificateSigningRequestBuilder(x509.Name([]))
    return empty.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def read_request_key(request_pem: bytes) -> bytes:
    """The public key of a request, encoded, whose signature proves that the sender has the private one.

    Raises:
        RejectedError: the request is not valid.
    """
    return _read_request(request_pem).public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _read_request(request_pem: bytes) -> ec.EllipticCurvePublicKey:
    """The public key of a request.

    Raises:
        RejectedError: the request is not valid.
    """
    try:
        request = x509.load_pem_x509_csr(request_pem)
        is_signed = request.is_signature_valid
        key = request.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise RejectedError("the request for a certificate cannot be read") from error
    if not is_signed or not isinstance(key, ec.EllipticCurvePublicKey):
        raise RejectedError("the request for a certificate is not signed by a key as cfel makes them")
    return key


def issue_for_server(directory: Path, host: str, hours: float, into: Path) -> tuple[Path, Path]:
    """Issues a certificate that names no node, only a server's host name.

    Returns:
        Where its certificate and its key are, in the folder `into`.
    """
    key, names = ec.generate_private_key(ec.SECP256R1()), x509.SubjectAlternativeName([x509.DNSName(host)])
    subject = _Subject(host, names, [ExtendedKeyUsageOID.SERVER_AUTH])
    _write_key(into / "server.key", key)
    replace_file(into / "server.pem", _pem(_sign(directory, subject, key.public_key(), hours, None)))
    return into / "server.pem", into / "server.key"


def fingerprint(authority_pem: bytes) -> bytes:
    """The SHA-256 of an authority's certificate.

    Raises:
        RejectedError: it is no certificate.
    """
    try:
        return x509.load_pem_x509_certificate(authority_pem).fingerprint(hashes.SHA256())
    except ValueError as error:
        raise RejectedError("what should be the authority's certificate is none") from error


@dataclass(frozen=True, slots=True)
class _Subject:
    """Whom a certificate is for."""

    name: str
    names: x509.SubjectAlternativeName
    purposes: list[x509.ObjectIdentifier]


def _sign(
    directory: Path,
    subject: _Subject,
    key: ec.EllipticCurvePublicKey,
    hours: float,
    now: datetime | None,
) -> x509.Certificate:
    authority, authority_key = _load_authority(directory)
    begin = now or datetime.now(UTC)
    return (
        x509.CertificateBuilder(
            authority.subject,
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject.name)]),
            key,
            x509.random_serial_number(),
        )
        # A node whose clock is behind must be able to use it at once.
        .not_valid_before(begin - SKEW)
        .not_valid_after(begin + timedelta(hours=hours))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(subject.purposes), critical=False)
        .add_extension(subject.names, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )


def is_issued(directory: Path, identity: Identity) -> bool:
    """Whether a node's certificate is here, however old; its key may have been moved to the node."""
    return (directory / f"{identity}.pem").exists()


def check_authority(directory: Path) -> None:
    """Raises a `DeploymentError` if certificates cannot be issued here."""
    _load_authority(directory)


def revoke(directory: Path, identity: Identity) -> None:
    """Adds the serial number of a node's current certificate to the list of revoked ones."""
    certificate = x509.load_pem_x509_certificate(read_bytes(directory / f"{identity}.pem", follow_links=True))
    path = directory / REVOKED
    before = path.read_bytes() if path.exists() else b""
    replace_file(path, before + f"{certificate.serial_number:x}\n".encode())


def is_revoked(directory: Path, identity: Identity) -> bool:
    """Whether a node's current certificate is revoked; False for a node without one."""
    path = directory / f"{identity}.pem"
    if not path.exists():
        return False
    serial = x509.load_pem_x509_certificate(read_bytes(path, follow_links=True)).serial_number
    return serial in Revocations(directory / REVOKED, lambda _: None)


def _load_authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    if not (directory / "authority.key").exists():
        raise DeploymentError(
            f"{directory} holds no certificate authority (authority.key): name the directory in which "
            "`cfel certs` made it"
        )
    certificate = x509.load_pem_x509_certificate(read_bytes(directory / "authority.pem", follow_links=True))
    return certificate, _load_key(directory / "authority.key")


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(read_bytes(path, follow_links=True), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CredentialsError(f"{path} is not a key") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CredentialsError(f"{path} is not a key that cfel made")
    return key


def _names(identity: Identity, hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri)]
    if identity.role == "edge":
        # Callers expect this name, whatever the address: they check who answers, not where.
        names.append(x509.DNSName(identity.host))
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return x509.SubjectAlternativeName(names)


def _purposes(identity: Identity) -> list[x509.ObjectIdentifier]:
    client, server = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
    # A stolen certificate of a device cannot be used to pose as a server.
    return [client, server] if identity.role == "edge" else [client]


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Writes a key that no other user can read at any time."""
    content = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with translate_os_errors("write", path):
        # An existing file would keep its permissions, so the key goes into a new one.
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
