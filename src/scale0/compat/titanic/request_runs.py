"""Runs stored requests: takes them from the task queue, sends them to backends as requests, and ends them with the
replies.

A stored request is a task of a method that no backend can offer, so its method queue is used by nothing else. The
broker pulls a task when a backend of the service has a free slot for which no request waits. Invariants: a request is
with at most one backend at a time, and each dispatch is an attempt; requests in flight when a broker dies are queued
again at its next start; messages to the internal origins are removed from the turn before their socket is looked up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from scale0.broker.core.broker import Broker
from scale0.broker.core.connections import Connection
from scale0.broker.core.scheduler import Backend
from scale0.compat.titanic.services import DONE, pack_frames, read_frames
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message
from scale0.storage.task_queries import ListTasks, TaskPage
from scale0.tasks.core.task import QueuedTask
from scale0.tasks.core.tasks import BrokerTasks
from scale0.tasks.jsonrpc.arguments import DEFAULT_TIMEOUT_SECONDS
from scale0.tasks.jsonrpc.messages import INVALID_PARAMS, error_object

METHOD_PREFIX: Final = "titanic.run:"
"""Prefix of the service name in a task's method; no backend can offer such names."""
OWN_NAME: Final = "@titanic"
"""The client of these tasks; identities cannot contain `@`."""
SOCKET: Final = "titanic"
"""Socket name of the internal origins; no such socket exists."""
MAX_UNDER_WAY: Final = 256
"""Requests of one service that are with backends at once."""
MAX_UNDER_WAY_BYTES: Final = 64 * 1024 * 1024
"""Size limit over all services, as stored; the first request may be larger."""
MAX_SERVICES: Final = 10_000
"""Services with stored requests that are known by name; with more, every service may have some."""
LOOK_SECONDS: Final = 20.0
"""Interval at which the method queues of offered services are refreshed: shorter than their idle time."""
WAKE_SECONDS: Final = 0.01
"""Minimum interval between checks for free slots while stored requests wait: a task frees a slot without an event
here."""
STATUS_FRAME_BYTES: Final = len(DONE)
"""Size of the status that titanic.reply puts before a reply."""
TRIED_AGAIN: Final = frozenset(
    {codes.NO_SUCH_SERVICE, codes.TOO_MANY, codes.BACKEND_DIED, codes.NOT_SERVING, codes.NO_ANSWER}
)
"""Request errors after which another attempt may succeed."""


class NullProtocol:
    """The protocol of the internal origins, which have no wire format."""

    def receive(self, connection: Connection, frames: list[bytes], now: Now, effects: Effects) -> None: ...

    def pack(self, connection: Connection, messages: Sequence[Message]) -> list[list[bytes]]:
        return []


class ServiceRuns:
    """The stored requests of one service while it is offered."""

    __slots__ = ("method", "origin", "service", "under_way")

    def __init__(self, service: str, now: Now) -> None:
        self.service = service
        self.method = METHOD_PREFIX + service
        self.origin = Connection(SOCKET, service.encode(), NullProtocol(), now)
        # As for a REQ socket: partial replies are joined with the last one.
        self.origin.delimiter = True
        self.under_way: dict[int, tuple[QueuedTask, int]] = {}
        """By the id of the request: the task and its attempt."""


