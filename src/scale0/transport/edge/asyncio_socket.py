"""A client's socket under an asyncio loop, in place of a thread.

Invariants: notifications are delivered in a separate turn of the loop, never while the socket is locked; everything
that is sent in one turn leaves together.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

from scale0.kernel.clock import Now
from scale0.kernel.edge.clocks import read_now
from scale0.transport.core.session import SessionEffects
from scale0.transport.edge.client_keys import ClientKeys
from scale0.transport.edge.client_socket import ClientSocket, SocketClosedError, SocketSession

Action = Callable[[Now, SessionEffects], None]


class AsyncioSocket:
    def __init__(
        self,
        session: SocketSession,
        notify: Callable[[Any], None],
        after_poll: Callable[[], None] = lambda: None,
        keys: ClientKeys | None = None,
    ) -> None:
        """`notify` receives each notification in order; `after_poll` is called after each look at the socket."""
        self._socket = ClientSocket(session, self._store, keys)
        self._notify = notify
        self._after_poll = after_poll
        self._loop = asyncio.get_running_loop()
        self._notifications: deque[Any] = deque()
        self._actions: list[Action] = []
        self._watched: tuple[int, ...] = ()
        self._generation = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def run(self, action: Action) -> None:
        """Run an action on the session, together with the other actions of this turn of the loop."""
        if not self._actions:
            self._loop.call_soon(self._flush)
        self._actions.append(action)

    def close(self, action: Action) -> None:
        """Run the outstanding actions and a last one, then close the socket."""
        self._flush()
        self._closed = True
        self._socket.close(action)
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()
        self._notify_all()

    def _flush(self) -> None:
        actions, self._actions = self._actions, []
        if not actions:
            return

        def run_all(now: Now, effects: SessionEffects) -> None:
            for action in actions:
                action(now, effects)

        with contextlib.suppress(SocketClosedError):
            self._socket.act(run_all)
            self._update_watch()

    def _poll(self, monitor: bool = False) -> None:
        self._socket.pump(monitor)
        self._update_watch()

    def _update_watch(self) -> None:
        """Watch the current descriptors, and set the timer for the next deadline."""
        if self._closed:
            return
        if self._socket.generation != self._generation:
            self._unwatch()
            self._generation = self._socket.generation
            self._watched = self._socket.descriptors()
            # There are none while disconnected.
            for descriptor, monitor in zip(self._watched, (False, True), strict=False):
                self._loop.add_reader(descriptor, self._poll, monitor)
        self._after_poll()
        due = self._socket.deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = self._loop.call_later(max(0.0, due - read_now().mono), self._poll)

    def _unwatch(self) -> None:
        for descriptor in self._watched:
            self._loop.remove_reader(descriptor)
        self._watched = ()

    def _store(self, notifications: list[Any]) -> None:
        """The socket is locked here: only store the notifications."""
        if not self._notifications:
            self._loop.call_soon(self._notify_all)
        self._notifications.extend(notifications)

    def _notify_all(self) -> None:
        while self._notifications:
            self._notify(self._notifications.popleft())
