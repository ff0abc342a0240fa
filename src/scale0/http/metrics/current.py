"""The newest sample, and the metrics and texts made from it.

All formatting runs in one thread, one call after the other: so the event loop is not blocked, and no lock is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from scale0.http.metrics.model import LabelLimit, Metric, metrics_of
from scale0.http.metrics.prometheus import encoded
from scale0.http.metrics.sample import ExportHealth, NetworkSample
from scale0.kernel.edge.thread_pool import ThreadPool

Value = TypeVar("Value")

NO_SAMPLE: Final = NetworkSample(time=0.0)
"""Before the first sample."""


class CurrentSample:
    """The newest sample, for the route `/metrics` and the exports."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPool(1, loop)
        self._limit = LabelLimit()
        self.sample = NO_SAMPLE
        self.broker = ""
        """The identity of the broker, once it has answered."""
        self.health: Callable[[], tuple[ExportHealth, ...]] = tuple
        """The counters of the exports; `exporting` sets it."""
        self._metrics_sample: NetworkSample | None = None
        self._metrics: tuple[Metric, ...] = ()
        self._texts: dict[bool, bytes] = {}

    def put(self, sample: NetworkSample) -> None:
        self.sample = msgspec.structs.replace(sample, exports=self.health())
        self.broker = sample.broker or self.broker

    async def metrics(self) -> tuple[Metric, ...]:
        sample = self.sample
        return await self.in_thread(lambda: self._metrics_of(sample))

    async def text(self, as_openmetrics: bool) -> bytes:
        sample = self.sample
        return await self.in_thread(lambda: self._encoded(sample, as_openmetrics))

    async def in_thread(self, work: Callable[[], Value]) -> Value:
        return await in_thread(self._threads, self._loop, work)

    def _metrics_of(self, sample: NetworkSample) -> tuple[Metric, ...]:
        if self._metrics_sample is not sample:
            self._metrics, self._texts = metrics_of(sample, self._limit), {}
            self._metrics_sample = sample
        return self._metrics

    def _encoded(self, sample: NetworkSample, as_openmetrics: bool) -> bytes:
        metrics = self._metrics_of(sample)
        if as_openmetrics not in self._texts:
            self._texts[as_openmetrics] = encoded(metrics, as_openmetrics)
        return self._texts[as_openmetrics]


async def in_thread(threads: ThreadPool, loop: asyncio.AbstractEventLoop, work: Callable[[], Value]) -> Value:
    result: asyncio.Future[Value] = loop.create_future()

    def done(value: Any, error: BaseException | None) -> None:
        if result.done():
            return
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    threads.do(work, done)
    return await result
