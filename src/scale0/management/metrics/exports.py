"""Exports: all receivers of a configuration, started with the server and ended with it.

Lives here: composition. Never here: a wire, or when to send. Invariant: an export that cannot be started is told when
the server starts, with what to do, before anything is sent.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from scale0.base.errors import ConfigError
from scale0.config.broker_file import Export
from scale0.management.metrics.current import Current
from scale0.management.metrics.places import host_and_port, otlp_url, read_headers, shown
from scale0.management.metrics.pushing import Pace, Pusher
from scale0.management.metrics.sample import Health
from scale0.management.metrics.senders import PUSH_SECONDS, GraphiteSender, OtlpSender, Sender, StatsdSender

MAX_EXPORTS: Final = 16
"""Each has a task and a batch of its own."""

MIN_INTERVAL_SECONDS: Final = 1.0
"""Samples are taken once a second: there is nothing newer."""
OTLP_SECONDS: Final = PUSH_SECONDS * 0.8
"""What OpenTelemetry's exporter may take, with its own retries: it gives up before we do."""


def open_sender(export: Export, loop: asyncio.AbstractEventLoop) -> Sender:
    """The wire of one export. ConfigError: it cannot be."""
    if export.kind == "otlp":
        return OtlpSender(otlp_url(export.address), read_headers(export.headers_file), OTLP_SECONDS, loop)
    host, port = host_and_port(export.kind, export.address)
    return (GraphiteSender if export.kind == "graphite" else StatsdSender)(host, port, export.prefix)


@asynccontextmanager
async def exporting(exports: Sequence[Export], current: Current) -> AsyncIterator[None]:
    """Push the newest sample to everybody, as long as the block runs."""
    if len(exports) > MAX_EXPORTS:
        raise ConfigError([f"management.exports: more than {MAX_EXPORTS}"])
    loop = asyncio.get_running_loop()
    chance = random.Random()
    pushers: list[Pusher] = []
    for export in exports:
        health = Health(kind=export.kind, address=shown(export.address))
        pace = Pace(max(export.interval, MIN_INTERVAL_SECONDS), health, chance, loop.time())
        pushers.append(Pusher(open_sender(export, loop), pace, current, loop.time))
    current.health = lambda: tuple(pusher.health for pusher in pushers)
    tasks = [loop.create_task(pusher.run()) for pusher in pushers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
