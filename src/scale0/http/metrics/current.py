"""The current sample, and what is made of it: once, and beside the loop.

Lives here: `CurrentSample`. Never here: taking samples, or what a metric is called. Invariant: all that is made of
samples is made in one thread, in turn, so that the loop goes on and nothing needs a lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from scale0.http.metrics.cardinality import LabelLimit
from scale0.http.metrics.model import Metric, metrics_of
from scale0.http.metrics.prometheus import written
from scale0.http.metrics.sample import ExportHealth, NetworkSample
from scale0.kernel.edge.thread_pool import ThreadPool

Value = TypeVar("Value")

NOTHING: Final = NetworkSample(time=0.0)
"""Before the first sample: the broker has not answered yet."""


class CurrentSample:
    """The newest sample; everybody who tells others of it asks here."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPool(1, loop)
        self._fold = LabelLimit()
        self.sample = NOTHING
        self.broker = ""
        """The identity of the broker, once it has answered; kept while it does not."""
        self.health: Callable[[], tuple[ExportHealth, ...]] = tuple
        """How the exports fare; who starts them says so."""
        self._made_of: NetworkSample | None = None
        self._metrics: tuple[Metric, ...] = ()
        self._texts: dict[bool, bytes] = {}

    def put(self, sample: NetworkSample) -> None:
        """A newer one."""
        self.sample = msgspec.structs.replace(sample, exports=self.health())
        self.broker = sample.broker or self.broker

    async def metrics(self) -> tuple[Metric, ...]:
        """All metrics of the newest sample."""
        sample = self.sample
        return await self.beside(lambda: self._of(sample))

    async def text(self, as_openmetrics: bool) -> bytes:
        """The same for Prometheus."""
        sample = self.sample
        return await self.beside(lambda: self._written(sample, as_openmetrics))

    async def beside(self, work: Callable[[], Value]) -> Value:
        """Have something made in that thread."""
        return await beside(self._threads, self._loop, work)

    def _of(self, sample: NetworkSample) -> tuple[Metric, ...]:
        if self._made_of is not sample:
            self._metrics, self._texts = metrics_of(sample, self._fold), {}
            self._made_of = sample
        return self._metrics

    def _written(self, sample: NetworkSample, as_openmetrics: bool) -> bytes:
        metrics = self._of(sample)
        if as_openmetrics not in self._texts:
            self._texts[as_openmetrics] = written(metrics, as_openmetrics)
        return self._texts[as_openmetrics]


async def beside(threads: ThreadPool, loop: asyncio.AbstractEventLoop, work: Callable[[], Value]) -> Value:
    """What some work in a thread gives; who stops waiting leaves the thread to end by itself."""
    answer: asyncio.Future[Value] = loop.create_future()

    def done(value: Any, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(error)

    threads.do(work, done)
    return await answer
