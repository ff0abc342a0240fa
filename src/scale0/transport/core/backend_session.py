"""A backend's session: requests and tasks over a connection that may break.

Invariants: READY on every new connection names the requests and tasks in flight (`holds`), so that the broker gives
them to nobody else; what does not fit there is no longer in flight; an answer waits, within a limit, for the next
connection; an answer that lost a part is never completed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from scale0.kernel.clock import Now
from scale0.kernel.effects import Message
from scale0.kernel.limits import Limits
from scale0.transport.core import codec
from scale0.transport.core import messages as options
from scale0.transport.core.command_table import client_codec
from scale0.transport.core.request_batches import separated
from scale0.transport.core.session import DOWN, ENDED, READYING, UP, Session, SessionEffects
from scale0.transport.core.sockets import BACKEND

if TYPE_CHECKING:
    import random

TASK_COMMANDS: Final = frozenset({"TASKS", "TASKSOK", "TASKSCANCEL"})
ANSWERS: Final = frozenset({"PARTIAL", "REPLY", "ERROR"})
MAX_WAITING_BYTES: Final = 64 * 1024 * 1024
"""Answers kept while disconnected; the oldest are dropped first, because their requests have timed out."""

MAX_MESSAGE_CHARS: Final = 2_000
"""Length of an error message: a longer one could exceed the limit for options, and the broker would disconnect us."""

_to_json: Final = msgspec.json.Encoder().encode


class TaskProtocol(Protocol):
    """The tasks of a backend, as its session uses them."""

    def receive_tasks(self, command: str, body: bytes, notifications: list[Any]) -> None:
        """Handle one of TASK_COMMANDS."""
        ...

    def recall(self, body: bytes) -> None:
        """Handle TASKSCANCEL with `recall`: return tasks that have not started."""
        ...

    def take_messages(self, now: Now) -> Iterable[tuple[str, bytes]]:
        """The commands and bodies to send now."""
        ...

    def connected(self) -> None: ...

    def set_broker(self, broker: str) -> None:
        """Set the broker, or the group, that the connection leads to; empty if unknown."""
        ...

    @property
    def is_idle(self) -> bool:
        """True while no task of the current broker is in flight."""
        ...

    def holds(self, room: int) -> Sequence[tuple[str, int]]:
        """The tasks in flight that fit into `room` bytes; waiting tasks that do not fit are dropped."""
        ...

    def tick(self, now: Now) -> None: ...

    def deadline(self) -> float | None: ...


class RequestReceived(msgspec.Struct, frozen=True, gc=False):
    """Notification: a request to run."""

    id: str
    service: str
    bodies: Sequence[bytes]
    timeout: float


class OfferAccepted(msgspec.Struct, frozen=True):
    """Notification: the broker has accepted the current offer; work that came earlier belongs to the old one."""


class BackendSession:
    def __init__(
        self,
        endpoints: Sequence[str],
        identity: str | None,
        services: Iterable[str],
        slots: int,
        rng: random.Random,
        heartbeat_interval: float | None = None,
        limits: Limits | None = None,
        tasks: TaskProtocol | None = None,
        prefetch: int = 0,
        service_slots: Mapping[str, int] | None = None,
    ) -> None:
        """With `tasks` the backend accepts tasks as well, `prefetch` of them ahead of its slots. `slots` is the total;
        `service_slots` has the slots of each service (None: the total counts for each)."""
        self._tasks = tasks
        self._prefetch = prefetch if tasks is not None else 0
        self._limits = limits or Limits()
        self._codec = client_codec(self._limits)
        self._services = sorted(set(services))
        self._slots = slots
        self._service_slots = service_slots
        self._heartbeat_interval = heartbeat_interval
        self.in_flight: set[str] = set()
        self._partial: set[str] = set()
        """Requests with a partial answer on this connection: if it breaks, nobody knows which parts arrived."""
        self._streamed: set[str] = set()
        """Requests with partial answers that ended in this turn: they are not in `_partial` any more, but may not have
        left yet."""
        self._waiting: deque[tuple[Any, ...]] = deque()
        self._waiting_bytes = 0
        self.connection = Session(
            BACKEND, endpoints, identity, rng, lambda: self._services, self._ready, is_idle=lambda: self.is_idle
        )

    def start(self, now: Now, effects: SessionEffects) -> None:
        self.connection.start(now, effects)

    def offer(
        self,
        services: Iterable[str],
        slots: int,
        now: Now,
        effects: SessionEffects,
        service_slots: Mapping[str, int] | None = None,
    ) -> None:
        """Offer these services from now on; an empty list drains the worker."""
        self._services = sorted(set(services))
        self._slots = slots
        self._service_slots = service_slots
        if self.connection.state in (READYING, UP):
            # Also while a READY is unanswered: its content is outdated now.
            self.connection.send_ready(now, effects)

    def end(self, now: Now, effects: SessionEffects) -> None:
        self.connection.end(now, effects)

    def partial(self, id_: str, bodies: Sequence[bytes], now: Now, effects: SessionEffects) -> None:
        self._answer(("PARTIAL", {"id": id_}, *bodies), now, effects)

    def reply(self, id_: str, bodies: Sequence[bytes], now: Now, effects: SessionEffects) -> None:
        self._answer(("REPLY", {"id": id_}, *bodies), now, effects)

    def error(self, id_: str, code: int, message: str, now: Now, effects: SessionEffects) -> None:
        self._answer(("ERROR", {"id": id_, "code": code, "message": fit_message(message)}), now, effects)

    @property
    def is_idle(self) -> bool:
        return not self.in_flight and (self._tasks is None or self._tasks.is_idle)

    @property
    def request_batches(self) -> bool:
        """True if replies may leave as REPLIES."""
        return self.connection.request_batches

    @property
    def is_up(self) -> bool:
        return self.connection.state == UP

    def send_tasks(self, now: Now, effects: SessionEffects) -> None:
        """Send what the tasks have to send; while disconnected they keep it."""
        if self._tasks is None or self.connection.state != UP:
            return
        for command, body in self._tasks.take_messages(now):
            effects.sends.append((command, {}, body))
            self.connection.last_sent = now.mono

    def closed(self, reason: str, now: Now, effects: SessionEffects) -> None:
        self.connection.closed(reason, now, effects)
        self._drop_partial()

    def unsent(self, messages: Sequence[Any]) -> None:
        """These messages never left: whole answers wait for the next connection, partial ones are lost."""
        for message in reversed(messages):
            if message[0] in ANSWERS and message[1]["id"] not in self._partial | self._streamed:
                self.in_flight.add(message[1]["id"])
                self._waiting.appendleft(message)
                self._waiting_bytes += size_of(message)

    def never_connected(self) -> None:
        """Nothing is sent before READYOK, so nothing was lost."""

    def receive(self, frames: list[bytes], now: Now, effects: SessionEffects) -> None:
        connection = self.connection
        connection.last_received = now.mono
        if not frames or frames[0] != codec.MAGIC or connection.state in (DOWN, ENDED):
            return
        before = connection.state
        for command, options_in, bodies in self._codec.messages(frames):
            self._handle(command, options_in, bodies, now, effects)
        if before != UP and connection.state == UP:
            self._send_waiting(now, effects)
        self._drop_partial()

    def _handle(
        self, command: str, options_in: Any, bodies: Sequence[bytes], now: Now, effects: SessionEffects
    ) -> None:
        if command == "REQUEST":
            self.in_flight.add(options_in.id)
            effects.notifications.append(
                RequestReceived(options_in.id, options_in.service, bodies, options_in.timeout or 0.0)
            )
        elif command == "REQUESTS":
            service, timeout = options_in.service, options_in.timeout or 0.0
            for id_, body in separated(options_in, bodies):
                self.in_flight.add(id_)
                effects.notifications.append(RequestReceived(id_, service, (body,), timeout))
        elif command in TASK_COMMANDS:
            if self._tasks is None or not bodies:
                return
            if command == "TASKSCANCEL" and options_in.recall:
                self._tasks.recall(bodies[0])
            else:
                self._tasks.receive_tasks(command, bodies[0], effects.notifications)
        else:
            self.connection.receive(command, options_in, bodies, now, effects)
            if command == "READYOK":
                effects.notifications.append(OfferAccepted())

    def tick(self, now: Now, effects: SessionEffects) -> None:
        self.connection.tick(True, now, effects)
        self._drop_partial()
        if self._tasks is not None:
            self._tasks.tick(now)
            self.send_tasks(now, effects)

    def deadline(self) -> float | None:
        due = self.connection.deadline(True)
        again = None if self._tasks is None else self._tasks.deadline()
        if due is None or again is None or self.connection.state != UP:
            return due
        return min(due, again)

    def _drop_partial(self) -> None:
        """After a connection loss, drop answers that had begun on it: they would be incomplete."""
        if self._partial and self.connection.state == DOWN:
            self.in_flight -= self._partial
            self._waiting = deque(message for message in self._waiting if message[1]["id"] not in self._partial)
            self._waiting_bytes = sum(map(size_of, self._waiting))
            self._partial.clear()

    def _ready(self, now: Now) -> Message:
        services = [] if self.connection.is_draining else self._services
        each = self._service_slots
        ready = options.Ready(
            services=services,
            heartbeat_interval=self._heartbeat_interval,
            time=now.wall,
            config_version=self.connection.config_version,
            slots=self._slots,
            service_slots=[each[name] for name in services] if each is not None else [],
            prefetch=self._prefetch,
            returns=self._tasks is not None,
        )
        if self.connection.state == UP:
            # The broker knows what we have in flight, and ignores `holds` here.
            return ("READY", ready)
        if self._tasks is not None:
            self._tasks.set_broker(self.connection.addresses.owner)
        in_options = self._limits.max_options_bytes - len(_to_json(ready))
        holds = self._held(options.MAX_HOLDS_BYTES if self.connection.long_holds else in_options)
        if self.connection.long_holds and len(_to_json(holds)) > in_options:
            return ("READY", ready, options.pack_holds(holds))
        return ("READY", msgspec.structs.replace(ready, holds=holds) if holds else ready)

    def _held(self, room: int) -> list[tuple[str, int]]:
        """The requests and tasks in flight, as far as they fit into so many bytes; the others are dropped, and run
        elsewhere.

        A request is named with attempt 0, which no task has.
        """
        holds: list[tuple[str, int]] = []
        for id_ in sorted(self.in_flight):
            needed = len(_to_json((id_, 0))) + 1
            if needed > room:
                break
            room -= needed
            holds.append((id_, 0))
        if len(holds) < len(self.in_flight):
            self.in_flight &= {id_ for id_, _ in holds}
        if self._tasks is not None:
            holds.extend(self._tasks.holds(room))
        return holds

    def _answer(self, message: tuple[Any, ...], now: Now, effects: SessionEffects) -> None:
        if self.connection.state == UP:
            self._send(message, effects)
            self.connection.last_sent = now.mono
            return
        self._waiting.append(message)
        self._waiting_bytes += size_of(message)
        while self._waiting_bytes > MAX_WAITING_BYTES:
            dropped = self._waiting.popleft()
            self._waiting_bytes -= size_of(dropped)
            self.in_flight.discard(dropped[1]["id"])

    def _send_waiting(self, now: Now, effects: SessionEffects) -> None:
        for message in self._waiting:
            self._send(message, effects)
        self._waiting.clear()
        self._waiting_bytes = 0
        self.connection.last_sent = now.mono
        if self._tasks is not None:
            self._tasks.connected()
            self.send_tasks(now, effects)

    def _send(self, message: tuple[Any, ...], effects: SessionEffects) -> None:
        """A request stays in flight until its answer is sent: a READY in between must still name it."""
        id_ = message[1]["id"]
        if not effects.sends and self._streamed:
            self._streamed.clear()
        effects.sends.append(message)
        if message[0] == "PARTIAL":
            self._partial.add(id_)
            return
        self.in_flight.discard(id_)
        if id_ in self._partial:
            self._partial.discard(id_)
            self._streamed.add(id_)


def fit_message(message: str) -> str:
    """An error message that can be encoded and is not too long: cut, and without lone surrogates."""
    return message[:MAX_MESSAGE_CHARS].encode("utf-8", "replace").decode()


def size_of(message: tuple[Any, ...]) -> int:
    return sum(len(body) for body in message[2:])
