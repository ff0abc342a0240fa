"""Runs coroutine handlers in one thread, with an event loop of its own.

Invariants: at most `slots` coroutines of one service run at once; answers that end in one turn of the loop leave
together; a coroutine that is cancelled with its worker answers nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scale0.client.batches import TaskBatches
from scale0.client.handler import Handler, perform_async
from scale0.client.slots import ServiceSlots, WorkerSlots
from scale0.client.task_context import RunningTask, current_task
from scale0.client.task_outcome import perform_task_async, timed_out
from scale0.kernel.clock import Now
from scale0.tasks.node.assigned_tasks import AssignedTask
from scale0.transport.core.backend_session import RequestReceived
from scale0.transport.core.session import SessionEffects
from scale0.transport.edge.client_socket import ClientSocket, SocketClosedError

if TYPE_CHECKING:
    from scale0.client.executor import Executor


class CoroutineRunner:
    """The loop starts with its first coroutine."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        slots: WorkerSlots,
        socket: ClientSocket,
        batches: TaskBatches | None,
        executor: Executor,
    ) -> None:
        self._handlers = handlers
        self._slots = slots
        self._socket = socket
        self._batches = batches
        self._executor = executor
        self._loop: asyncio.AbstractEventLoop | None = None
        self._requests: deque[RequestReceived] = deque()
        self._running: dict[asyncio.Task[None], tuple[AssignedTask, ServiceSlots] | None] = {}
        self._flush_scheduled = False
        """A flush is scheduled for the end of this turn of the loop."""

    def start(self) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._executor.start_thread(self._run, "scale0-loop")

    def add_requests(self, requests: Sequence[RequestReceived]) -> None:
        """Run requests; from any thread."""
        self._requests.extend(requests)
        self.wake()

    def wake(self) -> None:
        """Start what may start; from any thread."""
        self.start()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._executor.guard, self._start_all)

    def stop(self, tasks: Sequence[AssignedTask]) -> None:
        """Cancel these tasks; from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel, set(tasks))

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
        for task, running in self._running.items():
            if running is not None:
                running[0].stop = True
            task.cancel()
        loop.run_until_complete(asyncio.gather(*self._running, return_exceptions=True))
        loop.close()

    def _start_all(self) -> None:
        while self._requests:
            request = self._requests.popleft()
            if not self._slots.is_counting or self._slots.acquire_request(request):
                self._start(self._request(request), None)
        if self._batches is not None:
            self._start_tasks(self._batches)

    def _start(self, what: Any, running: tuple[AssignedTask, ServiceSlots] | None) -> None:
        if self._loop is not None:
            task = self._loop.create_task(what)
            self._running[task] = running
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        running = self._running.pop(task, None)
        if running is not None:
            # Here, because a coroutine that is cancelled before its first step runs none of its own code.
            self._release_task(running[1])
        self._schedule_flush()
        if not task.cancelled() and task.exception() is not None:
            # Exceptions of handlers are part of their outcome: this is an internal error.
            self._executor.guard(task.result)

    def _cancel(self, tasks: set[AssignedTask]) -> None:
        for task, running in list(self._running.items()):
            if running is not None and running[0] in tasks:
                task.cancel()

    def _start_tasks(self, batches: TaskBatches) -> None:
        """Start as many as have a slot, and report them together."""
        groups: list[tuple[ServiceSlots, list[AssignedTask]]] = []
        while (service := self._slots.acquire(is_async=True)) is not None:
            group = self._slots.take_group(service, limit=1)
            if group:
                groups.append((service, group))
            else:
                self._release_task(service)
        if not groups:
            return
        started: list[list[AssignedTask]] = [[] for _ in groups]

        def start_batch(now: Now, effects: SessionEffects) -> None:
            started[:] = batches.start(groups, now, effects)

        try:
            self._socket.act(start_batch)
        except SocketClosedError:
            return
        for (service, _), tasks in zip(groups, started, strict=True):
            if tasks:
                self._start(self._task(tasks[0], batches), (tasks[0], service))
            else:
                self._release_task(service)

    async def _request(self, request: RequestReceived) -> None:
        handler = self._handlers[request.service]
        self._executor.answer(await perform_async(handler, request, self._executor.send_part))
        held = self._slots.release_request(request)
        if held is not None:
            self._requests.appendleft(held)

    async def _task(self, assigned: AssignedTask, batches: TaskBatches) -> None:
        handler = self._handlers[assigned.method]
        loop = asyncio.get_running_loop()
        assigned.deadline = loop.time() + assigned.timeout  # the loop's clock is the monotonic one
        current_task.set(RunningTask(assigned, batches.report))
        async with asyncio.timeout(assigned.timeout) as scope:
            outcome = await perform_task_async(handler, assigned)
        if scope.expired() or (type(outcome) is bytes and loop.time() > assigned.deadline):
            outcome = timed_out(assigned)
        batches.results.append((assigned, outcome))

    def _release_task(self, service: ServiceSlots) -> None:
        held = self._slots.release_task(service)
        if held is not None:
            self._requests.appendleft(held)

    def _schedule_flush(self) -> None:
        """Once per turn of the loop: start what may start, and send what is ready."""
        if not self._flush_scheduled and self._loop is not None:
            self._flush_scheduled = True
            self._loop.call_soon(self._executor.guard, self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        self._start_all()
        self._executor.flush()
