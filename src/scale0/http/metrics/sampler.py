"""Takes the samples for `/metrics` and the exports.

A reader never waits for the broker, except for the first sample after an idle time. Without exports, and without a
reader for IDLE_SECONDS, no samples are taken. Agents, checks and incidents, which may be many, are read less often.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from scale0.client.admin.rows import Row, helens_of, known_agents, known_checks, known_incidents
from scale0.config import ExportConfig
from scale0.http.broker_client import BrokerClient
from scale0.http.metrics.current import CurrentSample
from scale0.http.metrics.exports import MIN_INTERVAL_SECONDS, exporting
from scale0.http.metrics.sample import MonitoringCounts, NetworkSample, counted, sample_of
from scale0.http.problem import ApiProblem
from scale0.http.sampler import background
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.log_context import about

log = logging.getLogger("scale0.exports")

SAMPLE_SECONDS: Final = 5.0
"""Between two samples; less if an export has a shorter interval."""
MONITORING_SECONDS: Final = 30.0
"""Between two readings of agents, checks and incidents."""
IDLE_SECONDS: Final = 600.0
"""Sampling stops after this time without a reader."""
FIRST_SECONDS: Final = 3.0
"""How long a reader waits for the first sample after an idle time."""
MAX_ROWS: Final = 20_000
"""Of a list of the broker."""
MAX_HELEN_ROWS: Final = 100_000
"""Of a list of one Helen."""


class MetricsSampler:
    def __init__(self, broker: BrokerClient, exports: tuple[ExportConfig, ...] = ()) -> None:
        self._broker = broker
        self._exports = exports
        self._seconds = max(MIN_INTERVAL_SECONDS, min([SAMPLE_SECONDS, *(one.interval for one in exports)]))
        self._current: CurrentSample | None = None
        self._active = asyncio.Event()
        self._is_fresh = asyncio.Event()
        """Set when there is a sample that is not from before an idle time."""
        self._last_read = 0.0
        self._monitoring: MonitoringCounts | None = None
        self._monitoring_due = 0.0
        self._failures = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take samples and push them to the exports while the block runs."""
        current = self._current = CurrentSample(asyncio.get_running_loop())
        if self._exports:
            self._active.set()
        async with background(self._run(current)), exporting(self._exports, current):
            yield

    @property
    def is_idle(self) -> bool:
        return not self._active.is_set()

    async def text(self, as_openmetrics: bool) -> bytes:
        """The newest metrics in a format of Prometheus. Raises `ApiProblem` before the server is ready."""
        if self._current is None:
            raise ApiProblem(503, "the server is starting", "try again in a moment")
        self._last_read = read_now().mono
        self._active.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_fresh.wait(), FIRST_SECONDS)
        return await self._current.text(as_openmetrics)

    async def _run(self, current: CurrentSample) -> None:
        while True:
            await self._active.wait()
            began = read_now()
            try:
                sample = await self._sample(began.wall)
            except Exception:
                log.exception("internal error while sampling metrics; please report this traceback", extra=about())
                sample = self._failed(began.wall)
            current.put(sample)
            self._is_fresh.set()
            await asyncio.sleep(max(0.0, began.mono + self._seconds - read_now().mono))
            if not self._exports and read_now().mono - self._last_read > IDLE_SECONDS:
                self._active.clear()
                self._is_fresh.clear()

    async def _sample(self, wall: float) -> NetworkSample:
        before = read_now().mono
        try:
            status = await self._broker.local("status")
            rates = await self._broker.local_rows("list_rates", MAX_ROWS)
            queues = await self._broker.local_rows("list_queues", MAX_ROWS)
            peers = await self._broker.local("list_peers")
            await self._read_monitoring()
        except ApiProblem:
            return self._failed(wall)
        return sample_of(
            wall,
            status=status,
            rates=rates,
            queues=queues,
            peers=peers["items"],
            monitoring=self._monitoring,
            seconds=read_now().mono - before,
            failures=self._failures,
        )

    def _failed(self, wall: float) -> NetworkSample:
        self._failures += 1
        return sample_of(wall, failures=self._failures)

    async def _read_monitoring(self) -> None:
        """Count what the Helens know, if it is due."""
        mono = read_now().mono
        if mono < self._monitoring_due:
            return
        helens = helens_of(await self._broker.local_rows("list_services", MAX_ROWS))
        agents, checks, incidents = await asyncio.gather(
            self._helen_rows(helens, "agents", {"all": True}),
            self._helen_rows(helens, "checks", {}),
            self._helen_rows(helens, "incidents", {"open": True}),
        )
        self._monitoring_due = mono + MONITORING_SECONDS
        self._monitoring = MonitoringCounts(
            helens=len(helens),
            agents=counted(known_agents(agents)),
            checks=counted(known_checks(checks, problems=False)),
            incidents=counted(known_incidents(incidents)),
        )

    async def _helen_rows(self, helens: list[str], view: str, arguments: Row) -> list[Row]:
        """A view of every Helen that answers."""
        found = await asyncio.gather(
            *(self._broker.helen_rows(name, view, arguments, MAX_HELEN_ROWS) for name in helens)
        )
        return [row for rows in found for row in rows or ()]
