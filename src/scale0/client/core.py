"""What `Client` and `AsyncClient` share: setup, validation, building requests, and the state of what they wait for.

An operation with waits is a generator of `Step`s: the client runs it, and waits at each step in its own way, with a
thread or a coroutine.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from scale0.client import payload
from scale0.client.argument_checks import check_command, check_request, check_timeout, endpoints_of
from scale0.errors import CallError, TooMany, error_of
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.tasks.client.futures import FutureChanged, TaskFuture
from scale0.tasks.client.task_client import TaskClientSession
from scale0.transport.core.calls import CallAnswered, CallFailed, ManagementAnswered, PartialReply
from scale0.transport.core.frontend_session import FrontendSession
from scale0.transport.core.session import SessionEffects
from scale0.transport.edge.client_keys import keys_for
from scale0.transport.edge.client_socket import ClientSocket

DEFAULT_ENDPOINT: Final = "tcp://127.0.0.1:5700"
DEFAULT_TIMEOUT: Final = 30.0
DEFAULT_IN_FLIGHT: Final = 100
PAGE_PAUSE_SECONDS: Final = 0.25
MAX_PAGE_PAUSES: Final = 20
"""Of a list, before a page that a broker refuses with 429 is an error."""
TASK_CLIENT_BITS: Final = 96
"""Random bits in the id of a task client without an identity."""
TAGGED: Final = frozenset({CallAnswered, PartialReply, CallFailed, ManagementAnswered, FutureChanged})
"""Notifications with a `tag`; the others concern the connection."""

Action = Callable[[Now, SessionEffects], None]
TaskAction = Callable[[Now], None]
Waker = Callable[[], object]
Result = TypeVar("Result")


class CallReply:
    """One call: its parts, its answer or its error, as far as they have arrived. Values are decoded on demand."""

    __slots__ = ("bodies", "done", "error", "parts", "raw", "service", "wakers")

    def __init__(self, service: str, raw: bool) -> None:
        self.service = service
        self.raw = raw
        self.bodies: Sequence[bytes] = ()
        self.parts: deque[Sequence[bytes]] | None = None
        self.error: CallError | None = None
        self.done = False
        self.wakers: list[Waker] | None = None
        """One for each thread or coroutine that waits; each is called once."""

    def is_ready(self, part: bool) -> bool:
        """True if it is done, or (`part`) has an unread part."""
        return self.done or (part and bool(self.parts))

    def receive(self, notification: Any) -> None:
        kind = type(notification)
        if kind is CallAnswered:
            self.bodies = notification.bodies
        elif kind is PartialReply:
            if self.parts is None:
                self.parts = deque()
            self.parts.append(notification.bodies)
        elif kind is ManagementAnswered and notification.code == codes.OK:
            self.bodies = (notification.body,)
        else:
            self.error = error_of(notification.code, notification.message, self.service)
            if kind is ManagementAnswered and notification.body:
                self.error.detail = payload.decode(notification.body)
        self.done = self.done or kind is not PartialReply
        if self.wakers is not None:
            wake(self)

    def value(self) -> Any:
        if self.error is not None:
            raise self.error
        return self._decode(self.bodies)

    def stream(self) -> Iterator[Any]:
        """The parts, then the last value, if any; the reply itself whenever the client must wait for more."""
        while True:
            if not self.is_ready(part=True):
                yield self
            while self.parts:
                yield self._decode(self.parts.popleft())
            if self.done:
                break
        last = self.value()
        if last not in (None, []):
            yield last

    def _decode(self, bodies: Sequence[bytes]) -> Any:
        if self.raw:
            return list(bodies)
        return payload.decode(bodies[0]) if bodies else None


class TaskOperation:
    """An operation of the task client: a submission, a wait or a query."""

    __slots__ = ("futures", "state", "wakers")

    def __init__(self) -> None:
        self.state: Any = None
        """A SubmissionReceipt, FutureWait or TaskQuery; None until an AsyncClient has run the operation."""
        self.futures: list[TaskFuture] = []
        """The tasks of a submission."""
        self.wakers: list[Waker] | None = None

    @property
    def done(self) -> bool:
        return self.state is not None and bool(self.state.ended)

    def is_ready(self, part: bool) -> bool:
        return self.done

    def receive(self, _: Any = None) -> None:
        if self.wakers is not None:
            wake(self)


Awaited = CallReply | TaskOperation
Step = tuple[Awaited, float | None]
"""What to wait for, and for how long at most."""
Steps = Generator[Step, None, Result]


class ClientHost(Protocol):
    """How a client runs actions on its session: `Client` at once, `AsyncClient` at the end of a turn of its loop."""

    def _act(self, action: Action) -> None: ...
    def _act_on_tasks(self, action: TaskAction) -> None: ...

    def _flush(self) -> None:
        """Run the scheduled actions now."""
        ...

    def _send_off(self, awaited: Awaited) -> None:
        """Let a message leave, though its answer is not waited for."""
        ...


class ClientCore:
    """The session, the socket and the defaults of one client."""

    def __init__(
        self,
        host: ClientHost,
        deliver: Callable[[list[Any]], None],
        endpoint: str | Sequence[str],
        identity: str | None,
        timeout: float,
        retry: bool,
        patience: float | None,
        task_client: str | None,
        key: str | Path | None,
        server_key: str | None,
    ) -> None:
        endpoints = endpoints_of(endpoint, "tcp://host:5700")
        rng = random.SystemRandom()
        owner = task_client or identity or f"c-{rng.getrandbits(TASK_CLIENT_BITS):024x}"
        self.host = host
        self.tasks = TaskClientSession(owner, rng)
        self.session = FrontendSession(endpoints, identity, rng, patience, sub_protocol=self.tasks)
        keys = keys_for(self.session.connection.addresses, endpoints, key, server_key)
        self.socket = ClientSocket(self.session, deliver, keys)
        self.timeout = check_timeout(timeout)
        self.retry = retry
        self.is_closed = False

    def start(
        self, service: str, bodies: Sequence[bytes], timeout: float | None, retry: bool | None, raw: bool
    ) -> CallReply:
        check_request(service, bodies)
        reply = CallReply(service, raw)
        seconds = self.timeout if timeout is None else check_timeout(timeout)
        again = self.retry if retry is None else retry
        self.host._act(partial(self.session.request, service, bodies, seconds, again, reply))
        return reply

    def map(
        self,
        service: str,
        items: Iterable[Any],
        in_flight: int,
        timeout: float | None,
        retry: bool | None,
        raw: bool,
    ) -> Iterator[CallReply]:
        """The replies of one call for each item, in order; at most `in_flight` calls are outstanding."""
        if in_flight < 1:
            raise ValueError(f"in_flight is at least 1, not {in_flight}")
        source = iter(items)
        window: deque[CallReply] = deque()
        more = True
        while more or window:
            if more and len(window) <= in_flight // 2:
                # Refill by halves: the requests of one refill leave as one BATCH.
                some = itertools.islice(source, in_flight - len(window))
                bodies = [item if raw else payload.encode_arguments((item,), {}) for item in some]
                window += self._start_many(service, bodies, timeout, retry, raw)
                more = len(window) >= in_flight
            if window:
                yield window.popleft()

    def _start_many(
        self, service: str, bodies: Sequence[bytes], timeout: float | None, retry: bool | None, raw: bool
    ) -> list[CallReply]:
        check_request(service, bodies)
        replies = [CallReply(service, raw) for _ in bodies]
        seconds = self.timeout if timeout is None else check_timeout(timeout)
        again = self.retry if retry is None else retry

        def request_all(now: Now, effects: SessionEffects) -> None:
            for body, reply in zip(bodies, replies, strict=True):
                self.session.request(service, (body,), seconds, again, reply, now, effects)

        self.host._act(request_all)
        return replies

    def manage(self, command: str, timeout: float | None, arguments: dict[str, Any]) -> CallReply:
        reply = CallReply(command, raw=False)
        body = payload.body_of(arguments)
        options = {"command": command, **arguments}
        check_command(options)
        seconds = self.timeout if timeout is None else check_timeout(timeout)
        self.host._act(partial(self.session.manage, options, body, seconds, reply))
        return reply

    def rows(self, service: str) -> Steps[list[dict[str, Any]]]:
        """All pages of a discovery service. A broker builds so many for one client in a second: wait for the others."""
        rows: list[dict[str, Any]] = []
        arguments: dict[str, str] = {}
        pauses = MAX_PAGE_PAUSES
        while True:
            reply = self.start(service, (payload.encode_arguments((), arguments),), None, None, raw=False)
            yield reply, None
            if isinstance(reply.error, TooMany) and pauses:
                pauses -= 1
                yield CallReply(service, raw=False), PAGE_PAUSE_SECONDS
                continue
            pauses = MAX_PAGE_PAUSES
            page = reply.value()
            rows += page["items"]
            if page["next"] is None:
                return rows
            arguments = {"after": page["next"]}


def deliver(notifications: Iterable[Any]) -> None:
    """Hand each notification to the operation that it is for."""
    for notification in notifications:
        if type(notification) in TAGGED:
            notification.tag.receive(notification)


def register(awaited: Awaited, waker: Waker) -> None:
    """Have `waker` called when something arrives. Another thread may just be calling the others: check once more
    whether it is ready before you wait."""
    wakers = awaited.wakers
    if wakers is None:
        wakers = awaited.wakers = []
    wakers.append(waker)


def unregister(awaited: Awaited, waker: Waker) -> None:
    wakers = awaited.wakers
    if wakers is not None and waker in wakers:
        wakers.remove(waker)


def wake(awaited: Awaited) -> None:
    """Call each waker once: one that has to wait again registers again."""
    wakers, awaited.wakers = awaited.wakers or (), None
    for waker in tuple(wakers):
        try:
            waker()
        except RuntimeError:
            pass  # two threads may release a lock at once; it is used only once