class RequestRuns:
    def __init__(self, broker: Broker, tasks: BrokerTasks) -> None:
        self._broker = broker
        self._tasks = tasks
        own = Connection(SOCKET, b"", NullProtocol(), Now(0.0, 0.0))
        self.node = Backend(f"{OWN_NAME}.{broker.state.identity}", own, 0)
        self._streams: dict[str, ServiceRuns] = {}
        self._most = MAX_SERVICES
        """Of these, before those that are not offered are dropped without a delay."""
        self._running: dict[str, ServiceRuns] = {}
        """Services with requests in flight."""
        self._awake: dict[str, None] = {}
        """Services for which more may be dispatched."""
        self.short: dict[str, None] = {}
        """Services with stored requests that wait for a free slot or for memory."""
        self._known: set[str] = set()
        """Services that may have stored requests."""
        self._unsure = True
        """True if any service may have some: the store has not answered yet, or has too many."""
        self._next = 0
        self._woken = 0.0
        self._bytes = 0
        self.took = False
        """True if the last run took a slot: tasks then come first in the next turn."""

    def start(self, _: None, now: Now, effects: Effects) -> None:
        """Queues again the requests that the previous process had in flight."""
        if self._tasks.shared_store is None:
            self._tasks.leases.claim(self.node, None, now, effects)
        for task in list(self.node.tasks.values()):
            self._put_back(task, now, effects)
        if self._tasks.shared_store is None:
            # In a shared store, any broker of the group may store requests at any time.
            self._tasks.backlog.ask(ListTasks(limit=1, client=OWN_NAME), self._learn, effects)
        self._broker.state.timers.add((self._review_services, None), now.mono + LOOK_SECONDS)

    def _learn(self, page: TaskPage, _mark: int, _now: Now, _step: Effects) -> None:
        """If the store has no such task, only requests stored from now on matter."""
        if not page.tasks and page.next_seq is None and len(self._known) < MAX_SERVICES:
            self._unsure = False
            self._streams = {name: stream for name, stream in self._streams.items() if name in self._known}

    def expect(self, service: str, now: Now, effects: Effects) -> None:
        """Records that a request of this service is about to be stored."""
        if len(self._known) < MAX_SERVICES:
            self._known.add(service)
        elif service not in self._known:
            self._unsure = True
        self.offered((service,), now, effects)

    def offered(self, services: Iterable[str], now: Now, effects: Effects) -> None:
        """Keeps the method queues of services that a backend may have begun to offer."""
        for service in services:
            if (self._unsure or service in self._known) and self._broker.scheduler.offered(service):
                stream = self._streams.get(service)
                if stream is None:
                    if len(self._streams) >= self._most:
                        self._drop_unoffered()
                    self._streams[service] = stream = ServiceRuns(service, now)
                self._tasks.queue.method_queues.need(stream.method, now, effects)
                self._awake[service] = None

    def feed(self, backend: Backend) -> None:
        """Marks the services of a backend that may have room and for which no request waits."""
        if len(self.short) <= len(backend.services):
            self._awake.update((name, None) for name in self.short if name in backend.services)
        else:
            self._awake.update((name, None) for name in sorted(backend.services) if name in self.short)

    def _review_services(self, _: None, now: Now, effects: Effects) -> None:
        """Keeps the method queues of offered services and drops the others."""
        self._drop_unoffered()
        self.offered([one for one in self._streams if self._broker.scheduler.offered(one)], now, effects)
        self._broker.state.timers.add((self._review_services, None), now.mono + LOOK_SECONDS)

    def _drop_unoffered(self) -> None:
        for service, stream in list(self._streams.items()):
            if not (stream.under_way or self._broker.scheduler.offered(service)):
                del self._streams[service]
                self.short.pop(service, None)
        self._most = 2 * len(self._streams) + MAX_SERVICES

    def receive_replies(self, now: Now, effects: Effects) -> None:
        """Handles the messages of this turn to the internal origins, and finds queues with new tasks."""
        self._listen(now, effects)
        if self.short and now.mono - self._woken >= WAKE_SECONDS:
            self._woken = now.mono
            self._awake.update(self.short)
        for method in self._tasks.queue.dirty:
            if method.startswith(METHOD_PREFIX):
                self._awake[method[len(METHOD_PREFIX) :]] = None

    def _listen(self, now: Now, effects: Effects) -> None:
        for stream in list(self._running.values()):
            for message in effects.sends.pop(stream.origin, ()):
                if isinstance(message, tuple):
                    self._answered(stream, message, now, effects)

    def run(self, now: Now, effects: Effects) -> None:
        if self._awake:
            self.took = False
        while self._awake:
            awake, self._awake = self._awake, {}
            for service in awake:
                stream = self._streams.get(service)
                if stream is not None and self._run(stream, now, effects):
                    self.took = True
            self._listen(now, effects)

    def _run(self, stream: ServiceRuns, now: Now, effects: Effects) -> bool:
        """Dispatches requests of a service while it has free backends; returns True if there was any."""
        method_queues, leases = self._tasks.queue.method_queues, self._tasks.leases
        took = False
        while self._broker.state.serving and not leases.is_closed:
            method_queue = method_queues.find(stream.method)
            head = method_queues.head(method_queue) if method_queue is not None else None
            if method_queue is None or head is None:
                self.short.pop(stream.service, None)
                break
            if not self._has_room(stream, head):
                self.short[stream.service] = None
                break
            for task in method_queues.take(method_queue, 1, effects):
                if leases.pull(task, self.node, now, effects):
                    self._put(stream, task, now, effects)
            took = True
        return took

    def _has_room(self, stream: ServiceRuns, task: QueuedTask) -> bool:
        if len(stream.under_way) >= MAX_UNDER_WAY:
            return False
        if self._bytes and self._bytes + task.size > MAX_UNDER_WAY_BYTES:
            return False
        return self._is_free(stream.service)

    def could_begin(self, method: str) -> bool:
        """True if a backend could start a stored request of this method now."""
        return self._is_free(method.removeprefix(METHOD_PREFIX))

    def _is_free(self, name: str) -> bool:
        service = self._broker.scheduler.services.get(name)
        return service is not None and any(offering.has_room for offering in service.offerings)

    def _put(self, stream: ServiceRuns, task: QueuedTask, now: Now, effects: Effects) -> None:
        """Sends one stored request to a backend."""
        bodies = read_frames(task.params) if task.client == OWN_NAME else None
        if bodies is None:
            message = f"{task.method} is reserved for the broker: clients cannot submit it"
            self._tasks.leases.fail(task, INVALID_PARAMS, error_object(INVALID_PARAMS, message), False, now, effects)
            return
        state = self._broker.state
        policy = state.policies.get(stream.service)
        timeout = DEFAULT_TIMEOUT_SECONDS if policy is None or policy.timeout is None else policy.timeout
        timeout = min(timeout, state.limits.max_request_timeout)
        self._next += 1
        stream.under_way[self._next] = (task, task.attempt)
        self._running[stream.service] = stream
        self._bytes += task.size
        task.drop_params()
        # Without `retry`: the task queue decides whether and when it is tried again.
        stored_by = "" if state.keys is None else state.keys.frontend_of(task.owner)
        self._broker.requests.submit(
            *(stream.origin, self._next, stream.service, bodies, timeout, False, now, effects), sender=stored_by
        )

    def _answered(self, stream: ServiceRuns, message: tuple[Any, ...], now: Now, effects: Effects) -> None:
        """Ends the task of a request that was answered."""
        command, options, *bodies = message
        task, attempt = stream.under_way.pop(options["id"])
        self._bytes -= task.size
        if not stream.under_way:
            del self._running[stream.service]
        self._awake[stream.service] = None
        if task.ended or task.backend is not self.node or task.attempt != attempt:
            return  # closed or requeued meanwhile
        limits, leases = self._broker.state.limits, self._tasks.leases
        if self._broker.state.full:
            # The reply cannot be stored: the request runs again when the disk has room.
            self._put_back(task, now, effects)
        elif command != "REPLY":
            code, again = options["code"], options["code"] in TRIED_AGAIN
            leases.fail(task, code, error_object(code, options["message"]), again, now, effects)
        elif len(bodies) >= limits.max_parts or sum(map(len, bodies)) > limits.max_message_bytes - STATUS_FRAME_BYTES:
            error = error_object(codes.TOO_BIG, "the answer is too big for one message")
            leases.fail(task, codes.TOO_BIG, error, False, now, effects)
        else:
            leases.finish(task, pack_frames(bodies), now, effects)

    def _put_back(self, task: QueuedTask, now: Now, effects: Effects) -> None:
        """Requeues a request; the attempt does not count, because neither the request nor a backend failed."""
        self._tasks.leases.release(task)
        task.starts -= 1
        self._tasks.queue.attempt_over(task, "lost", None, b"", counted=False, now=now, effects=effects)
