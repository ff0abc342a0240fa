"""Helen's place on the Scale0 network: a backend, as a door of her machine.

Lives here: requests and tasks as frames, their answers as replies and results, and her part of the configuration. Never
here: what is answered. Frames in: `request`, `task`, `config`; frames out: `reply`, `error`. Invariants: every request
and every task that was begun is answered once, or the network has forgotten it; no task begins while there is no line,
or no room for its result.
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

from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.log_context import about
from scale0.kernel.machine import Sent
from scale0.tasks.jsonrpc.messages import INVALID_PARAMS, METHOD_NOT_FOUND
from scale0.tasks.node.assigned_tasks import (
    HANDLER_FAILED,
    AssignedTask,
    AssignedTasks,
    CapacityAvailable,
    TasksAssigned,
    TasksStopped,
)
from scale0.transport.core.backend_session import BackendSession, RequestReceived, fit_message
from scale0.transport.core.session import Connected, ConnectionLost, SessionEffects, SessionEnded
from scale0.transport.edge.asyncio_socket import AsyncioSocket
from scale0.transport.edge.client_keys import keys_for

log = logging.getLogger("scale0.helen")

NETWORK: Final = "network"
"""The name of this door."""
SLOTS: Final = 1_000
"""Requests and tasks that are open at once: most of them only wait for an agent."""
TASK_PREFIX: Final = b"task:"
"""Of the routing id of a task; a request has the id that the broker gave it."""
MAX_TASKS: Final = 500
"""Tasks that her machine has in hand."""
MAX_PERFORMED: Final = 8
"""Tasks that are performed outside of it, at once: their time runs from when they are said to run."""
FINAL_CODES: Final = {codes.MALFORMED: INVALID_PARAMS, codes.UNKNOWN_COMMAND: METHOD_NOT_FOUND}
"""Errors that another attempt would meet again, as a task's error has them."""

Perform = Callable[[AssignedTask, Callable[[bytes | Exception, bool], None]], None]
"""Have a task done outside of the machine; tell its result (JSON), or the exception and whether to try again."""


class TaskLane:
    """Tasks that wait, and how many of them may run at once."""

    __slots__ = ("_most", "running", "waiting")

    def __init__(self, most: int) -> None:
        self._most = most
        self.waiting: deque[AssignedTask] = deque()
        self.running = 0

    def pick(self) -> list[AssignedTask]:
        """Those that begin now."""
        picked: list[AssignedTask] = []
        while self.waiting and self.running < self._most:
            job = self.waiting.popleft()
            if not job.stop:
                picked.append(job)
                self.running += 1
        return picked


