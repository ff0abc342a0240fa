"""The sampler: how the broker does, second by second.

Lives here: a loop that looks once per SAMPLE_SECONDS, and what it saw last. Never here: anything on a disk, or a look
that a reader causes: readers cost the broker nothing here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

from scale0.http.network import PAGE_ROWS, BrokerClient
from scale0.http.problem import ApiProblem
from scale0.http.ring_buffers import RingBuffers
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.edge.log_setup import now_called
from scale0.kernel.log_context import about

SAMPLE_SECONDS: Final = 1.0

_LOG: Final = logging.getLogger("scale0.http")

Row = dict[str, Any]


class RateSample(NamedTuple):
    """One look."""

    wall: float
    status: Row
    rates: list[Row]
    """Of `list_rates`: since the broker's start."""
    services: list[Row]


class Sampler:
    """The last five minutes."""

    def __init__(self, network: BrokerClient) -> None:
        self._network = network
        self._rings = RingBuffers()
        self.seen: RateSample | None = None
        """The last look that succeeded."""
        self.trouble: ApiProblem | None = None
        """Why the last look failed; None: it did not."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While this is open, it looks."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def rates(self, service: str | None = None) -> Row:
        """Per second, over the last ten; of all together without a name."""
        return self._rings.rates(service)

    def series(self, service: str | None = None) -> Row:
        """Second by second, over the last five minutes."""
        return self._rings.series(service)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            try:
                await self._look()
            except Exception:  # a mistake of ours in one look must not end all others
                _LOG.exception("a look at the broker failed", extra=about())
            due = max(due + SAMPLE_SECONDS, loop.time())
            await asyncio.sleep(due - loop.time())

    async def _look(self) -> None:
        try:
            status = await self._network.local("status")
            rates = await self._network.local("list_rates", limit=PAGE_ROWS)
            services = await self._network.local("list_services", limit=PAGE_ROWS)
        except ApiProblem as problem:
            if self.trouble is None:
                _LOG.warning("the broker cannot be looked at: %s", problem.message, extra=about())
            self.trouble = problem
            self._rings.gap(read_now().wall)
            return
        if self.trouble is not None:
            _LOG.info("the broker answers again", extra=about())
        self.trouble = None
        if self.seen is None:
            now_called(f"{status['broker']}/management")
        now = read_now()
        self.seen = RateSample(now.wall, status, rates["items"], services["items"])
        self._rings.add(now.wall, now.mono, status, rates["items"], services["items"])
