"""Pushing metrics to the configured receivers, for as long as the server runs.

An export has at most one batch in flight, and none is stored: a batch that the receiver did not accept within
PUSH_SECONDS is dropped and counted, as is every batch that is due while a failing receiver is paused. An export with an
invalid configuration is logged and shown as down; the other exports and the server go on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from scale0.config import ExportConfig
from scale0.http.metrics.current import CurrentSample
from scale0.http.metrics.sample import ExportHealth
from scale0.http.metrics.senders import (
    PUSH_SECONDS,
    GraphiteSender,
    OtlpSender,
    Sender,
    StatsdSender,
    host_and_port,
    otlp_url,
    public_address,
    read_headers,
)
from scale0.kernel.backoff import Backoff
from scale0.kernel.errors import ConfigError
from scale0.kernel.log_context import about

log = logging.getLogger("scale0.exports")

MAX_EXPORTS: Final = 16
"""Each has a task and a batch of its own."""
MIN_INTERVAL_SECONDS: Final = 1.0
"""Samples are taken at most once a second."""
MAX_BACKOFF_SECONDS: Final = 120.0
"""The longest pause of a failing receiver, unless its interval is longer."""
OTLP_SECONDS: Final = PUSH_SECONDS * 0.8
"""Timeout of OpenTelemetry's exporter with its own retries: it ends before ours."""


class PushInterval:
    """When the batches of one export are due, in seconds of a monotonic clock, and its backoff after failures."""

    def __init__(self, interval: float, health: ExportHealth, rng: random.Random, now: float) -> None:
        self._interval = interval
        self._random = rng
        self._paused_until = -math.inf
        self._backoff = Backoff(interval, max(interval, MAX_BACKOFF_SECONDS))
        self.due = now + self._interval * rng.random()
        """When the next batch is due. The first is at a random time, so that servers that start together do not push
        together."""
        self.health = health

    def take(self, now: float) -> bool:
        """A batch is due: True to send it, False to drop it. Batches that were missed are dropped too."""
        missed = max(0, math.floor((now - self.due) / self._interval))
        self.due += (missed + 1) * self._interval
        is_paused = now < self._paused_until
        self._count(dropped=missed + is_paused)
        return not is_paused

    def sent(self) -> None:
        self._paused_until = -math.inf
        self._backoff.reset()
        self._count(pushed=1, up=True)

    def failed(self, now: float) -> None:
        self._paused_until = now + self._backoff.next() * (0.5 + self._random.random() / 2)
        self._count(failures=1, dropped=1, up=False)

    def _count(self, *, pushed: int = 0, dropped: int = 0, failures: int = 0, up: bool | None = None) -> None:
        was = self.health
        self.health = msgspec.structs.replace(
            was,
            up=was.up if up is None else up,
            pushed=was.pushed + pushed,
            dropped=was.dropped + dropped,
            failures=was.failures + failures,
        )


class Pusher:
    def __init__(
        self,
        sender: Sender,
        interval: PushInterval,
        current: CurrentSample,
        clock: Callable[[], float],
        seconds: float = PUSH_SECONDS,
    ) -> None:
        self._sender = sender
        self._interval = interval
        self._current = current
        self._clock = clock
        self._seconds = seconds

    @property
    def health(self) -> ExportHealth:
        return self._interval.health

    async def run(self) -> None:
        try:
            while True:
                await asyncio.sleep(max(0.0, self._interval.due - self._clock()))
                if self._interval.take(self._clock()) and self._current.broker:
                    await self._push()
        finally:
            self._sender.close()

    async def _push(self) -> None:
        before = self.health
        extra = about(export=before.address, kind=before.kind)
        try:
            await asyncio.wait_for(self._sender.push(self._current), self._seconds)
        except OSError as error:
            self._interval.failed(self._clock())
            if before.up or not before.failures:
                why = "timeout" if isinstance(error, TimeoutError) else error.strerror or str(error)
                log.warning(
                    "%s at %s does not accept metrics; they are dropped: %s",
                    before.kind,
                    before.address,
                    why,
                    extra=extra,
                )
        except Exception:
            self._interval.failed(self._clock())
            if before.up or not before.failures:
                log.exception(
                    "internal error while pushing metrics to %s; please report this traceback",
                    before.address,
                    extra=extra,
                )
        else:
            self._interval.sent()
            if before.failures and not before.up:
                log.warning("%s at %s accepts metrics again", before.kind, before.address, extra=extra)


def open_sender(export: ExportConfig, loop: asyncio.AbstractEventLoop) -> Sender:
    """The sender of one export. ConfigError: its configuration is invalid."""
    if export.kind == "otlp":
        return OtlpSender(otlp_url(export.address), read_headers(export.headers_file), OTLP_SECONDS, loop)
    host, port = host_and_port(export.kind, export.address)
    return (GraphiteSender if export.kind == "graphite" else StatsdSender)(host, port, export.prefix)


@asynccontextmanager
async def exporting(exports: Sequence[ExportConfig], current: CurrentSample) -> AsyncIterator[None]:
    """Push the newest sample to every receiver while the block runs."""
    loop = asyncio.get_running_loop()
    rng = random.Random()
    pushers: list[Pusher] = []
    broken: list[ExportHealth] = []
    for number, export in enumerate(exports):
        address = public_address(export.address)
        try:
            if number >= MAX_EXPORTS:
                raise ConfigError([f"management.exports: more than {MAX_EXPORTS}"])
            sender = open_sender(export, loop)
        except ConfigError as error:
            log.error("cannot export metrics to %s: %s", address, error, extra=about(export=address, kind=export.kind))
            broken.append(ExportHealth(kind=export.kind, address=address, failures=1))
            continue
        seconds = max(export.interval, MIN_INTERVAL_SECONDS)
        interval = PushInterval(seconds, ExportHealth(kind=export.kind, address=address), rng, loop.time())
        pushers.append(Pusher(sender, interval, current, loop.time))
    current.health = lambda: (*broken, *(pusher.health for pusher in pushers))
    tasks = [loop.create_task(pusher.run()) for pusher in pushers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
