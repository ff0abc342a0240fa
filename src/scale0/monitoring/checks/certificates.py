"""TLS as a client: contexts, and the validity and name of a certificate.

The DER parser here reads certificates that OpenSSL does not trust; OpenSSL decides about trust. Invariant: for any
bytes the result is a `ParsedCertificate` or ValueError.
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
"""How long a context is reused: loading all CA certificates is slow, and they change now and then."""

MAX_CA_BYTES: Final = 4 * 1024 * 1024
"""Of a file of CA certificates: those of a whole system have a quarter of a megabyte."""

SEQUENCE: Final = 0x30
SET: Final = 0x31
VERSION: Final = 0xA0
UTC_TIME: Final = 0x17
GENERAL_TIME: Final = 0x18
OBJECT_ID: Final = 0x06
COMMON_NAME: Final = b"\x55\x04\x03"
TIMES: Final = {UTC_TIME: 13, GENERAL_TIME: 15}
"""The length of a time in a certificate, which has seconds and is in UTC."""


class ParsedCertificate(NamedTuple):
    """Validity in Unix seconds, and name."""

    begins: float
    ends: float
    subject: str
    """Its common name, blank if it has none."""


def context_of(verify: bool, ca_file: str, run: CheckRun) -> ssl.SSLContext:
    """A context that trusts the system's CAs, those of a file, or everybody."""
    # By the real path: a file has many names, and a context is large.
    key = ("context", verify, os.path.realpath(ca_file) if ca_file else "")
    cached: tuple[float, ssl.SSLContext] | None = run.states.get(key)
    if cached is not None and time.monotonic() - cached[0] < CONTEXT_SECONDS:
        return cached[1]
    if verify:
        try:
            context = ssl.create_default_context(cadata=read_ca_file(ca_file) if ca_file else None)
        except OSError as error:
            raise CheckFailed(
                UNKNOWN, f"the authorities of {ca_file} cannot be read: {error.strerror or error}"
            ) from None
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    run.states.put(key, (time.monotonic(), context))
    return context


def read_ca_file(path: str) -> str:
    """The text of a file of CA certificates. Raises OSError. Never blocks, as OpenSSL would on a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not a regular file")
        data = file.read(MAX_CA_BYTES + 1)
    if len(data) > MAX_CA_BYTES:
        raise OSError(f"it has more than {MAX_CA_BYTES} bytes")
    text = data.decode("ascii", "ignore")  # names between the certificates may have other letters
    if not text.strip():
        raise OSError("it is empty")  # an empty text would mean the system's own CAs
    return text


def wrap_tls(sock: socket.socket, context: ssl.SSLContext, name: str, run: CheckRun) -> ssl.SSLSocket:
    """TLS over a connection. The timeout applies to the whole handshake. Closes `sock` if it fails."""
    sock.settimeout(run.deadline.left())
    try:
        return context.wrap_socket(sock, server_hostname=name)
    except BaseException as error:
        sock.close()
        if isinstance(error, ValueError) and not isinstance(error, OSError):  # not a valid host name
            raise OSError(str(error)) from None
        raise


def parse_certificate(der: bytes) -> ParsedCertificate:
    """Parse a certificate: tbsCertificate is version, serial, algorithm, issuer, validity, subject and more."""
    whole = _Reader(_Reader(der).take(SEQUENCE))
    parts = _Reader(whole.take(SEQUENCE))
    if parts.peek() == VERSION:
        parts.skip()
    for _ in ("serial", "algorithm", "issuer"):
        parts.skip()
    validity = _Reader(parts.take(SEQUENCE))
    begins, ends = _seconds(*validity.next()), _seconds(*validity.next())
    return ParsedCertificate(begins, ends, _common_name(parts.take(SEQUENCE)))


class _Reader:
    """Reads one DER value after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def peek(self) -> int:
        """The tag of the next value, or -1 at the end."""
        return self._data[self._at] if self._at < len(self._data) else -1

    def next(self) -> tuple[int, bytes]:
        """The tag and the content of the next value."""
        data, at = self._data, self._at
        if at + 2 > len(data):
            raise ValueError("the certificate is truncated")
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            count = length & 0x7F
            if not 1 <= count <= 4 or at + count > len(data):
                raise ValueError("a length in the certificate is wrong")
            length = int.from_bytes(data[at : at + count], "big")
            at += count
        if at + length > len(data):
            raise ValueError("the certificate is truncated")
        self._at = at + length
        return tag, data[at : at + length]

    def take(self, tag: int) -> bytes:
        """The content of the next value, which must have this tag."""
        found, content = self.next()
        if found != tag:
            raise ValueError("the certificate has an unexpected structure")
        return content

    def skip(self) -> None:
        self.next()


def _seconds(tag: int, content: bytes) -> float:
    """Unix seconds of a time; a year of two digits means 1950 to 2049."""
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
