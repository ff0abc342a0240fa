"""Our own certificate: the name in it, and how long it lasts.

Lives here: as much of DER as that takes. Never here: whether a certificate is to be trusted; OpenSSL judges that. It
exists because `ssl` does not tell, and a whole library for certificates costs an agent a quarter of its memory.
Invariant: a file that is not a certificate is refused with a reason, whatever is in it.
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from scale0.kernel.errors import ConfigError
from scale0.kernel.names import is_identity

COMMON_NAME: Final = bytes((0x55, 0x04, 0x03))
"""The object identifier 2.5.4.3."""
MAX_CERTIFICATE_BYTES: Final = 1024 * 1024

_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----", re.ASCII)
_INTEGER, _OBJECT_ID, _UTC_TIME, _GENERALIZED_TIME = 0x02, 0x06, 0x17, 0x18
_SEQUENCE, _SET, _VERSION = 0x30, 0x31, 0xA0
_TEXTS: Final = (0x0C, 0x13, 0x16)
"""UTF8String, PrintableString, IA5String."""


class AgentCertificate(NamedTuple):
    """Who we are, from when to when (wall time)."""

    identity: str
    not_before: float
    not_after: float


def read_certificate(path: Path) -> AgentCertificate:
    """The first certificate of a PEM file; ConfigError if there is none that we can use."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_CERTIFICATE_BYTES).decode("ascii", "replace")
    except OSError as error:
        raise ConfigError([f"certificate: {path}: {error.strerror}"]) from error
    match = _PEM.search(text)
    if match is None:
        raise ConfigError([f"certificate: {path} has no certificate in PEM form"])
    try:
        found = parse(ssl.PEM_cert_to_DER_cert(match[0]))
    except (ValueError, IndexError, OverflowError) as error:
        raise ConfigError([f"certificate: {path} cannot be read: {error}"]) from error
    if not is_identity(found.identity):
        raise ConfigError([f"certificate: {path}: its common name cannot be an agent's name"])
    return found


def parse(der: bytes) -> AgentCertificate:
    """What we want of a certificate; ValueError if it is none."""
    whole = _take(der, _SEQUENCE)[0]
    body = _take(whole, _SEQUENCE)[0]
    if body[0] == _VERSION:
        body = _take(body, _VERSION)[1]
    body = _take(body, _INTEGER)[1]  # serial number
    body = _take(body, _SEQUENCE)[1]  # algorithm of the signature
    body = _take(body, _SEQUENCE)[1]  # issuer
    validity, body = _take(body, _SEQUENCE)
    subject = _take(body, _SEQUENCE)[0]
    begins, validity = _time(validity)
    return AgentCertificate(_common_name(subject), begins, _time(validity)[0])


def _take(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """The content of the first value, which must be of this kind, and what comes after it."""
    if data[0] != tag:
        raise ValueError("it is not built like a certificate")
    length, start = data[1], 2
    if length >= 0x80:
        start += length - 0x80
        length = int.from_bytes(data[2:start], "big")
    if start + length > len(data):
        raise ValueError("it ends too early")
    return data[start : start + length], data[start + length :]


def _common_name(subject: bytes) -> str:
    while subject:
        group, subject = _take(subject, _SET)
        while group:
            pair, group = _take(group, _SEQUENCE)
            kind, value = _take(pair, _OBJECT_ID)
            if kind == COMMON_NAME and value[0] in _TEXTS:
                return _take(value, value[0])[0].decode("utf-8")
    raise ValueError("its subject has no common name")


def _time(data: bytes) -> tuple[float, bytes]:
    """A moment (RFC 5280: seconds always, and Z), and what comes after it."""
    tag = data[0]
    if tag not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError("its validity has no times")
    content, rest = _take(data, tag)
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        # Two digits of a year: 50 and above belong to the last century.
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp(), rest
