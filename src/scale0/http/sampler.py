"""Samples the broker once per second. Readers get the stored samples, so they cost the broker nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final

from scale0.client.admin.helens import PAGE_ROWS
from scale0.http.broker_client import BrokerClient
from scale0.http.problem import ApiProblem
from scale0.http.ring_buffers import RingBuffers
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.edge.log_setup import set_process_name
from scale0.kernel.log_context import about

SAMPLE_SECONDS: Final = 1.0

_LOG: Final = logging.getLogger("scale0.http")

Row = dict[str, Any]


@asynccontextmanager
async def background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `work` while the block runs, and cancel it at the end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Sampler:
    def __init__(self, broker: BrokerClient) -> None:
        self._broker = broker
        self._rings = RingBuffers()
        self._is_named = False
        self._is_failing = False

    def running(self) -> AbstractAsyncContextManager[None]:
        """Take samples while the block runs."""
        return background(self._run())

    def rates(self, service: str | None = None) -> Row:
        """Per second, over the last ten seconds; without a name, of all services together."""
        return self._rings.rates(service)

    def series(self, service: str | None = None) -> Row:
        """Second by second, over the last five minutes."""
        return self._rings.series(service)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            try:
                await self._sample()
            except Exception:
                _LOG.exception("internal error while sampling the broker; please report this traceback", extra=about())
            due = max(due + SAMPLE_SECONDS, loop.time())
            await asyncio.sleep(due - loop.time())

    async def _sample(self) -> None:
        try:
            status = await self._broker.local("status")
            rates = await self._broker.local_rows("list_rates", PAGE_ROWS)
            services = await self._broker.local_rows("list_services", PAGE_ROWS)
        except ApiProblem as problem:
            if not self._is_failing:
                _LOG.warning("the broker does not answer: %s", problem.message, extra=about())
            self._is_failing = True
            self._rings.gap(read_now().wall)
            return
        if self._is_failing:
            _LOG.info("the broker answers again", extra=about())
        self._is_failing = False
        if not self._is_named:
            set_process_name(f"{status['broker']}/management")
            self._is_named = True
        now = read_now()
        self._rings.add(now.wall, now.mono, status, rates, services)
