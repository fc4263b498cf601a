"""Who a caller is: a role and a number, taken from its certificate and from nothing else.

`Authenticator` also rejects certificates that are revoked or have expired. What a caller may call is not
decided here: the transport compares its role with those of the method.
"""

import re
from collections.abc import Callable, Container
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, get_args

from cryptography import x509

from cfel.errors import InputError, NotAdmittedError, RejectedError, unknown_name

Role = Literal["edge", "device", "operator"]
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True, slots=True, order=True)
class Identity:
    """One node of a federation, or an operator.

    Attributes:
        role: "edge" and "device" take part; an "operator" reads the status and changes the fleet.
        number: cluster number of an edge server, device number of a device.
    """

    role: Role
    number: int

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise InputError(unknown_name("role", self.role, ROLES))
        if self.number < 0:
            raise InputError(f"number of {self.role}: {self.number} is negative")

    def __str__(self) -> str:
        return f"{self.role}-{self.number}"

    @property
    def uri(self) -> str:
        """How a certificate names it."""
        return f"cfel://{self.role}/{self.number}"

    @property
    def host(self) -> str:
        """The host name that clients expect in this server's certificate, whatever its address."""
        return f"{self}.cfel"


def read_identity(certificate: x509.Certificate) -> Identity:
    """Reads from a certificate whom it was issued to.

    Raises:
        NotAdmittedError: it names no role and number.
    """
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        uris = []
    for uri in uris:
        # Digits are limited, so that a number fits everywhere it is used.
        found = re.fullmatch(r"cfel://(edge|device|operator)/(\d{1,9})", uri)
        if found:
            return Identity(found[1], int(found[2]))  # type: ignore[arg-type]
    raise NotAdmittedError("the certificate names no role and number")


class ExpiredError(RejectedError):
    """The caller's certificate has expired; a new one is admitted again."""


@dataclass(frozen=True, slots=True)
class _CertificateFacts:
    """What a call needs to know of a certificate."""

    identity: Identity
    serial: int
    expires: datetime


class Authenticator:
    """Identifies callers by their certificates and rejects revoked and expired ones.

    The TLS handshake checks a certificate once. This checks it in every call, however old the connection is.

    Args:
        revoked: serial numbers of revoked certificates.
        now: the time of day.
    """

    def __init__(
        self, revoked: Container[int], now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._revoked, self._now = revoked, now
        self._known: dict[bytes, _CertificateFacts] = {}

    def identify(self, certificate_pem: bytes) -> Identity:
        """Returns who calls.

        Raises:
            NotAdmittedError: the certificate names no node, or was revoked.
            ExpiredError: it has expired.
        """
        # Parsing is slow compared with a call; only certificates signed by the authority get here.
        if certificate_pem not in self._known:
            certificate = x509.load_pem_x509_certificate(certificate_pem)
            self._known[certificate_pem] = _CertificateFacts(
                read_identity(certificate), certificate.serial_number, certificate.not_valid_after_utc
            )
        known = self._known[certificate_pem]
        if known.serial in self._revoked:
            raise NotAdmittedError(f"the certificate of {known.identity} was revoked")
        # Connections outlive the handshake that checked the certificate.
        if self._now() > known.expires:
            raise ExpiredError(
                f"the certificate of {known.identity} expired at {known.expires:%Y-%m-%d %H:%M} UTC"
            )
        return known.identity
