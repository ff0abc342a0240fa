"""The lookout: samples for metrics, taken while somebody wants them.

Lives here: a loop that asks the broker and the Helens, and when it rests. Never here: names of metrics, or a wire.
Invariants: a reader never waits for the broker, but for the first sample after a rest; with no exports and no reader
for IDLE_SECONDS nobody is asked anything; the states of checks, which may be many, are asked for less often.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final

from scale0.client.admin.rows import HELEN_PREFIX, helens_of, known_agents, known_checks, known_incidents
from scale0.config import ExportConfig
from scale0.http.metrics.current import CurrentSample
from scale0.http.metrics.exports import MIN_INTERVAL_SECONDS, exporting
from scale0.http.metrics.sample import MonitoringCounts, NetworkSample, counted, sample_of
from scale0.http.network import PAGE_ROWS, BrokerClient
from scale0.http.problem import ApiProblem
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.log_context import about

log = logging.getLogger("scale0.exports")

LOOK_SECONDS: Final = 5.0
"""Between two samples; exports that want them more often get them so."""
WATCH_SECONDS: Final = 30.0
"""Between two looks at agents, checks and incidents."""
IDLE_SECONDS: Final = 600.0
"""Without a reader for so long, nobody reads."""
FIRST_SECONDS: Final = 3.0
"""How long a reader waits for the first sample after a rest."""
MAX_PAGES: Final = 20
"""Of a list of the broker: 20,000 services, of which a thousand have a label."""
MAX_WATCH_PAGES: Final = 100
"""Of a list of a Helen: 100,000 rows are counted, and no more."""
ANSWER_SECONDS: Final = 5.0

Row = dict[str, Any]


class MetricsSampler:
    """All that `/metrics` and the exports know."""

    def __init__(self, network: BrokerClient, exports: tuple[ExportConfig, ...] = ()) -> None:
        self._network = network
        self._exports = exports
        self._seconds = max(MIN_INTERVAL_SECONDS, min([LOOK_SECONDS, *(one.interval for one in exports)]))
        self._current: CurrentSample | None = None
        self._awake = asyncio.Event()
        self._looked = asyncio.Event()
        """Set when there is a sample that is not from before a rest."""
        self._asked = 0.0
        self._watched: MonitoringCounts | None = None
        self._watch_at = 0.0
        self._failures = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While this is open, samples are taken and exports pushed."""
        current = self._current = CurrentSample(asyncio.get_running_loop())
        if self._exports:
            self._awake.set()
        task = asyncio.create_task(self._run(current))
        async with AsyncExitStack() as stack:
            stack.push_async_callback(ended, task)
            await stack.enter_async_context(exporting(self._exports, current))
            yield

    @property
    def resting(self) -> bool:
        """True while nobody wants samples, and none are taken."""
        return not self._awake.is_set()

    async def text(self, as_openmetrics: bool) -> bytes:
        """What Prometheus reads; whoever asks for it keeps the samples coming."""
        if self._current is None:
            raise ApiProblem(503, "this server is only just starting", "ask again")
        self._asked = read_now().mono
        self._awake.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._looked.wait(), FIRST_SECONDS)
        return await self._current.text(as_openmetrics)

    async def _run(self, current: CurrentSample) -> None:
        while True:
            await self._awake.wait()
            began = read_now()
            try:
                sample = await self._look(began.wall)
            except Exception:  # a mistake of ours in one look must not end all others
                log.exception("a look at the network for metrics failed: please report this", extra=about())
                sample = self._away(began.wall)
            current.put(sample)
            self._looked.set()
            await asyncio.sleep(max(0.0, began.mono + self._seconds - read_now().mono))
            if not self._exports and read_now().mono - self._asked > IDLE_SECONDS:
                self._awake.clear()
                self._looked.clear()

    async def _look(self, wall: float) -> NetworkSample:
        """One sample."""
        before = read_now().mono
        try:
            status = await self._network.local("status")
            rates = await self._rows("list_rates")
            queues = await self._rows("list_queues")
            peers = await self._network.local("list_peers")
            await self._watch()
        except ApiProblem:
            return self._away(wall)
        return sample_of(
            wall,
            status=status,
            rates=rates,
            queues=queues,
            peers=peers["items"],
            watched=self._watched,
            seconds=read_now().mono - before,
            failures=self._failures,
        )

    def _away(self, wall: float) -> NetworkSample:
        self._failures += 1
        return sample_of(wall, failures=self._failures)

    async def _rows(self, command: str) -> list[Row]:
        """Every row of a list of the broker."""
        found: list[Row] = []
        after: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._network.local(command, limit=PAGE_ROWS, after=after)
            found.extend(page["items"])
            after = page["next"]
            if after is None:
                break
        return found

    async def _watch(self) -> None:
        """Now and then: what the Helens say."""
        mono = read_now().mono
        if mono < self._watch_at:
            return
        helens = helens_of(await self._rows("list_services"))
        agents, checks, incidents = await asyncio.gather(
            self._of_helens(helens, "agents", {"all": True}),
            self._of_helens(helens, "checks", {}),
            self._of_helens(helens, "incidents", {"open": True}),
        )
        self._watch_at = mono + WATCH_SECONDS
        self._watched = MonitoringCounts(
            helens=len(helens),
            agents=counted(known_agents(agents)),
            checks=counted(known_checks(checks, problems=False)),
            incidents=counted(known_incidents(incidents)),
        )

    async def _of_helens(self, helens: list[str], view: str, asked: Row) -> list[Row]:
        """A view of every Helen; one that does not answer is left out."""
        pages = await asyncio.gather(*(self._of_helen(f"{HELEN_PREFIX}{name}.{view}", asked) for name in helens))
        return [row for rows in pages for row in rows]

    async def _of_helen(self, service: str, asked: Row) -> list[Row]:
        found: list[Row] = []
        body = {**asked, "limit": PAGE_ROWS}
        with suppress(ApiProblem):
            for _ in range(MAX_WATCH_PAGES):
                page = await self._network.request(service, body, timeout=ANSWER_SECONDS)
                found.extend(page["items"])
                if not page["next"]:
                    break
                body["after"] = page["next"]
        return found


async def ended(task: asyncio.Task[None]) -> None:
    """End a task of ours, and wait until it has."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
