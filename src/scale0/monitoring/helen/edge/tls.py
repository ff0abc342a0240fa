"""TLS as Helen wants it: one context from her files, and who is at the other end.

Lives here: versions, certificates, names in certificates. Never here: sockets that wait for anything. Invariants: TLS
1.3 at the least; a client certificate is verified or there is none; a name that is no identity is nobody's name.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Final

import msgspec

from scale0.kernel.errors import ConfigError
from scale0.kernel.names import is_identity

TICKETS: Final = 0
"""Session tickets that a client gets: an agent connects rarely, and each ticket would cost memory and a packet."""


class PeerIdentity(msgspec.Struct, frozen=True, gc=False):
    """Who is at the other end, as far as a verified certificate says; blank: it brought none."""

    name: str = ""
    serial: str = ""
    """Hexadecimal digits, upper case."""
    issued: int = 0
    """From when its certificate holds, in seconds since the epoch."""


class NamelessError(ValueError):
    """A certificate of ours that names no identity."""


def server_context(certificate: Path, private_key: Path, client_ca: Path) -> ssl.SSLContext:
    """What new connections are accepted with; ConfigError says which file is wrong."""
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
    """A key with a password would make the process ask at a terminal that it does not have."""
    raise ValueError("the key is encrypted; Helen starts by herself, so it must not be")


def reason_of(error: Exception) -> str:
    """Why, without the place in OpenSSL's source."""
    if isinstance(error, ssl.SSLEOFError):
        return "it went without a goodbye"
    if isinstance(error, ssl.SSLError):
        return error.reason.replace("_", " ").lower() if error.reason else "no certificate or key that fits"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def caller_of(socket: ssl.SSLSocket) -> PeerIdentity:
    """Who this is, after the handshake."""
    certificate: dict[str, Any] | None = socket.getpeercert()
    if not certificate:
        return PeerIdentity()
    names = [value for part in certificate["subject"] for key, value in part if key == "commonName"]
    if len(names) != 1 or not is_identity(names[0]):
        raise NamelessError("its certificate does not name one identity")
    return PeerIdentity(names[0], certificate["serialNumber"], ssl.cert_time_to_seconds(certificate["notBefore"]))
