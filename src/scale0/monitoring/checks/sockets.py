"""Network access for the checks tcp, http, tls, dns, ntp and ping: addresses, connections, reading with a deadline.

Invariants: no call waits longer than the run's deadline, including name lookups; a host that cannot be reached is
`critical` with the reason, because that is what the check is to find out.
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

FAMILIES: Final = {"any": socket.AF_UNSPEC, "ipv4": socket.AF_INET, "ipv6": socket.AF_INET6}


class ResolvedAddress(NamedTuple):
    family: socket.AddressFamily
    address: Any


def host_port(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def connection_errors(what: str) -> Iterator[None]:
    """Turn a network error into a critical CheckFailed for `what`, with a short reason."""
    try:
        yield
    except TimeoutError:
        raise CheckFailed(CRITICAL, f"{what}: no answer in time") from None
    except ssl.SSLError as error:
        raise CheckFailed(CRITICAL, f"{what}: {tls_reason(error)}") from None
    except OSError as error:
        raise CheckFailed(CRITICAL, f"{what}: {error_reason(error)}") from None


def error_reason(error: OSError) -> str:
    """The system's message, without its number."""
    text = error.strerror or str(error) or type(error).__name__
    return text[:1].lower() + text[1:]


def tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not good: {error.verify_message}"
    return f"TLS failed: {(error.reason or str(error)).replace('_', ' ').lower()}"


def resolve(host: str, port: int, kind: socket.SocketKind, family: Family, run: CheckRun) -> list[ResolvedAddress]:
    """The addresses of a name, in the system's order; a lookup that hangs is given up at the deadline."""
    wanted = FAMILIES[family]
    look_up = partial(socket.getaddrinfo, host, port, wanted, kind)
    try:
        try:
            found = look_up(flags=socket.AI_NUMERICHOST)  # needs no name server
        except socket.gaierror:
            found = run.blocking_calls.call(("lookup", host, port, kind, wanted), look_up, run.deadline.left())
    except socket.gaierror as error:
        raise CheckFailed(CRITICAL, f"{host}: the name has no address: {error_reason(error)}") from None
    except UnicodeError:
        raise CheckFailed(CRITICAL, f"{host}: this is not a host name") from None
    return [ResolvedAddress(family_, address) for family_, _, _, _, address in found[:MAX_ADDRESSES]]


def connect(host: str, port: int, family: Family, run: CheckRun) -> socket.socket:
    """A TCP connection to the first address that answers; each gets an equal share of the time that is left."""
    found = resolve(host, port, socket.SOCK_STREAM, family, run)
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
    """A connection that is read and written with one deadline, however slowly the other side sends."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline
        self._buffer = bytearray()
        self._ended = False

    def sendall(self, data: Any) -> None:
        self._sock.settimeout(self._deadline.left())
        self._sock.sendall(data)

    def more(self) -> bytes:
        """The next bytes, of any length; empty at the end."""
        if self._buffer:
            data = bytes(self._buffer)
            self._buffer.clear()
            return data
        return self._receive()

    def read(self, amount: int) -> bytes:
        """Exactly this many bytes, fewer only at the end. For http.client a chunk of -1 bytes would mean everything."""
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
        """Returns itself, because http.client reads from the result."""
        return self

    def flush(self) -> None: ...

    def close(self) -> None:
        """Does nothing: the caller closes the socket."""

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
