"""TLS as a client: contexts, and what a certificate says of itself.

Lives here: contexts that are kept for a while, and just enough of DER to read a certificate that nobody trusts. Never
here: deciding whom to trust (OpenSSL does that). Invariant: whatever bytes a certificate has, the answer is a
`ServerCertificate` or ValueError.
"""

from __future__ import annotations

import calendar
import os
import ssl
import stat
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from scale0.monitoring.checks.check_run import CheckFailed
from scale0.monitoring.protocol.results import UNKNOWN

if TYPE_CHECKING:
    import socket

    from scale0.monitoring.checks.check_run import CheckRun

CONTEXT_SECONDS: Final = 300.0
"""How long a context is used again: reading all authorities takes long, and they change now and then."""

MAX_AUTHORITIES_BYTES: Final = 4 * 1024 * 1024
"""Of a file of authorities: those of a whole system have a quarter of a megabyte."""

SEQUENCE: Final = 0x30
SET: Final = 0x31
VERSION: Final = 0xA0
UTC_TIME: Final = 0x17
GENERAL_TIME: Final = 0x18
OBJECT_ID: Final = 0x06
COMMON_NAME: Final = b"\x55\x04\x03"
TIMES: Final = {UTC_TIME: 13, GENERAL_TIME: 15}
"""Characters of a time, as certificates must write it: up to the second, in UTC."""


class ServerCertificate(NamedTuple):
    """What matters of a certificate. Times are Unix seconds."""

    begins: float
    ends: float
    subject: str
    """Its common name, blank where it has none."""


def context_of(verify: bool, ca_file: str, run: CheckRun) -> ssl.SSLContext:
    """A context that trusts the system's authorities, or those of a file, or anybody."""
    # By the file itself: there are endless names for one, and a context is large.
    key = ("context", verify, os.path.realpath(ca_file) if ca_file else "")
    kept: tuple[float, ssl.SSLContext] | None = run.kept.get(key)
    if kept is not None and time.monotonic() - kept[0] < CONTEXT_SECONDS:
        return kept[1]
    if verify:
        try:
            context = ssl.create_default_context(cadata=read_authorities(ca_file) if ca_file else None)
        except OSError as error:
            raise CheckFailed(
                UNKNOWN, f"the authorities of {ca_file} cannot be read: {error.strerror or error}"
            ) from None
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    run.kept.put(key, (time.monotonic(), context))
    return context


def read_authorities(path: str) -> str:
    """The text of a file of authorities. OSError: it is none. Never waits, as OpenSSL would for a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is no regular file")
        data = file.read(MAX_AUTHORITIES_BYTES + 1)
    if len(data) > MAX_AUTHORITIES_BYTES:
        raise OSError(f"it has more than {MAX_AUTHORITIES_BYTES} bytes")
    text = data.decode("ascii", "ignore")  # names in between may have other letters
    if not text.strip():
        raise OSError("it is empty")  # and nothing at all would mean the system's own
    return text


def secured(sock: socket.socket, context: ssl.SSLContext, name: str, run: CheckRun) -> ssl.SSLSocket:
    """TLS over a connection. The handshake's timeout counts over all of it. `sock` is closed where it fails."""
    sock.settimeout(run.deadline.left())
    try:
        return context.wrap_socket(sock, server_hostname=name)
    except BaseException as error:
        sock.close()
        if isinstance(error, ValueError) and not isinstance(error, OSError):  # a name that no certificate can have
            raise OSError(str(error)) from None
        raise


def read_certificate(der: bytes) -> ServerCertificate:
    """Validity and name: tbsCertificate is version, serial, algorithm, issuer, validity, subject and more."""
    whole = _Reader(_Reader(der).take(SEQUENCE))
    parts = _Reader(whole.take(SEQUENCE))
    if parts.peek() == VERSION:
        parts.skip()
    for _ in ("serial", "algorithm", "issuer"):
        parts.skip()
    validity = _Reader(parts.take(SEQUENCE))
    begins, ends = _seconds(*validity.next()), _seconds(*validity.next())
    return ServerCertificate(begins, ends, _common_name(parts.take(SEQUENCE)))


class _Reader:
    """Reads one DER value after the other."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def peek(self) -> int:
        """The next value's tag, or -1 at the end."""
        return self._data[self._at] if self._at < len(self._data) else -1

    def next(self) -> tuple[int, bytes]:
        """The next value: tag and content."""
        data, at = self._data, self._at
        if at + 2 > len(data):
            raise ValueError("the certificate is cut")
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            count = length & 0x7F
            if not 1 <= count <= 4 or at + count > len(data):
                raise ValueError("a length in the certificate is wrong")
            length = int.from_bytes(data[at : at + count], "big")
            at += count
        if at + length > len(data):
            raise ValueError("the certificate is cut")
        self._at = at + length
        return tag, data[at : at + length]

    def take(self, tag: int) -> bytes:
        """The content of the next value, which must have this tag."""
        found, content = self.next()
        if found != tag:
            raise ValueError("the certificate has another shape")
        return content

    def skip(self) -> None:
        """Pass over the next value."""
        self.next()


def _seconds(tag: int, content: bytes) -> float:
    """Unix seconds of a time; two digits of a year mean 1950 to 2049."""
    if len(content) != TIMES.get(tag) or content[-1:] != b"Z" or not content[:-1].isdigit():
        raise ValueError("a time in the certificate is wrong")
    text = content[:-1].decode("ascii")
    if tag == UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    year, month, day, hour, minute, second = int(text[:4]), *(int(text[at : at + 2]) for at in range(4, 14, 2))
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61 and year):
        raise ValueError("a time in the certificate is wrong")
    return float(calendar.timegm((year, month, day, hour, minute, second)))


def _common_name(subject: bytes) -> str:
    names = _Reader(subject)
    found = ""
    while names.peek() == SET:
        pair = _Reader(_Reader(names.take(SET)).take(SEQUENCE))
        if pair.take(OBJECT_ID) == COMMON_NAME:
            found = pair.next()[1].decode("utf-8", "replace")
    return found
