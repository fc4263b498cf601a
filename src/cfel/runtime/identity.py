"""Who somebody is: a role and a number, taken from the certificate and from nothing else."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from cryptography import x509

from cfel.errors import InputError, RefusedError, unknown_name

Role = Literal["edge", "device", "operator"]
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True, slots=True, order=True)
class Identity:
    """One member of a federation.

    Attributes:
        role: "edge" and "device" take part, an "operator" only looks.
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
        """How a certificate says it."""
        return f"cfel://{self.role}/{self.number}"

    @property
    def host(self) -> str:
        """The name that clients expect of this server, whatever its address."""
        return f"{self}.cfel"


def identity_of(certificate: x509.Certificate) -> Identity:
    """Whom a certificate was issued to.

    Raises:
        RefusedError: it names no role and number.
    """
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        uris = []
    for uri in uris:
        found = re.fullmatch(r"cfel://(edge|device|operator)/(\d{1,9})", uri)
        if found:
            return Identity(found[1], int(found[2]))  # type: ignore[arg-type]
    raise RefusedError("the certificate names no role and number")


class Doorkeeper:
    """Tells callers by their certificates, and turns revoked ones away.

    Args:
        revoked: file with one serial number in hexadecimal per line, read again whenever it changes; it need
            not exist.
    """

    def __init__(self, revoked: Path) -> None:
        self._revoked_file = revoked
        self._changed: float | None = None
        self._revoked: frozenset[int] = frozenset()
        self._known: dict[bytes, tuple[Identity, int]] = {}

    def identify(self, certificate_pem: bytes) -> Identity:
        """Who calls.

        Raises:
            RefusedError: the certificate names nobody, or it was revoked.
        """
        if certificate_pem not in self._known:
            certificate = x509.load_pem_x509_certificate(certificate_pem)
            self._known[certificate_pem] = (identity_of(certificate), certificate.serial_number)
        identity, serial = self._known[certificate_pem]
        if serial in self._revocations():
            raise RefusedError(f"the certificate of {identity} was revoked")
        return identity

    def _revocations(self) -> frozenset[int]:
        try:
            changed = self._revoked_file.stat().st_mtime
        except FileNotFoundError:
            self._changed, self._revoked = None, frozenset()
            return self._revoked
        if changed != self._changed:
            lines = self._revoked_file.read_text(encoding="ascii").split()
            self._changed, self._revoked = changed, frozenset(int(line, 16) for line in lines)
        return self._revoked
