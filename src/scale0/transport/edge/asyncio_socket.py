"""A client's socket under an asyncio loop, in place of a thread."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable
from typing import Any

from scale0.kernel.clock import Now
from scale0.kernel.edge.clocks import read_now
from scale0.transport.core.session import SessionEffects
from scale0.transport.edge.client_keys import ClientKeys
from scale0.transport.edge.client_socket import ClientSocket, SocketClosedError, SocketSession

Action = Callable[[Now, SessionEffects], None]


class SocketWatcher:
    """Watches the connection and the deadline of a client socket; `update` after each use of the socket."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, socket: ClientSocket, after_poll: Callable[[], None] = lambda: None
    ) -> None:
        self._loop = loop
        self._socket = socket
        self._after_poll = after_poll
        self._watched = -1
        self._generation = 0
        loop.add_reader(socket.wake_descriptor, self._woken)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._is_stopped = False

    def update(self) -> None:
        """Watch the current descriptor, and set the timer for the next deadline."""
        if self._is_stopped:
            return
        if self._socket.generation != self._generation:
            self._watch()
        self._after_poll()
        due = self._socket.deadline()
        if due is None or due >= self._timer_at:
            return  # a timer that fires too early costs less than a new one after each message
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_later(max(0.0, due - read_now().mono), self._expire)

    def stop(self) -> None:
        self._is_stopped = True
        self._unwatch()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._socket.wake_descriptor)
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self._poll()

    def _woken(self) -> None:
        """A name was resolved."""
        self._socket.clear_wake()
        self._poll()

    def _poll(self) -> None:
        self._socket.pump()
        self.update()

    def _watch(self) -> None:
        self._unwatch()
        self._generation = self._socket.generation
        self._watched, wants_write = self._socket.interest
        if self._watched >= 0:
            self._loop.add_reader(self._watched, self._poll)
            if wants_write:
                self._loop.add_writer(self._watched, self._poll)

    def _unwatch(self) -> None:
        if self._watched >= 0 and not self._loop.is_closed():
            self._loop.remove_reader(self._watched)
            self._loop.remove_writer(self._watched)
        self._watched = -1


class AsyncioSocket:
    """A session and its socket in the running loop.

    Invariants: notifications are delivered in a separate turn of the loop, never while the socket is locked; everything
    that is sent in one turn leaves together.
    """

    def __init__(
        self,
        session: SocketSession,
        notify: Callable[[Any], None],
        after_poll: Callable[[], None] = lambda: None,
        keys: ClientKeys | None = None,
    ) -> None:
        """`notify` receives each notification in order; `after_poll` is called after each poll of the socket."""
        self._loop = asyncio.get_running_loop()
        self._socket = ClientSocket(session, self._store, keys)
        self._watcher = SocketWatcher(self._loop, self._socket, after_poll)
        self._notify = notify
        self._notifications: deque[Any] = deque()
        self._actions: list[Action] = []

    def run(self, action: Action) -> None:
        """Run an action on the session, together with the other actions of this turn of the loop."""
        if not self._actions:
            self._loop.call_soon(self._flush)
        self._actions.append(action)

    def close(self, action: Action) -> None:
        """Run the outstanding actions and a last one, then close the socket."""
        self._flush()
        self._watcher.stop()
        self._socket.close(action)
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
            self._watcher.update()

    def _store(self, notifications: list[Any]) -> None:
        """The socket is locked here: only store the notifications."""
        if not self._notifications:
            self._loop.call_soon(self._notify_all)
        self._notifications.extend(notifications)

    def _notify_all(self) -> None:
        while self._notifications:
            self._notify(self._notifications.popleft())
