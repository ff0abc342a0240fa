"""Senders: one batch of metrics on its wire.

Lives here: sockets and threads of the three wires. Never here: when to send, or what becomes of a batch that did not
get through. Invariants: nothing waits in the loop's thread; a batch that `push` does not raise for was taken, as far as
its wire can tell; what was lost is in the differences of the next batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from typing import Final, Protocol

from scale0.http.metrics import graphite, otlp, statsd
from scale0.http.metrics.current import CurrentSample, beside
from scale0.http.metrics.deltas import PreviousValues, remembered
from scale0.http.metrics.model import Metric
from scale0.kernel.edge.thread_pool import ThreadPool

PUSH_SECONDS: Final = 5.0
"""How long a receiver may take for a batch."""
START_SLACK_SECONDS: Final = 5.0
"""A broker that started so much later is another one."""
BURST: Final = 20
"""Datagrams sent before others have their turn."""
FULL_SECONDS: Final = 0.005
"""A socket that takes nothing now is tried again after so long."""


class Sender(Protocol):
    """One wire to one receiver."""

    async def push(self, current: CurrentSample) -> None:
        """Send the newest metrics. OSError: they were not taken."""

    def close(self) -> None:
        """Let go."""


class GraphiteSender:
    """Lines over a TCP connection that is made for each batch, and that the receiver ends once it has read all."""

    def __init__(self, host: str, port: int, prefix: str) -> None:
        self._place = (host, port)
        self._prefix = prefix
        self._before = PreviousValues()

    async def push(self, current: CurrentSample) -> None:
        metrics, time, before = await current.metrics(), current.sample.time, self._before

        def make() -> tuple[bytes, PreviousValues]:
            made = graphite.lines(metrics, before, self._prefix, current.broker, time)
            return "".join(f"{line}\n" for line in made).encode("ascii"), remembered(metrics)

        batch, now = await current.beside(make)
        reader, writer = await asyncio.open_connection(*self._place)
        try:
            writer.transport.set_write_buffer_limits(high=0)
            writer.write(batch)
            await writer.drain()
            writer.write_eof()
            # A kernel takes what nobody reads. Who closes after us has read all of it.
            while await reader.read(4_096):
                pass
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        self._before = now

    def close(self) -> None:
        """Nothing stays open."""


class StatsdSender:
    """Datagrams; all that can be known is that nobody listens there."""

    def __init__(self, host: str, port: int, prefix: str) -> None:
        self._place = (host, port)
        self._prefix = prefix
        self._before = PreviousValues()
        self._socket: socket.socket | None = None

    async def push(self, current: CurrentSample) -> None:
        metrics, before = await current.metrics(), self._before

        def make() -> tuple[list[bytes], PreviousValues]:
            made = statsd.lines(metrics, before, self._prefix, current.broker)
            return list(statsd.datagrams(made)), remembered(metrics)

        batch, now = await current.beside(make)
        try:
            await self._send(batch)
        except OSError:
            self.close()  # its name may mean another machine by now
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
            raise OSError(error, "nobody listens there")

    async def _open(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(*self._place, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        try:
            made.connect(address)  # of a datagram socket this only says where to: it never waits
        except OSError:
            made.close()
            raise
        return made

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class OtlpSender:
    """OpenTelemetry's own exporter, in a thread: it waits for answers."""

    def __init__(self, url: str, headers: Mapping[str, str], seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPool(1, loop)
        self._export, self._shutdown = otlp.open_exporter(url, headers, seconds)
        self._busy = False
        self._start = 0.0
        self._group = ""

    async def push(self, current: CurrentSample) -> None:
        if self._busy:
            raise OSError("the receiver has not answered the last batch yet")
        metrics = await current.metrics()
        status, time = current.sample.status, current.sample.time
        if status:
            self._group = str(status.get("group", ""))
            start = time - float(status.get("uptime", 0.0))
            # Another start means that all counters began anew: it must not change with the rounding of two clocks.
            if abs(start - self._start) > START_SLACK_SECONDS:
                self._start = start
        about = otlp.OtlpResource(current.broker, self._group, self._start or time, time)
        self._busy = True
        if not await beside(self._threads, self._loop, lambda: self._send(metrics, about)):
            raise OSError("the receiver did not take it")

    def _send(self, metrics: tuple[Metric, ...], about: otlp.OtlpResource) -> bool:
        try:
            return self._export(metrics, about)
        finally:
            self._busy = False

    def close(self) -> None:
        # In a thread: it waits for what is under way.
        self._threads.do(self._shutdown, lambda _value, _error: None)
