"""Coroutines: handlers that wait together, in one thread with a loop of its own.

Lives here: the loop, and requests and tasks as coroutines in it. Never here: the protocol, or the threads of plain
functions (`crew`). Invariant: no more of one service than its slots; what ends in one turn of the loop leaves together;
a coroutine that is ended with its worker says nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from scale0.client.batches import TaskBatches
from scale0.client.handler import Answer, Handler, perform_async
from scale0.client.slots import ServiceSlots, WorkerSlots
from scale0.client.task_context import RunningTask, here
from scale0.client.task_outcome import late, perform_task_async
from scale0.kernel.clock import Now
from scale0.tasks.node.assigned_tasks import AssignedTask
from scale0.transport.core.backend_session import RequestReceived
from scale0.transport.core.session import SessionEffects
from scale0.transport.edge.client_socket import ClientSocket, SocketClosedError


class CoroutineHost(Protocol):
    """What coroutines need of their crew."""

    def answer(self, answer: Answer) -> None: ...
    def part(self, id_: str, bodies: Sequence[bytes]) -> None: ...
    def flush(self) -> None: ...
    def guard(self, do: Callable[[], None]) -> None: ...
    def start_thread(self, target: Callable[[], None], name: str) -> None: ...


class CoroutineRunner:
    """The loop of one worker; it starts when it is needed first."""

    def __init__(
        self,
        offers: Mapping[str, Handler],
        stations: WorkerSlots,
        link: ClientSocket,
        stints: TaskBatches | None,
        desk: CoroutineHost,
    ) -> None:
        self._offers = offers
        self._stations = stations
        self._link = link
        self._stints = stints
        self._desk = desk
        self._loop: asyncio.AbstractEventLoop | None = None
        self._works: deque[RequestReceived] = deque()
        self._running: dict[asyncio.Task[None], tuple[AssignedTask, ServiceSlots] | None] = {}
        self._flushes = False
        """A flush is to come at the end of this turn of the loop."""

    def start(self) -> None:
        """Start the loop, if it does not run yet."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._desk.start_thread(self._run, "scale0-loop")

    def take(self, works: Sequence[RequestReceived]) -> None:
        """Requests came; from any thread."""
        self._works.extend(works)
        self.look()

    def look(self) -> None:
        """There may be something to start; from any thread."""
        self.start()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._desk.guard, self._look)

    def stop(self, jobs: Sequence[AssignedTask]) -> None:
        """Nobody wants these tasks any more; from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel, set(jobs))

    def end(self) -> None:
        """End the loop; from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)

    # In the loop's own thread.

    def _run(self) -> None:
        loop = self._loop
        if loop is None:
            return
        asyncio.set_event_loop(loop)
        loop.run_forever()
        for task, taken in self._running.items():
            if taken is not None:
                taken[0].stop = True
            task.cancel()
        loop.run_until_complete(asyncio.gather(*self._running, return_exceptions=True))
        loop.close()

    def _look(self) -> None:
        while self._works:
            work = self._works.popleft()
            if not self._stations.counting or self._stations.claim(work):
                self._start(self._request(work), None)
        if self._stints is not None:
            self._start_tasks(self._stints)

    def _start(self, what: Any, taken: tuple[AssignedTask, ServiceSlots] | None) -> None:
        if self._loop is not None:
            task = self._loop.create_task(what)
            self._running[task] = taken
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        taken = self._running.pop(task, None)
        if taken is not None:
            # Here, because a task that is cancelled before its first step runs no line of its own.
            self._leave(taken[1])
        self._turn_over()
        if not task.cancelled() and task.exception() is not None:
            # Whatever a handler does is in its outcome: this is a fault of ours.
            self._desk.guard(task.result)

    def _cancel(self, jobs: set[AssignedTask]) -> None:
        for task, taken in list(self._running.items()):
            if taken is not None and taken[0] in jobs:
                task.cancel()

    def _start_tasks(self, stints: TaskBatches) -> None:
        """As many as have a slot, announced together: they all start now."""
        picked: list[tuple[ServiceSlots, list[AssignedTask]]] = []
        while (station := self._stations.enter(is_async=True)) is not None:
            group = self._stations.pick(station, most=1)
            if group:
                picked.append((station, group))
            else:
                self._leave(station)
        if not picked:
            return
        begun: list[list[AssignedTask]] = [[] for _ in picked]

        def begin(now: Now, out: SessionEffects) -> None:
            begun[:] = stints.begin(picked, now, out)

        try:
            self._link.act(begin)
        except SocketClosedError:
            return
        for (station, _), jobs in zip(picked, begun, strict=True):
            if jobs:
                self._start(self._task(jobs[0], stints), (jobs[0], station))
            else:
                self._leave(station)

    async def _request(self, work: RequestReceived) -> None:
        offer = self._offers[work.service]
        self._desk.answer(await perform_async(offer, work, self._desk.part))
        held = self._stations.release(work)
        if held is not None:
            self._works.appendleft(held)

    async def _task(self, job: AssignedTask, stints: TaskBatches) -> None:
        offer = self._offers[job.method]
        loop = asyncio.get_running_loop()
        job.deadline = loop.time() + job.timeout  # the loop's clock is the monotonic one
        here.set(RunningTask(job, stints.tell))
        async with asyncio.timeout(job.timeout) as scope:
            outcome = await perform_task_async(offer, job)
        if scope.expired() or (type(outcome) is bytes and loop.time() > job.deadline):
            outcome = late(job)
        stints.results.append((job, outcome))

    def _leave(self, station: ServiceSlots) -> None:
        held = self._stations.leave(station)
        if held is not None:
            self._works.appendleft(held)

    def _turn_over(self) -> None:
        """Once per turn of the loop: start what can start, and say what there is to say."""
        if not self._flushes and self._loop is not None:
            self._flushes = True
            self._loop.call_soon(self._desk.guard, self._end_turn)

    def _end_turn(self) -> None:
        self._flushes = False
        self._look()
        self._desk.flush()
