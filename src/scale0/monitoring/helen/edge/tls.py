"""Helen's TLS settings, and the identity in a client certificate.

TLS 1.3 is the minimum. A client certificate is optional; if there is one, it must be valid and name one identity.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Final

import msgspec

from scale0.kernel.errors import ConfigError
from scale0.kernel.names import is_identity

TICKETS: Final = 0
"""Session tickets for a client: an agent connects rarely, and each ticket costs memory and a packet."""


class PeerIdentity(msgspec.Struct, frozen=True, gc=False):
    """What a verified client certificate says; empty: the client showed none."""

    name: str = ""
    serial: str = ""
    """Hexadecimal digits, upper case."""
    issued: int = 0
    """Not valid before, in seconds since the Unix epoch."""


class NamelessError(ValueError):
    """A valid certificate that does not name one identity."""


def server_context(certificate: Path, private_key: Path, client_ca: Path) -> ssl.SSLContext:
    """The context for new connections. ConfigError names the file that is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = TICKETS
    context.verify_mode = ssl.CERT_OPTIONAL
    try:
        context.load_cert_chain(certificate, private_key, password=no_password)
    except (OSError, ValueError) as error:
        raise ConfigError([f"certificate {certificate} and private_key {private_key}: {reason_of(error)}"]) from error
    try:
        context.load_verify_locations(client_ca)
    except (OSError, ValueError) as error:
        raise ConfigError([f"client_ca {client_ca}: {reason_of(error)}"]) from error
    return context


def no_password() -> str:
    """Without this callback, OpenSSL would ask for the password on a terminal."""
    raise ValueError("the key is encrypted, but Helen starts unattended: remove its password")


def reason_of(error: Exception) -> str:
    """The cause, without the location in OpenSSL's source."""
    if isinstance(error, ssl.SSLEOFError):
        return "the connection ended without close_notify"
    if isinstance(error, ssl.SSLError):
        return error.reason.replace("_", " ").lower() if error.reason else "no matching certificate and key"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def peer_identity(tls: ssl.SSLObject) -> PeerIdentity:
    """The identity of the client, after the handshake."""
    certificate: dict[str, Any] | None = tls.getpeercert()
    if not certificate:
        return PeerIdentity()
    names = [value for part in certificate["subject"] for key, value in part if key == "commonName"]
    if len(names) != 1 or not is_identity(names[0]):
        raise NamelessError("the certificate does not name one identity")
    return PeerIdentity(names[0], certificate["serialNumber"], ssl.cert_time_to_seconds(certificate["notBefore"]))
