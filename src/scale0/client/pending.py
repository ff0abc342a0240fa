"""What threads wait for: a request under way, and news of tasks.

Lives here: answers as they come in, and the gates of those who sleep until then. Never here: who reads the socket.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from scale0.client import payload
from scale0.errors import CallError, error_of
from scale0.kernel import codes
from scale0.tasks.client.futures import TaskFuture
from scale0.transport.core.calls import CallAnswered, ManagementAnswered, PartialReply

if TYPE_CHECKING:
    from scale0.client.client import Client


class Awaited(Protocol):
    """What a thread can wait for."""

    _gates: list[threading.Lock] | None
    """One for each thread that sleeps until it is done."""

    @property
    def done(self) -> bool: ...

    def has_come(self, part: bool) -> bool: ...


class Pending:
    """A request under way. `result()` waits for it."""

    __slots__ = ("_bodies", "_client", "_error", "_gates", "_parts", "done", "raw", "service")

    def __init__(self, client: Client, service: str, raw: bool) -> None:
        self._client = client
        self._gates: list[threading.Lock] | None = None
        """One for each thread that sleeps until it is done."""
        self._bodies: Sequence[bytes] = ()
        self._parts: deque[Sequence[bytes]] | None = None
        self._error: CallError | None = None
        self.service = service
        self.raw = raw
        self.done = False

    def result(self) -> Any:
        """The answer; raises `CallError`. It ends by itself, at the latest a second after the call's timeout."""
        if not self.done:
            self._client._wait(self)
        return self._value()

    def parts(self) -> Iterator[Any]:
        """The parts of a streamed answer as they come; the last one is what the handler returned, if anything."""
        while True:
            self._client._wait(self, parts=True)
            while self._parts:
                yield self._read(self._parts.popleft())
            if self.done:
                break
        last = self._value()
        if last not in (None, []):
            yield last

    def has_come(self, part: bool) -> bool:
        """True if it is done, or (`part`) a part came that nobody took yet."""
        return self.done or (part and bool(self._parts))

    def _value(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._read(self._bodies)

    def _read(self, bodies: Sequence[bytes]) -> Any:
        if self.raw:
            return list(bodies)
        return payload.decode(bodies[0]) if bodies else None

    def _news(self, news: Any) -> None:
        kind = type(news)
        if kind is CallAnswered:
            self._bodies = news.bodies
        elif kind is PartialReply:
            if self._parts is None:
                self._parts = deque()
            self._parts.append(news.bodies)
        elif kind is ManagementAnswered and news.code == codes.OK:
            self._bodies = (news.body,)
        else:
            self._error = error_of(news.code, news.message, self.service)
        self.done = self.done or kind is not PartialReply
        if self._gates is not None:
            self._open_gates()

    def _open_gates(self) -> None:
        open_gates(self._gates)


class PendingWait:
    """A receipt, a watch or a question, as a thread waits for it."""

    __slots__ = ("_gates", "thing", "tickets")

    def __init__(self) -> None:
        self._gates: list[threading.Lock] | None = None
        self.thing: Any = None
        self.tickets: list[TaskFuture] = []
        """Of a receipt: what was submitted."""

    @property
    def done(self) -> bool:
        """True if there is something to be seen."""
        return bool(self.thing.ended)

    def has_come(self, part: bool) -> bool:
        """The same; tasks have no parts."""
        return bool(self.thing.ended)

    def _news(self, _: Any) -> None:
        if self._gates is not None:
            open_gates(self._gates)


def open_gates(gates: list[threading.Lock] | None) -> None:
    """Wake all who sleep."""
    for gate in tuple(gates or ()):
        # Two threads may wake a sleeper at once; a gate is used only once, so the second does no harm.
        with contextlib.suppress(RuntimeError):
            gate.release()
