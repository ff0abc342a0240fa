"""A tether: a client's link that the event loop watches, in place of a thread.

Lives here: which descriptors the loop watches, and when it looks by itself. Never here: what is said. Invariants: news
are heard in a turn of the loop of their own, never while the link is locked; what is said in one turn leaves together.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

from scale0.kernel.clock import Now
from scale0.kernel.edge.clocks import read_now
from scale0.transport.core.session_effects import SessionEffects
from scale0.transport.edge.client_keys import ClientKeys
from scale0.transport.edge.client_socket import ClientSocket, SocketClosedError, SocketSession

Say = Callable[[Now, SessionEffects], None]


class AsyncioSocket:
    """One session, its link, and the loop."""

    def __init__(
        self,
        session: SocketSession,
        hear: Callable[[Any], None],
        looked: Callable[[], None] = lambda: None,
        keys: ClientKeys | None = None,
    ) -> None:
        """`hear` gets each piece of news, in order; `looked` is called after every look at the socket."""
        self._link = ClientSocket(session, self._deliver, keys)
        self._hear = hear
        self._looked = looked
        self._loop = asyncio.get_running_loop()
        self._news: deque[Any] = deque()
        self._says: list[Say] = []
        self._watched: tuple[int, ...] = ()
        self._generation = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def say(self, do: Say) -> None:
        """Let the session do something, together with whatever else is said in this turn of the loop."""
        if not self._says:
            self._loop.call_soon(self._flush)
        self._says.append(do)

    def close(self, do: Say) -> None:
        """What is to be said is said, then a last word, and the socket is closed."""
        self._flush()
        self._closed = True
        self._link.close(do)
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()
        self._tell()

    def _flush(self) -> None:
        says, self._says = self._says, []
        if not says:
            return

        def all_of_it(now: Now, out: SessionEffects) -> None:
            for do in says:
                do(now, out)

        with contextlib.suppress(SocketClosedError):
            self._link.act(all_of_it)
            self._settle()

    def _readable(self, monitor: bool = False) -> None:
        self._link.pump(monitor)
        self._settle()

    def _settle(self) -> None:
        """Watch the present socket, and wake up for the next deadline."""
        if self._closed:
            return
        if self._link.generation != self._generation:
            self._unwatch()
            self._generation = self._link.generation
            self._watched = self._link.descriptors()
            # None while there is no connection.
            for descriptor, monitor in zip(self._watched, (False, True), strict=False):
                self._loop.add_reader(descriptor, self._readable, monitor)
        self._looked()
        due = self._link.deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = self._loop.call_later(max(0.0, due - read_now().mono), self._readable)

    def _unwatch(self) -> None:
        for descriptor in self._watched:
            self._loop.remove_reader(descriptor)
        self._watched = ()

    def _deliver(self, news: list[Any]) -> None:
        """The link is locked: nothing is done here but to remember."""
        if not self._news:
            self._loop.call_soon(self._tell)
        self._news.extend(news)

    def _tell(self) -> None:
        while self._news:
            self._hear(self._news.popleft())
