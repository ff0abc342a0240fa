"""Senders of a batch of metrics by Graphite, StatsD and OTLP, and the addresses and headers of their receivers.

If `push` does not raise, the receiver has the batch, as far as the protocol can tell. The values of a lost batch are in
the differences of the next one. A message never contains a header, or the password of a URL.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from scale0.http.metrics import otlp
from scale0.http.metrics.current import CurrentSample, in_thread
from scale0.http.metrics.line_protocols import datagrams, graphite_lines, statsd_lines
from scale0.http.metrics.model import Metric, PreviousValues, previous_values
from scale0.kernel.edge.thread_pool import ThreadPool
from scale0.kernel.errors import ConfigError

PUSH_SECONDS: Final = 5.0
"""Timeout of one batch."""
START_SLACK_SECONDS: Final = 5.0
"""A start time that differs by more than this is another start of the broker."""
BURST: Final = 20
"""Datagrams that are sent before the event loop continues."""
FULL_SECONDS: Final = 0.005
"""Pause before a full socket is tried again."""
DEFAULT_PORTS: Final = {"graphite": 2003, "statsd": 8125}
OTLP_PATH: Final = "/v1/metrics"
MAX_PORT_DIGITS: Final = 5
MAX_PORT: Final = 65_535
MAX_HEADERS_BYTES: Final = 65_536
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Sender(Protocol):
    async def push(self, current: CurrentSample) -> None:
        """Send the newest metrics. OSError: the receiver did not accept them."""

    def close(self) -> None:
        """Release the socket or thread."""


class GraphiteSender:
    """Lines over a TCP connection per batch; the receiver closes it once it has read everything."""

    def __init__(self, host: str, port: int, prefix: str) -> None:
        self._address = (host, port)
        self._prefix = prefix
        self._before = PreviousValues()

    async def push(self, current: CurrentSample) -> None:
        metrics, time, before = await current.metrics(), current.sample.time, self._before

        def make() -> tuple[bytes, PreviousValues]:
            lines = graphite_lines(metrics, before, self._prefix, current.broker, time)
            return "".join(f"{line}\n" for line in lines).encode("ascii"), previous_values(metrics)

        batch, now = await current.in_thread(make)
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            writer.transport.set_write_buffer_limits(high=0)
            writer.write(batch)
            await writer.drain()
            writer.write_eof()
            # The kernel accepts data that the receiver never reads. A receiver that closes has read all of it.
            while await reader.read(4_096):
                pass
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        self._before = now

    def close(self) -> None:
        """There is nothing to release."""


class StatsdSender:
    """Datagrams: the only error that can be detected is a closed port."""

    def __init__(self, host: str, port: int, prefix: str) -> None:
        self._address = (host, port)
        self._prefix = prefix
        self._before = PreviousValues()
        self._socket: socket.socket | None = None

    async def push(self, current: CurrentSample) -> None:
        metrics, before = await current.metrics(), self._before

        def make() -> tuple[list[bytes], PreviousValues]:
            lines = statsd_lines(metrics, before, self._prefix, current.broker)
            return list(datagrams(lines)), previous_values(metrics)

        batch, now = await current.in_thread(make)
        try:
            await self._send(batch)
        except OSError:
            self.close()  # the host name may have another address by now
            raise
        self._before = now

    async def _send(self, batch: list[bytes]) -> None:
        if self._socket is None:
            self._socket = await self._open()
        for number, datagram in enumerate(batch, start=1):
            while True:
                try:
                    self._socket.send(datagram)
                    break
                except BlockingIOError:
                    await asyncio.sleep(FULL_SECONDS)
            if number % BURST == 0:
                await asyncio.sleep(0)
        if error := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, "the port is closed")

    async def _open(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(*self._address, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        opened = socket.socket(family, kind, protocol)
        opened.setblocking(False)
        try:
            opened.connect(address)  # sets the destination of a datagram socket; it does not block
        except OSError:
            opened.close()
            raise
        return opened

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class OtlpSender:
    """OpenTelemetry's exporter, in a thread, because it blocks."""

    def __init__(self, url: str, headers: Mapping[str, str], seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPool(1, loop)
        self._export, self._shutdown = otlp.open_exporter(url, headers, seconds)
        self._busy = False
        self._start = 0.0
        self._group = ""

    async def push(self, current: CurrentSample) -> None:
        if self._busy:
            raise OSError("the receiver has not answered the previous batch yet")
        metrics = await current.metrics()
        status, time = current.sample.status, current.sample.time
        if status:
            self._group = str(status.get("group", ""))
            start = time - float(status.get("uptime", 0.0))
            # A new start time means that all counters were reset: it must not change with the rounding of two clocks.
            if abs(start - self._start) > START_SLACK_SECONDS:
                self._start = start
        source = otlp.OtlpResource(current.broker, self._group, self._start or time, time)
        self._busy = True
        if not await in_thread(self._threads, self._loop, lambda: self._send(metrics, source)):
            raise OSError("the receiver did not accept the batch")

    def _send(self, metrics: tuple[Metric, ...], source: otlp.OtlpResource) -> bool:
        try:
            return self._export(metrics, source)
        finally:
            self._busy = False

    def close(self) -> None:
        # In the thread, because it waits for the batch in flight.
        self._threads.do(self._shutdown, lambda _value, _error: None)


def host_and_port(kind: str, address: str) -> tuple[str, int]:
    """The host and port of `HOST`, `HOST:PORT` or `[HOST]:PORT`. ConfigError: the address has another form."""
    host, colon, port = address.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):
        host, port = address, str(DEFAULT_PORTS[kind])
    good = port.isascii() and port.isdigit() and len(port) <= MAX_PORT_DIGITS and 0 < int(port) <= MAX_PORT
    host = host.removeprefix("[").removesuffix("]")
    if not (host and good and host.isprintable() and " " not in host and "/" not in host):
        raise ConfigError([f"management.exports: {public_address(address)} is not HOST:PORT"])
    return host, int(port)


def otlp_url(address: str) -> str:
    """The URL of the receiver, with the default path if it has none."""
    url = urlsplit(address if "://" in address else f"http://{address}")
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError([f"management.exports: {public_address(address)} is not a URL such as http://127.0.0.1:4318"])
    return url._replace(path=OTLP_PATH).geturl() if url.path in ("", "/") else url.geturl()


def public_address(address: str) -> str:
    """An address for logs and labels: without user, password and query."""
    start, scheme, rest = address.rpartition("://")
    authority, slash, path = rest.partition("/")
    return f"{start}{scheme}{authority.rpartition('@')[2]}{slash}{path.partition('?')[0]}"


def read_headers(path: str) -> dict[str, str]:
    """The headers of a file of `Name: value` lines; blank lines and lines that start with `#` are ignored."""
    if not path:
        return {}
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_HEADERS_BYTES + 1).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "the file is not ASCII"
        raise ConfigError([f"management.exports: headers_file {path}: {why}"]) from None
    if len(text) > MAX_HEADERS_BYTES:
        raise ConfigError([f"management.exports: headers_file {path}: the file exceeds {MAX_HEADERS_BYTES} bytes"])
    headers: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if not colon or not _HEADER_NAME.fullmatch(name) or not value.strip().isprintable():
            raise ConfigError([f"management.exports: headers_file {path}: line {number} is not `Name: value`"])
        headers[name] = value.strip()
    return headers
