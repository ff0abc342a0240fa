"""Which futures are waited for, and which of them the broker must be asked about.

Invariants: a future that is waited for is kept alive; any other is known only as long as its owner holds it; each end
is reported to each wait once.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from scale0.storage.task_rows import CANCELLED, FAILED, FINISHED
from scale0.tasks.client.futures import ACCEPTED, NEW, UNKNOWN, Call, FutureChanged, FutureWait, TaskFault, TaskFuture
from scale0.tasks.client.responses import Completed
from scale0.transport.core.session import SessionEffects

MAX_WAIT_IDS: Final = 1_000
"""Tasks in one wait call; the rest of a wait is asked for again."""
POLL_SECONDS: Final = 10.0
"""A lost notification costs between one and two of these."""
SWEEP_FUTURES: Final = 1_000
"""After this many new futures, unused ones are removed."""
ENDS: Final = {"finished": FINISHED, "failed": FAILED, "cancelled": CANCELLED}


Why = Callable[[], tuple[int, str]]
"""Gives a code and a message."""


class FutureSubscriptions:
    def __init__(self) -> None:
        self.known: dict[str, weakref.ref[TaskFuture]] = {}
        """Futures that have not ended, by id."""
        self.waited_for: dict[str, TaskFuture] = {}
        self.to_ask: dict[str, TaskFuture] = {}
        """Waited for and accepted, and their end will not be pushed."""
        self.ask_at = 0.0
        self.poll_at = 0.0
        self.connection = 0
        self.broker = ""
        """The current broker: its name, or its group's, or its address while the name is unknown; empty if unknown."""
        self.shared = False
        """Other brokers of its group share the task store."""
        self._moved = False
        """Some futures may belong to another broker."""
        self._waited_for_at_last_poll: frozenset[str] = frozenset()
        self._sweep_at = SWEEP_FUTURES
        self._changed: dict[FutureWait, None] = {}

    def is_current(self, call: Call) -> bool:
        """True unless only another broker knows about it."""
        return not self._moved or not call.broker or not self.broker or call.broker == self.broker

    def current_calls(self, calls: list[Call]) -> list[Call]:
        return [call for call in calls if self.is_current(call)] if self._moved else calls

    def broker_of(self, id_: str) -> str:
        future = self.find(id_)
        return "" if future is None else future.broker

    def set_broker(self, broker: str, shared: bool, calls: Iterable[Call]) -> list[Call]:
        """Learn the name of the current broker: messages on this connection went to it.

        Return the calls that seemed to be for another broker, and must be sent again here.
        """
        self.shared = shared
        if not broker or broker == self.broker:
            return []
        away = [call for call in calls if not self.is_current(call)]
        unasked = [call for call in self.waited_for.values() if call.status == ACCEPTED and not self.is_current(call)]
        before, self.broker = self.broker, broker
        for call in itertools.chain(calls, self._known_futures()):
            if call.sent == self.connection or (call.broker == before and "://" in before):
                call.broker = broker
        self.ask_later(unasked, self.ask_at)
        return [call for call in away if self.is_current(call)]

    def _known_futures(self) -> Iterator[TaskFuture]:
        return (future for found in self.known.values() if (future := found()) is not None and not future.ended)

    def is_bound(self, calls: Iterable[Call]) -> bool:
        """True while a call or a future depends on the current broker alone."""
        return not self.shared and any(
            call.tries > 0 and self.is_current(call) for call in itertools.chain(calls, self._known_futures())
        )

    def find(self, id_: str) -> TaskFuture | None:
        """The future with this id, if its owner holds it and it has not ended."""
        found = self.known.get(id_)
        future = found() if found is not None else None
        return None if future is None or future.ended else future

    def register(self, future: TaskFuture) -> None:
        """Register a future by its id; the first one of an id stays."""
        if self.find(future.id) is None:
            self.known[future.id] = weakref.ref(future)

    def sweep(self) -> None:
        if len(self.known) > self._sweep_at:
            self.known = {id_: ref for id_, ref in self.known.items() if ref() is not None}
            self._sweep_at = 2 * len(self.known) + SWEEP_FUTURES

    def add_wait(self, wait: FutureWait, futures: Iterable[TaskFuture], now: float) -> None:
        """Report the end of these futures to `wait`; those that have ended are reported at once."""
        waited_for, connection = self.waited_for, self.connection
        if not waited_for:
            self.poll_at = now + POLL_SECONDS
            self._waited_for_at_last_poll = frozenset()
        for future in futures:
            if future.original is not None:
                future = future.original
            if future.ended:
                wait.completed.append(future)
                continue
            if future.waits is None:
                future.waits = [wait]
                waited_for[future.id] = future
            else:
                future.waits.append(wait)
            if future.status == ACCEPTED and future.pushed_on != connection:
                self.ask_later((future,), now)

    def remove_wait(self, wait: FutureWait, futures: Iterable[TaskFuture]) -> None:
        for future in futures:
            future = future.original or future
            if future.waits is not None and wait in future.waits:
                future.waits.remove(wait)
                if not future.waits:
                    self._forget(future)

    def accept(self, future: TaskFuture, when: float) -> None:
        """The broker has stored it; if its end will not be pushed, ask at `when`."""
        future.status = ACCEPTED
        if future.waits is not None and future.pushed_on != self.connection:
            self.ask_later((future,), when)

    def ask_later(self, futures: Iterable[TaskFuture], when: float) -> None:
        """Ask for these futures, if they are still waited for, at `when` or with the next ones."""
        for future in futures:
            if future.waits is not None and not future.ended and self.is_current(future):
                if not self.to_ask:
                    self.ask_at = when
                self.to_ask[future.id] = future

    def ask_now(self, futures: Iterable[TaskFuture], now: float) -> None:
        """Ask for these futures, and for those that would be asked for later, without a pause."""
        self.ask_later(futures, now)
        self.ask_at = now

    def reconnected(self, connection: int, broker: str, now: float) -> None:
        """Ends that would have been pushed on the old connection are asked for, if the broker is the same."""
        self._moved = self._moved or self.broker not in ("", broker)
        self.connection, self.broker = connection, broker
        self.to_ask = {id_: future for id_, future in self.waited_for.items() if future.status == ACCEPTED}
        self.to_ask = {id_: future for id_, future in self.to_ask.items() if self.is_current(future)}
        self.ask_at = now

    def take_waits(self, now: float) -> Iterator[Sequence[TaskFuture]]:
        """The futures to ask for now, in chunks."""
        if self.to_ask and now >= self.ask_at:
            futures = list(self.to_ask.values())
            self.to_ask = {}
            for future in futures:
                future.broker = future.broker or self.broker
            yield from chunks(futures)

    def take_overdue(self, now: float) -> Iterator[Sequence[TaskFuture]]:
        """Futures whose notification is overdue, in chunks."""
        if not self.waited_for or now < self.poll_at:
            return
        self.poll_at = now + POLL_SECONDS
        last, connection = self._waited_for_at_last_poll, self.connection
        self._waited_for_at_last_poll = frozenset(self.waited_for)
        yield from chunks(
            [
                future
                for id_, future in self.waited_for.items()
                if id_ in last and future.status == ACCEPTED and future.pushed_on == connection
            ]
        )

    def complete(self, completed_task: Completed) -> None:
        status = ENDS.get(completed_task.status)
        found = self.known.get(completed_task.task_id)
        if status is None or found is None:
            return
        future = found()
        if future is None:
            del self.known[completed_task.task_id]
        elif completed_task.error is None:
            self.end(future, status, bytes(completed_task.result), None)
        else:
            self.end(future, status, b"", completed_task.error.fault())

    def end(self, future: TaskFuture, status: int, value: bytes, fault: TaskFault | None) -> None:
        """End a future, and report it to its waits."""
        future.status = status
        future.ended = True
        future.value = value
        future.fault = fault
        known = self.known.get(future.id)
        if status != UNKNOWN and known is not None and known() is future:
            del self.known[future.id]
        waits = future.waits
        if waits is not None:
            for wait in waits:
                wait.completed.append(future)
                self._changed[wait] = None
            self._forget(future)

    def rename(self, future: TaskFuture, id_: str, now: float) -> None:
        """Its key was used before: it stands for the first task with this key."""
        if id_ == future.id:
            return
        self.known.pop(future.id, None)
        waits = tuple(future.waits or ())
        self._forget(future)
        future.pushed_on = 0
        first = self.find(id_)
        if first is None:
            future.id = id_
            self.known[id_] = weakref.ref(future)
        else:
            future.original = first
            if first.status == NEW:
                # Its own acknowledgement is still to come, or was lost: this one shows that it is stored.
                self.accept(first, now)
        for wait in waits:
            self.add_wait(wait, (future,), now)

    def fail(self, fault: TaskFault) -> None:
        """Fail all waits; the futures do not change."""
        for future in tuple(self.waited_for.values()):
            for wait in future.waits or ():
                wait.fault = fault
                self._changed[wait] = None
            self._forget(future)

    def notify(self, effects: SessionEffects) -> None:
        """Notify each wait that has something new."""
        if self._changed:
            effects.notifications.extend([FutureChanged(wait.tag) for wait in self._changed])
            self._changed = {}

    def _forget(self, future: TaskFuture) -> None:
        future.waits = None
        self.waited_for.pop(future.id, None)
        self.to_ask.pop(future.id, None)


def chunks(futures: Sequence[TaskFuture]) -> Iterator[Sequence[TaskFuture]]:
    for first in range(0, len(futures), MAX_WAIT_IDS):
        yield futures[first : first + MAX_WAIT_IDS]
