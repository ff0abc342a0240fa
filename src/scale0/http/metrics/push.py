"""Pushing: when a batch goes to a receiver, and what becomes of it if it does not get there.

Lives here: `PushInterval`, which decides, and `Pusher`, the task that does. Never here: a wire. Invariants: there is at
most one batch at a time, and none is kept: what did not get through in PUSH_SECONDS is dropped and counted, as is every
batch whose time comes while a receiver is left alone; a receiver that fails is asked less and less often.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from random import Random
from typing import Final

from scale0.http.metrics.current import CurrentSample
from scale0.http.metrics.sample import ExportHealth
from scale0.http.metrics.senders import PUSH_SECONDS, Sender
from scale0.kernel.log_context import about

log = logging.getLogger("scale0.exports")

MAX_BACKOFF_SECONDS: Final = 120.0
"""How long a receiver that fails is left alone at most; longer only if its interval is."""
MAX_DOUBLINGS: Final = 16


class PushInterval:
    """The times of one export, in seconds of any clock that never goes back. Batches are due at each interval."""

    __slots__ = ("_chance", "_interval", "_rest_until", "_row", "due", "health")

    def __init__(self, interval: float, health: ExportHealth, chance: Random, now: float) -> None:
        self._interval = interval
        self._chance = chance
        self._rest_until = -math.inf
        self._row = 0
        """Failures in a row."""
        self.due = now + self._interval * chance.random()
        """When the next batch is due: many servers that start at once do not come at once."""
        self.health = health

    def take(self, now: float) -> bool:
        """A batch is due: True if it is to be sent now, False if it is dropped. Missed ones are dropped, too."""
        missed = max(0, math.floor((now - self.due) / self._interval))
        self.due += (missed + 1) * self._interval
        resting = now < self._rest_until
        self._count(dropped=missed + resting)
        return not resting

    def sent(self) -> None:
        """It got there."""
        self._row, self._rest_until = 0, -math.inf
        self._count(pushed=1, up=True)

    def failed(self, now: float) -> None:
        """It did not."""
        self._row += 1
        longest = max(self._interval, MAX_BACKOFF_SECONDS)
        wait = min(longest, self._interval * 2.0 ** min(self._row - 1, MAX_DOUBLINGS))
        self._rest_until = now + wait * (0.5 + self._chance.random() / 2)
        self._count(failures=1, dropped=1, up=False)

    def _count(self, *, pushed: int = 0, dropped: int = 0, failures: int = 0, up: bool | None = None) -> None:
        was = self.health
        self.health = ExportHealth(
            kind=was.kind,
            address=was.address,
            up=was.up if up is None else up,
            pushed=was.pushed + pushed,
            dropped=was.dropped + dropped,
            failures=was.failures + failures,
        )


class Pusher:
    """One export at work."""

    def __init__(
        self,
        sender: Sender,
        pace: PushInterval,
        current: CurrentSample,
        clock: Callable[[], float],
        seconds: float = PUSH_SECONDS,
    ) -> None:
        self._sender = sender
        self._pace = pace
        self._current = current
        self._clock = clock
        self._seconds = seconds

    @property
    def health(self) -> ExportHealth:
        """How it fares."""
        return self._pace.health

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                await asyncio.sleep(max(0.0, self._pace.due - self._clock()))
                if self._pace.take(self._clock()) and self._current.broker:
                    await self._push()
        finally:
            self._sender.close()

    async def _push(self) -> None:
        before = self.health
        place = about(export=before.address, kind=before.kind)
        try:
            await asyncio.wait_for(self._sender.push(self._current), self._seconds)
        except OSError as error:
            self._pace.failed(self._clock())
            if before.up or not before.failures:
                why = "it took too long" if isinstance(error, TimeoutError) else error.strerror or str(error)
                log.warning(
                    "%s at %s takes no metrics, they are dropped: %s", before.kind, before.address, why, extra=place
                )
        except Exception:
            self._pace.failed(self._clock())
            if before.up or not before.failures:
                log.exception("metrics for %s were too much for us: please report this", before.address, extra=place)
        else:
            self._pace.sent()
            if before.failures and not before.up:
                log.warning("%s at %s takes metrics again", before.kind, before.address, extra=place)
