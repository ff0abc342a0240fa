"""Reaching others: addresses, connections, and reading against a deadline.

Lives here: what tcp, http, tls, dns, ntp and ping share. Never here: a protocol. Invariants: no call waits longer than
the run's deadline, name lookups included; whoever cannot be reached is `critical` with the reason, as that is what the
check was to find out.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scale0.monitoring.checks.arguments import Family
from scale0.monitoring.checks.check_run import CheckFailed, CheckRun, Deadline
from scale0.monitoring.protocol.results import CRITICAL

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_ADDRESSES: Final = 8
"""Of one name; more are not tried."""
BLOCK_BYTES: Final = 65_536
"""Read at once."""

FAMILIES: Final = {"any": socket.AF_UNSPEC, "ipv4": socket.AF_INET, "ipv6": socket.AF_INET6}


class Address(NamedTuple):
    """Where to send to."""

    family: socket.AddressFamily
    address: Any


def place(host: str, port: int) -> str:
    """`host:port`, with brackets where a host has colons."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def reaching(what: str) -> Iterator[None]:
    """Whatever goes wrong inside, on the way to `what`, is critical, with a short reason."""
    try:
        yield
    except TimeoutError:
        raise CheckFailed(CRITICAL, f"{what}: no answer in time") from None
    except ssl.SSLError as error:
        raise CheckFailed(CRITICAL, f"{what}: {tls_reason(error)}") from None
    except OSError as error:
        raise CheckFailed(CRITICAL, f"{what}: {reason(error)}") from None


def reason(error: OSError) -> str:
    """What the system says, without its numbers."""
    text = error.strerror or str(error) or type(error).__name__
    return text[:1].lower() + text[1:]


def tls_reason(error: ssl.SSLError) -> str:
    """What is wrong with the other side's TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not good: {error.verify_message}"
    return f"TLS failed: {(error.reason or str(error)).replace('_', ' ').lower()}"


def addresses(host: str, port: int, kind: socket.SocketKind, family: Family, run: CheckRun) -> list[Address]:
    """The addresses of a name, in the system's order; a lookup that hangs is given up at the deadline."""
    wanted = FAMILIES[family]
    look_up = partial(socket.getaddrinfo, host, port, wanted, kind)
    try:
        try:
            found = look_up(flags=socket.AI_NUMERICHOST)  # never asks anybody
        except socket.gaierror:
            found = run.aside.call(("lookup", host, port, kind, wanted), look_up, run.deadline.left())
    except socket.gaierror as error:
        raise CheckFailed(CRITICAL, f"{host}: the name has no address: {reason(error)}") from None
    except UnicodeError:
        raise CheckFailed(CRITICAL, f"{host}: this is no host name") from None
    return [Address(family_, address) for family_, _, _, _, address in found[:MAX_ADDRESSES]]


def dial(host: str, port: int, family: Family, run: CheckRun) -> socket.socket:
    """A TCP connection to the first address that answers; each gets its share of the time that is left."""
    found = addresses(host, port, socket.SOCK_STREAM, family, run)
    last: OSError = OSError("the name has no address")
    for number, one in enumerate(found):
        sock = socket.socket(one.family, socket.SOCK_STREAM)
        try:
            sock.settimeout(run.deadline.left() / (len(found) - number))
            sock.connect(one.address)
        except OSError as error:
            sock.close()
            last = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise last


class SocketStream:
    """A connection that is read and written against a deadline, however slowly the other side drips."""

    __slots__ = ("_buffer", "_deadline", "_ended", "_sock")

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline
        self._buffer = bytearray()
        self._ended = False

    def sendall(self, data: Any) -> None:
        """Send everything. The system counts this timeout over all of it."""
        self._sock.settimeout(self._deadline.left())
        self._sock.sendall(data)

    def more(self) -> bytes:
        """What comes next, of whatever length; nothing at the end."""
        if self._buffer:
            data = bytes(self._buffer)
            self._buffer.clear()
            return data
        return self._receive()

    def read(self, amount: int) -> bytes:
        """Exactly so many bytes, fewer only at the end. http.client takes a chunk of -1 bytes for all that comes."""
        if amount < 0:
            raise OSError("the answer has a length below zero")
        while len(self._buffer) < amount and (data := self._receive()):
            self._buffer += data
        return self._take(amount)

    def readline(self, limit: int) -> bytes:
        """A line with its end, or `limit` bytes of it."""
        looked = 0
        while (end := self._buffer.find(b"\n", looked, limit)) < 0 and len(self._buffer) < limit:
            looked = len(self._buffer)
            data = self._receive()
            if not data:
                break
            self._buffer += data
        return self._take(min(limit, len(self._buffer)) if end < 0 else end + 1)

    def makefile(self, _mode: str) -> SocketStream:
        """Itself: this is what http.client reads from."""
        return self

    def flush(self) -> None:
        """There is nothing to flush."""

    def close(self) -> None:
        """The socket belongs to whoever opened it."""

    def _take(self, amount: int) -> bytes:
        data = bytes(self._buffer[:amount])
        del self._buffer[:amount]
        return data

    def _receive(self) -> bytes:
        if self._ended:
            return b""
        self._sock.settimeout(self._deadline.left())
        data = self._sock.recv(BLOCK_BYTES)
        self._ended = not data
        return data
