"""A backend's session: work over a line that may break.

Lives here: requests in hand, answers that wait for the line, and changing what is offered. Never here: running the
work, or the rules of tasks, which are joined to it as `TaskProtocol`.
Invariants: what is in hand is named in the READY of every new connection (`holds`), so that nobody else is given it
while we live, and what finds no room there is in hand no longer; an answer waits, within a limit, until there is a line
to say it on; an answer with a hole is never finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from scale0.kernel.clock import Now
from scale0.kernel.limits import Limits
from scale0.transport.core import codec
from scale0.transport.core import messages as options
from scale0.transport.core.command_table import told_codec
from scale0.transport.core.session import DOWN, ENDED, READYING, UP, Session
from scale0.transport.core.session_effects import SessionEffects
from scale0.transport.core.sockets import BACKEND

if TYPE_CHECKING:
    import random

TASK_COMMANDS: Final = frozenset({"TASKS", "TASKSOK", "TASKSCANCEL"})
ANSWERS: Final = frozenset({"PARTIAL", "REPLY", "ERROR"})
MAX_WAITING_BYTES: Final = 64 * 1024 * 1024
"""Answers kept while there is no line; older ones are dropped first, their requests have timed out."""

MAX_MESSAGE_CHARS: Final = 2_000
"""Characters of an error: with any more of them its options may be too big, and the broker lets us go."""

_to_json: Final = msgspec.json.Encoder().encode


class TaskProtocol(Protocol):
    """The tasks in hand, as a session needs them: it has the line, they have what is said on it."""

    def hear(self, command: str, body: bytes, news: list[Any]) -> None:
        """One of TASK_COMMANDS."""
        ...

    def give_back(self, body: bytes) -> None:
        """TASKSCANCEL that takes back what is not begun."""
        ...

    def say(self, now: Now) -> Iterable[tuple[str, bytes]]:
        """Commands and their bodies that are to be said; the line is up."""
        ...

    def come_up(self) -> None:
        """The line is up anew."""
        ...

    def meet(self, broker: str) -> None:
        """Whom the line leads to from now on; empty: nobody knows."""
        ...

    @property
    def is_idle(self) -> bool:
        """True while nothing of the broker that we have met is in hand."""
        ...

    def holds(self, room: int) -> Sequence[tuple[str, int]]:
        """What is in hand, as far as it fits into so many bytes; the rest is let go."""
        ...

    def tick(self, now: Now) -> None:
        """Time has passed."""
        ...

    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        ...


class RequestReceived(msgspec.Struct, frozen=True, gc=False):
    """News: a request to be done."""

    id: str
    service: str
    bodies: Sequence[bytes]
    timeout: float


class OfferAccepted(msgspec.Struct, frozen=True):
    """News: the broker has taken in what we offer now; whatever came before it was given by the old offer."""


class BackendSession:
    """A backend, without the socket."""

    def __init__(
        self,
        endpoints: Sequence[str],
        identity: str | None,
        services: Iterable[str],
        slots: int,
        chance: random.Random,
        heartbeat_interval: float | None = None,
        limits: Limits | None = None,
        tasks: TaskProtocol | None = None,
        prefetch: int = 0,
    ) -> None:
        """`tasks`: it takes tasks as well, `prefetch` of them ahead of its slots."""
        self._tasks = tasks
        self._prefetch = prefetch if tasks is not None else 0
        self._limits = limits or Limits()
        self._codec = told_codec(self._limits)
        self._services = sorted(set(services))
        self._slots = slots
        self._asked_interval = heartbeat_interval
        self.in_hand: set[str] = set()
        self._begun: set[str] = set()
        """Of these, parts of the answer went out on this line: if it breaks, nobody knows which of them arrived."""
        self._streamed: set[str] = set()
        """Answers with parts that ended in this very step: they have left `_begun`, but not yet the house."""
        self._waiting: deque[tuple[Any, ...]] = deque()
        self._waiting_bytes = 0
        self.line = Session(
            BACKEND, endpoints, identity, chance, lambda: self._services, self._ready, is_idle=lambda: self.is_idle
        )

    def start(self, now: Now, out: SessionEffects) -> None:
        """Connect."""
        self.line.start(now, out)

    def offer(self, services: Iterable[str], slots: int, now: Now, out: SessionEffects) -> None:
        """Offer something else from now on; nothing: drain."""
        self._services = sorted(set(services))
        self._slots = slots
        if self.line.state in (READYING, UP):
            # Also while a READY is unanswered: what it said is old now, and nothing else would say the new.
            self.line.say_ready(now, out)

    def end(self, now: Now, out: SessionEffects) -> None:
        """Leave in order."""
        self.line.end(now, out)

    def partial(self, id_: str, bodies: Sequence[bytes], now: Now, out: SessionEffects) -> None:
        """A part of an answer."""
        self._say(("PARTIAL", {"id": id_}, *bodies), now, out)

    def reply(self, id_: str, bodies: Sequence[bytes], now: Now, out: SessionEffects) -> None:
        """The last of an answer."""
        self._say(("REPLY", {"id": id_}, *bodies), now, out)

    def error(self, id_: str, code: int, message: str, now: Now, out: SessionEffects) -> None:
        """It could not be done."""
        self._say(("ERROR", {"id": id_, "code": code, "message": fit_message(message)}), now, out)

    @property
    def is_idle(self) -> bool:
        """True while nothing of this broker's is in hand."""
        return not self.in_hand and (self._tasks is None or self._tasks.is_idle)

    @property
    def is_up(self) -> bool:
        """True while what is said is heard."""
        return self.line.state == UP

    def say_tasks(self, now: Now, out: SessionEffects) -> None:
        """Say what the tasks in hand have to say; while there is no line, they keep it."""
        if self._tasks is None or self.line.state != UP:
            return
        for command, body in self._tasks.say(now):
            out.sends.append((command, {}, body))
            self.line.sent = now.mono

    def closed(self, reason: str, now: Now, out: SessionEffects) -> None:
        """The socket says that the connection is gone."""
        self.line.closed(reason, now, out)
        self._let_go()

    def unsent(self, messages: Sequence[Any]) -> None:
        """These never left: whole answers wait for the next line, those that had begun are lost with this one."""
        for message in reversed(messages):
            if message[0] in ANSWERS and message[1]["id"] not in self._begun | self._streamed:
                self.in_hand.add(message[1]["id"])
                self._waiting.appendleft(message)
                self._waiting_bytes += size_of(message)

    def never_connected(self) -> None:
        """The last connection never came to be: nothing is said before READYOK, so nothing was lost."""

    def receive(self, frames: list[bytes], now: Now, out: SessionEffects) -> None:
        """One message from the broker."""
        line = self.line
        line.heard = now.mono
        if not frames or frames[0] != codec.MAGIC or line.state in (DOWN, ENDED):
            return
        before = line.state
        for command, said, bodies in self._codec.messages(frames):
            self._heed(command, said, bodies, now, out)
        if before != UP and line.state == UP:
            self._catch_up(now, out)
        self._let_go()

    def _heed(self, command: str, said: Any, bodies: Sequence[bytes], now: Now, out: SessionEffects) -> None:
        if command == "REQUEST":
            self.in_hand.add(said.id)
            out.news.append(RequestReceived(said.id, said.service, bodies, said.timeout or 0.0))
        elif command in TASK_COMMANDS:
            if self._tasks is None or not bodies:
                return
            if command == "TASKSCANCEL" and said.recall:
                self._tasks.give_back(bodies[0])
            else:
                self._tasks.hear(command, bodies[0], out.news)
        else:
            self.line.receive(command, said, bodies, now, out)
            if command == "READYOK":
                out.news.append(OfferAccepted())

    def tick(self, now: Now, out: SessionEffects) -> None:
        """Look after the line."""
        self.line.tick(True, now, out)
        self._let_go()
        if self._tasks is not None:
            self._tasks.tick(now)
            self.say_tasks(now, out)

    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        due = self.line.deadline(True)
        again = None if self._tasks is None else self._tasks.deadline()
        if due is None or again is None or self.line.state != UP:
            return due
        return min(due, again)

    def _let_go(self) -> None:
        """The line is lost: answers that had begun on it cannot be finished without a hole, so they are dropped."""
        if self._begun and self.line.state == DOWN:
            self.in_hand -= self._begun
            self._waiting = deque(message for message in self._waiting if message[1]["id"] not in self._begun)
            self._waiting_bytes = sum(map(size_of, self._waiting))
            self._begun.clear()

    def _ready(self, now: Now) -> options.Ready:
        ready = options.Ready(
            services=[] if self.line.leaving else self._services,
            heartbeat_interval=self._asked_interval,
            time=now.wall,
            config_version=self.line.config_version,
            slots=self._slots,
            prefetch=self._prefetch,
            returns=self._tasks is not None,
        )
        if self.line.state == UP:
            # The broker knows what we have in hand, and would not heed it.
            return ready
        if self._tasks is not None:
            self._tasks.meet(self.line.book.owner)
        holds = self._hold(len(_to_json(ready)))
        return msgspec.structs.replace(ready, holds=holds) if holds else ready

    def _hold(self, used: int) -> list[tuple[str, int]]:
        """What is in hand, as far as there is room in the options; the rest is let go, to be done elsewhere.

        Requests are named with attempt 0, which no task has.
        """
        room = self._limits.max_options_bytes - used
        holds: list[tuple[str, int]] = []
        for id_ in sorted(self.in_hand):
            needed = len(_to_json((id_, 0))) + 1
            if needed > room:
                break
            room -= needed
            holds.append((id_, 0))
        if len(holds) < len(self.in_hand):
            self.in_hand &= {id_ for id_, _ in holds}
        if self._tasks is not None:
            holds.extend(self._tasks.holds(room))
        return holds

    def _say(self, message: tuple[Any, ...], now: Now, out: SessionEffects) -> None:
        if self.line.state == UP:
            self._send(message, out)
            self.line.sent = now.mono
            return
        self._waiting.append(message)
        self._waiting_bytes += size_of(message)
        while self._waiting_bytes > MAX_WAITING_BYTES:
            dropped = self._waiting.popleft()
            self._waiting_bytes -= size_of(dropped)
            self.in_hand.discard(dropped[1]["id"])

    def _catch_up(self, now: Now, out: SessionEffects) -> None:
        for message in self._waiting:
            self._send(message, out)
        self._waiting.clear()
        self._waiting_bytes = 0
        self.line.sent = now.mono
        if self._tasks is not None:
            self._tasks.come_up()
            self.say_tasks(now, out)

    def _send(self, message: tuple[Any, ...], out: SessionEffects) -> None:
        """It is in hand until its answer is on a line: a READY in between must still name it."""
        id_ = message[1]["id"]
        if not out.sends and self._streamed:
            self._streamed.clear()
        out.sends.append(message)
        if message[0] == "PARTIAL":
            self._begun.add(id_)
            return
        self.in_hand.discard(id_)
        if id_ in self._begun:
            self._begun.discard(id_)
            self._streamed.add(id_)


def fit_message(message: str) -> str:
    """An error's message that every wire takes: not too long, and without lone surrogates."""
    return message[:MAX_MESSAGE_CHARS].encode("utf-8", "replace").decode()


def size_of(message: tuple[Any, ...]) -> int:
    """The bytes of a message's bodies."""
    return sum(len(body) for body in message[2:])