class NetworkBackend:
    """One Helen's end of the network."""

    def __init__(
        self,
        identity: str,
        endpoint: str,
        services: Iterable[str],
        performed: Iterable[str],
        perform: Perform,
        configured: Callable[[bytes], None],
        ended: Callable[[str], None],
    ) -> None:
        """`performed`: tasks that `perform` does. `configured` is told each part of the configuration, beside the
        machine; `ended`, why the network will not have us any more."""
        self.name = NETWORK
        self.config = b""
        """The newest part of the configuration that the machine was told."""
        self._performed = frozenset(performed)
        self._perform = perform
        self._configured = configured
        self._ended = ended
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._inbox: deque[list[bytes]] = deque()
        self._lane = TaskLane(MAX_TASKS)
        self._performed_lane = TaskLane(MAX_PERFORMED)
        self._jobs: dict[bytes, AssignedTask] = {}
        """Tasks that were begun, by routing id."""
        self._tasks = AssignedTasks()
        self._session = BackendSession(
            (endpoint,), identity, (*services, *self._performed), SLOTS, random.SystemRandom(), tasks=self._tasks
        )
        keys = keys_for(self._session.connection.addresses, (endpoint,))
        self._tether = AsyncioSocket(self._session, self._hear, self._look_at_config, keys)

    def start(self) -> None:
        """Connect."""
        self._tether.run(self._session.start)

    @property
    def is_up(self) -> bool:
        """True while the network has us."""
        return self._session.is_up

    @property
    def endpoint(self) -> str:
        """Of the broker that we are with."""
        return self._session.connection.endpoint

    # What the runner asks for.

    @property
    def descriptor(self) -> int:
        """Readable when something came."""
        return self._wake

    def drain(self, most: int) -> Iterator[list[bytes]]:
        """What came; at most `most` messages."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        for _ in range(min(most, len(self._inbox))):
            yield self._inbox.popleft()

    def pending(self) -> bool:
        """True if there is something."""
        return bool(self._inbox)

    def send(self, routing_id: bytes, frames: list[bytes]) -> Sent:
        """Answer a request or a task; it waits while there is no line."""
        job = self._pop(routing_id)
        if job is not None:
            match frames:
                case [b"reply", body]:
                    self._finish(job, body)
                case [_, code, message]:
                    self._fail(job, int(code), message.decode())
            self._begin()
            return "sent"
        if not routing_id.startswith(TASK_PREFIX):
            self._answer(routing_id.decode(), frames)
        return "sent"

    def close(self) -> None:
        """Say what is to be said, and leave."""
        self._tether.close(self._session.end)
        os.close(self._wake)

    def _answer(self, id_: str, frames: list[bytes]) -> None:
        session = self._session
        match frames:
            case [b"reply", body]:
                self._tether.run(lambda now, out: session.reply(id_, (body,), now, out))
            case [_, code, message]:
                words = message.decode()
                self._tether.run(lambda now, out: session.error(id_, int(code), words, now, out))

    # What the network says.

    def _hear(self, news: Any) -> None:
        match news:
            case RequestReceived():
                self._take(
                    [news.id.encode(), b"request", news.service.encode(), b"%.3f" % news.timeout, first(news.bodies)]
                )
            case TasksAssigned():
                for job in news.tasks:
                    self._lane_of(job).waiting.append(job)
                self._begin()
            case TasksStopped():
                for job in news.tasks:
                    self._pop(routing_id_of(job))
                self._begin()
            case CapacityAvailable():
                self._begin()
            case Connected():
                log.info(
                    "up on the network as %s, at %s",
                    news.identity,
                    self.endpoint,
                    extra=about(helen=news.identity, broker=self.endpoint),
                )
                self._begin()
            case ConnectionLost():
                log.warning("the network is away: %s", news.reason, extra=about(broker=self.endpoint))
            case SessionEnded():
                self._ended(f"{news.code} {news.message}")
            case _:
                pass

    def _look_at_config(self) -> None:
        """A newer one comes without news of its own."""
        config = self._session.connection.config
        if config is not self.config and config:
            self.config = config
            self._take([b"", b"config", config])
            self._configured(config)

    def _take(self, message: list[bytes]) -> None:
        if not self._inbox:
            os.eventfd_write(self._wake, 1)
        self._inbox.append(message)

    # Tasks.

    def _lane_of(self, job: AssignedTask) -> TaskLane:
        return self._performed_lane if job.method in self._performed else self._lane

    def _pop(self, routing_id: bytes) -> AssignedTask | None:
        """It has ended; None: it is not, or no longer, in hand."""
        job = self._jobs.pop(routing_id, None)
        if job is not None:
            self._lane_of(job).running -= 1
        return job

    def _begin(self) -> None:
        """Begin what may begin: it is announced, then done."""
        if not self._session.is_up or self._tasks.is_full:
            return
        picked = [*self._lane.pick(), *self._performed_lane.pick()]
        if picked:
            self._jobs.update((routing_id_of(job), job) for job in picked)
            self._tether.run(lambda now, out: self._announce(picked, now, out))

    def _announce(self, jobs: list[AssignedTask], now: Now, out: SessionEffects) -> None:
        begun = self._tasks.start(jobs)
        for job in jobs:
            if job not in begun:
                self._pop(routing_id_of(job))  # it was cancelled just now
        for job in begun:
            if job.method in self._performed:
                self._perform(job, self._told(job))
            else:
                frames = [job.id.encode(), b"%d" % job.attempt, job.method.encode(), job.params]
                self._take([routing_id_of(job), b"task", *frames])
        self._session.send_tasks(now, out)

    def _told(self, job: AssignedTask) -> Callable[[bytes | Exception, bool], None]:
        """What a performer calls at the end."""

        def tell(result: bytes | Exception, retry: bool) -> None:
            if self._pop(routing_id_of(job)) is None:
                return  # nobody wants to hear of it any more
            if isinstance(result, bytes):
                self._finish(job, result)
            else:
                self._end(job, HANDLER_FAILED, str(result), retry)
            self._begin()

        return tell

    def _finish(self, job: AssignedTask, result: bytes) -> None:
        def say(now: Now, out: SessionEffects) -> None:
            self._tasks.finish(job, result)
            self._session.send_tasks(now, out)

        self._tether.run(say)

    def _fail(self, job: AssignedTask, code: int, message: str) -> None:
        final = FINAL_CODES.get(code)
        self._end(job, HANDLER_FAILED if final is None else final, f"{code} {message}", final is None)

    def _end(self, job: AssignedTask, code: int, message: str, retry: bool) -> None:
        error = json.dumps({"code": code, "message": fit_message(message), "retry": retry}).encode()

        def say(now: Now, out: SessionEffects) -> None:
            self._tasks.fail(job, error)
            self._session.send_tasks(now, out)

        self._tether.run(say)


def routing_id_of(job: AssignedTask) -> bytes:
    """What the machine knows a task by."""
    return b"%b%b:%d" % (TASK_PREFIX, job.id.encode(), job.attempt)


def first(bodies: Any) -> bytes:
    """A service of Helen's takes one body."""
    return bytes(bodies[0]) if bodies else b""
