"""Exports: all receivers of a configuration, started with the server and ended with it.

Lives here: composition. Never here: a wire, or when to send. Invariant: an export that cannot be started is told when
the server starts, with what to do, and shown as down; it costs neither the other exports nor the server.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from scale0.config import ExportConfig
from scale0.http.metrics.current import CurrentSample
from scale0.http.metrics.destinations import host_and_port, otlp_url, read_headers, shown
from scale0.http.metrics.push import Pusher, PushInterval
from scale0.http.metrics.sample import ExportHealth
from scale0.http.metrics.senders import PUSH_SECONDS, GraphiteSender, OtlpSender, Sender, StatsdSender
from scale0.kernel.errors import ConfigError
from scale0.kernel.log_context import about

log = logging.getLogger("scale0.exports")

MAX_EXPORTS: Final = 16
"""Each has a task and a batch of its own."""

MIN_INTERVAL_SECONDS: Final = 1.0
"""Samples are taken once a second: there is nothing newer."""
OTLP_SECONDS: Final = PUSH_SECONDS * 0.8
"""What OpenTelemetry's exporter may take, with its own retries: it gives up before we do."""


def open_sender(export: ExportConfig, loop: asyncio.AbstractEventLoop) -> Sender:
    """The wire of one export. ConfigError: it cannot be."""
    if export.kind == "otlp":
        return OtlpSender(otlp_url(export.address), read_headers(export.headers_file), OTLP_SECONDS, loop)
    host, port = host_and_port(export.kind, export.address)
    return (GraphiteSender if export.kind == "graphite" else StatsdSender)(host, port, export.prefix)


@asynccontextmanager
async def exporting(exports: Sequence[ExportConfig], current: CurrentSample) -> AsyncIterator[None]:
    """Push the newest sample to everybody, as long as the block runs."""
    loop = asyncio.get_running_loop()
    chance = random.Random()
    pushers: list[Pusher] = []
    broken: list[ExportHealth] = []
    for number, export in enumerate(exports):
        place = shown(export.address)
        try:
            if number >= MAX_EXPORTS:
                raise ConfigError([f"management.exports: more than {MAX_EXPORTS}"])
            sender = open_sender(export, loop)
        except ConfigError as error:
            log.error("%s gets no metrics: %s", place, error, extra=about(export=place, kind=export.kind))
            broken.append(ExportHealth(kind=export.kind, address=place, failures=1))
            continue
        interval = max(export.interval, MIN_INTERVAL_SECONDS)
        pace = PushInterval(interval, ExportHealth(kind=export.kind, address=place), chance, loop.time())
        pushers.append(Pusher(sender, pace, current, loop.time))
    current.health = lambda: (*broken, *(pusher.health for pusher in pushers))
    tasks = [loop.create_task(pusher.run()) for pusher in pushers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
