"""Helen as a backend of the Scale0 network, in the shape of a runner's `MessageSocket`.

Requests, tasks and configurations become events of `socket_events`; the machine's answers become replies and results.
Each request and each started task is answered once, unless the network has forgotten it. No task starts while the
session is down or there is no room for its result.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from scale0.config import ClientConfig
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.log_context import about
from scale0.kernel.machine import Sent
from scale0.monitoring.helen.core import socket_events as events
from scale0.monitoring.helen.core.socket_events import NETWORK, RequestError
from scale0.tasks.jsonrpc.messages import INVALID_PARAMS, METHOD_NOT_FOUND
from scale0.tasks.node import assigned_tasks
from scale0.tasks.node.assigned_tasks import AssignedTask, AssignedTasks
from scale0.transport.core.backend_session import BackendSession, RequestReceived, fit_message
from scale0.transport.core.session import Connected, ConnectionLost, SessionEffects, SessionEnded
from scale0.transport.core.sockets import HELEN
from scale0.transport.edge.asyncio_socket import AsyncioSocket
from scale0.transport.edge.client_keys import keys_for

log = logging.getLogger("scale0.helen")

SLOTS: Final = 1_000
"""Open requests and tasks: most of them only wait for an agent."""
TASK_PREFIX: Final = b"task:"
"""The prefix of a task's routing id; the routing id of a request is the id that the broker gave it."""
MAX_TASKS: Final = 500
"""Tasks in the machine."""
MAX_PERFORMED: Final = 8
"""Tasks that run outside of the machine at once: their timeout begins when they are reported as running."""
FINAL_CODES: Final = {codes.MALFORMED: INVALID_PARAMS, codes.UNKNOWN_COMMAND: METHOD_NOT_FOUND}
"""Errors that another attempt would meet again, with the code of the task's error."""

Perform = Callable[[AssignedTask, Callable[[bytes | Exception, bool], None]], None]
"""Starts a task outside of the machine; calls back with its result (JSON), or with the exception and whether to retry.
"""


class TaskSlots:
    """Waiting tasks, and how many tasks may run at once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.waiting: deque[AssignedTask] = deque()
        self.running = 0

    def take_startable(self) -> list[AssignedTask]:
        """Take the tasks that may start now."""
        starting: list[AssignedTask] = []
        while self.waiting and self.running < self._limit:
            task = self.waiting.popleft()
            if not task.stop:
                starting.append(task)
                self.running += 1
        return starting


class NetworkBackend:
    def __init__(
        self,
        identity: str,
        endpoint: str,
        services: Iterable[str],
        performed: Iterable[str],
        perform: Perform,
        configured: Callable[[ClientConfig], None],
        ended: Callable[[str], None],
    ) -> None:
        """`performed`: the methods that `perform` runs. `configured` gets each valid configuration; `ended` gets the
        reason when the network has ended the session for good."""
        self.name = NETWORK
        self.config = b""
        self._performed = frozenset(performed)
        self._perform = perform
        self._configured = configured
        self._ended = ended
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._inbox: deque[list[Any]] = deque()
        self._machine_slots = TaskSlots(MAX_TASKS)
        self._performed_slots = TaskSlots(MAX_PERFORMED)
        self._running_tasks: dict[bytes, AssignedTask] = {}
        """Running tasks, by routing id."""
        self._tasks = AssignedTasks()
        each = {**dict.fromkeys(services, SLOTS), **dict.fromkeys(self._performed, MAX_PERFORMED)}
        self._session = BackendSession(
            (endpoint,), identity, each, SLOTS, random.SystemRandom(), tasks=self._tasks, service_slots=each
        )
        keys = keys_for(self._session.connection.addresses, (endpoint,), role=HELEN)
        self.frontend_keys = keys.for_frontends() if keys is not None else None
        """Her pair for the frontends of the network, if it is stored in both roles."""
        self._socket = AsyncioSocket(self._session, self._on_event, self._check_config, keys)

    def start(self) -> None:
        self._socket.run(self._session.start)

    @property
    def is_up(self) -> bool:
        return self._session.is_up

    @property
    def endpoint(self) -> str:
        """The endpoint of the broker that she is connected to."""
        return self._session.connection.endpoint

    @property
    def descriptor(self) -> int:
        return self._wake

    def drain(self, most: int) -> Iterator[list[Any]]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        for _ in range(min(most, len(self._inbox))):
            yield self._inbox.popleft()

    def pending(self) -> bool:
        return bool(self._inbox)

    def send(self, routing_id: bytes, frames: list[Any]) -> Sent:
        """Answer a request or a task; the answer waits while the session is down."""
        answer: events.RequestReply | RequestError = frames[0]
        task = self._pop(routing_id)
        if task is not None:
            if isinstance(answer, events.RequestReply):
                self._finish(task, answer.body)
            else:
                self._fail(task, answer)
            self._start_tasks()
        elif not routing_id.startswith(TASK_PREFIX):
            self._answer(routing_id.decode(), answer)
        return "sent"

    def close(self) -> None:
        """Send what is pending, and leave the network."""
        self._socket.close(self._session.end)
        os.close(self._wake)

    def _answer(self, id_: str, answer: events.RequestReply | RequestError) -> None:
        session = self._session
        match answer:
            case events.RequestReply(body):
                self._socket.run(lambda now, out: session.reply(id_, (body,), now, out))
            case RequestError(code, message):
                self._socket.run(lambda now, out: session.error(id_, code, message, now, out))

    def _on_event(self, event: Any) -> None:
        match event:
            case RequestReceived():
                body = bytes(event.bodies[0]) if event.bodies else b""
                self._deliver(event.id.encode(), events.NetworkRequest(event.service, event.timeout, body))
            case assigned_tasks.TasksAssigned():
                for task in event.tasks:
                    self._slots_of(task).waiting.append(task)
                self._start_tasks()
            case assigned_tasks.TasksStopped():
                for task in event.tasks:
                    self._pop(routing_id_of(task))
                self._start_tasks()
            case assigned_tasks.CapacityAvailable():
                self._start_tasks()
            case Connected():
                log.info(
                    "connected to the network as %s, at %s",
                    event.identity,
                    self.endpoint,
                    extra=about(helen=event.identity, broker=self.endpoint),
                )
                self._start_tasks()
            case ConnectionLost():
                log.warning(
                    "the connection to the network was lost: %s", event.reason, extra=about(broker=self.endpoint)
                )
            case SessionEnded():
                self._ended(f"{event.code} {event.message}")
            case _:
                pass

    def _check_config(self) -> None:
        """The session has no event for a new configuration."""
        config = self._session.connection.config
        if config is not self.config and config:
            self.config = config
            event = events.read_config(config)
            self._deliver(b"", event)
            if isinstance(event, events.ConfigReceived):
                self._configured(event.config)
            else:
                log.error(
                    "the network's configuration is invalid, the previous one stays: %s", event.error, extra=about()
                )

    def _deliver(self, routing_id: bytes, event: events.NetworkEvent) -> None:
        if not self._inbox:
            os.eventfd_write(self._wake, 1)
        self._inbox.append([routing_id, event])

    def _slots_of(self, task: AssignedTask) -> TaskSlots:
        return self._performed_slots if task.method in self._performed else self._machine_slots

    def _pop(self, routing_id: bytes) -> AssignedTask | None:
        """Remove a task that ended; None: it is not running, or was stopped."""
        task = self._running_tasks.pop(routing_id, None)
        if task is not None:
            self._slots_of(task).running -= 1
        return task

    def _start_tasks(self) -> None:
        """Start the tasks that may start: announce them, then run them."""
        if not self._session.is_up or self._tasks.is_full:
            return
        starting = [*self._machine_slots.take_startable(), *self._performed_slots.take_startable()]
        if starting:
            self._running_tasks.update((routing_id_of(task), task) for task in starting)
            self._socket.run(lambda now, out: self._announce(starting, now, out))

    def _announce(self, tasks: list[AssignedTask], now: Now, out: SessionEffects) -> None:
        started = self._tasks.start(tasks)
        for task in tasks:
            if task not in started:
                self._pop(routing_id_of(task))  # it was cancelled a moment ago
        for task in started:
            if task.method in self._performed:
                self._perform(task, self._on_performed(task))
            else:
                self._deliver(routing_id_of(task), events.NetworkTask(task.id, task.method, task.params))
        self._session.send_tasks(now, out)

    def _on_performed(self, task: AssignedTask) -> Callable[[bytes | Exception, bool], None]:
        """The callback for the end of a performed task."""

        def on_end(result: bytes | Exception, retry: bool) -> None:
            if self._pop(routing_id_of(task)) is None:
                return  # it was stopped meanwhile
            if isinstance(result, bytes):
                self._finish(task, result)
            else:
                self._end(task, assigned_tasks.HANDLER_FAILED, str(result), retry)
            self._start_tasks()

        return on_end

    def _finish(self, task: AssignedTask, result: bytes) -> None:
        def say(now: Now, out: SessionEffects) -> None:
            self._tasks.finish(task, result)
            self._session.send_tasks(now, out)

        self._socket.run(say)

    def _fail(self, task: AssignedTask, error: RequestError) -> None:
        final = FINAL_CODES.get(error.code)
        self._end(
            task,
            assigned_tasks.HANDLER_FAILED if final is None else final,
            f"{error.code} {error.message}",
            final is None,
        )

    def _end(self, task: AssignedTask, code: int, message: str, retry: bool) -> None:
        error = json.dumps({"code": code, "message": fit_message(message), "retry": retry}).encode()

        def say(now: Now, out: SessionEffects) -> None:
            self._tasks.fail(task, error)
            self._session.send_tasks(now, out)

        self._socket.run(say)


def routing_id_of(task: AssignedTask) -> bytes:
    return b"%b%b:%d" % (TASK_PREFIX, task.id.encode(), task.attempt)
