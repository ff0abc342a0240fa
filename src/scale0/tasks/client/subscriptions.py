"""Who waits for which task, and which tasks nobody would tell us about.

Lives here: tickets by id, those that somebody watches, and when to ask for them. Never here: a call, or a frame.
Invariants: a ticket that somebody watches is held; any other is only known as long as its owner holds it; each end is
told to each watch once.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

from scale0.kernel.effects import Message
from scale0.storage.task_rows import CANCELLED, FAILED, FINISHED
from scale0.tasks.client.futures import ACCEPTED, UNKNOWN, FutureChanged, FutureWait, TaskFault, TaskFuture, TaskQuery
from scale0.tasks.client.responses import Completed

MAX_WAIT_IDS: Final = 1_000
"""Tasks in one wait: what is left of a wait is asked for again."""
LOOK_SECONDS: Final = 10.0
"""A notification that got lost costs between one and two of these."""
SWEEP_TICKETS: Final = 1_000
"""So many must have come before it is worth looking for those that nobody holds."""
ENDS: Final = {"finished": FINISHED, "failed": FAILED, "cancelled": CANCELLED}


Call = TaskFuture | TaskQuery
Why = Callable[[], tuple[int, str]]
"""A code, and a message."""


class FutureUpdates(Protocol):
    """What a turn tells its owner."""

    news: list[Any]


class OutgoingCalls(FutureUpdates, Protocol):
    """What a turn of the line leaves behind, as far as tasks add to it."""

    sends: list[Message]


class FutureSubscriptions:
    """The tickets of one client."""

    def __init__(self) -> None:
        self.known: dict[str, weakref.ref[TaskFuture]] = {}
        """Tickets that have not ended, by id."""
        self.watched: dict[str, TaskFuture] = {}
        self.to_ask: dict[str, TaskFuture] = {}
        """Watched and accepted, and nobody will tell us."""
        self.ask_at = 0.0
        self.look_at = 0.0
        self.connection = 0
        self.broker = ""
        """Where we are: its name or its group's, or its address as long as nobody told; empty: nobody knows."""
        self.shared = False
        """Others of its group could tell us the same."""
        self._moved = False
        """There may be something that is another broker's."""
        self._watched_at_last_look: frozenset[str] = frozenset()
        self._sweep_at = SWEEP_TICKETS
        self._touched: dict[FutureWait, None] = {}

    def is_here(self, one: Call) -> bool:
        """True unless only another broker can tell anything about it."""
        return not self._moved or not one.at or not self.broker or one.at == self.broker

    def here(self, calls: list[Call]) -> list[Call]:
        """Those of these that are for the broker where we are."""
        return [one for one in calls if self.is_here(one)] if self._moved else calls

    def place_of(self, id_: str) -> str:
        """The broker that has this task; empty: nobody knows."""
        ticket = self.find(id_)
        return "" if ticket is None else ticket.at

    def meet(self, broker: str, shared: bool, calls: Iterable[Call]) -> list[Call]:
        """We learn the name of the broker where we are: what left on this connection is there.

        Calls that seemed to be for another broker and are for this one: they are to be said again.
        """
        self.shared = shared
        if not broker or broker == self.broker:
            return []
        away = [one for one in calls if not self.is_here(one)]
        unasked = [one for one in self.watched.values() if one.status == ACCEPTED and not self.is_here(one)]
        before, self.broker = self.broker, broker
        for one in itertools.chain(calls, self._held()):
            if one.sent == self.connection or (one.at == before and "://" in before):
                one.at = broker
        self.put_back(unasked, self.ask_at)
        return [one for one in away if self.is_here(one)]

    def _held(self) -> Iterator[TaskFuture]:
        return (ticket for found in self.known.values() if (ticket := found()) is not None and not ticket.ended)

    def is_bound(self, calls: Iterable[Call]) -> bool:
        """True while a call is under way, or somebody holds a task, that only the broker where we are can tell of."""
        return not self.shared and any(
            one.tries > 0 and self.is_here(one) for one in itertools.chain(calls, self._held())
        )

    def find(self, id_: str) -> TaskFuture | None:
        """The ticket of this id, if somebody holds it and it has not ended."""
        found = self.known.get(id_)
        ticket = found() if found is not None else None
        return None if ticket is None or ticket.ended else ticket

    def enter(self, ticket: TaskFuture) -> None:
        """Know a ticket by its id; the first one of an id stays."""
        if self.find(ticket.id) is None:
            self.known[ticket.id] = weakref.ref(ticket)

    def sweep(self) -> None:
        """Forget the ids of tickets that nobody holds any more, when there may be many."""
        if len(self.known) > self._sweep_at:
            self.known = {id_: ref for id_, ref in self.known.items() if ref() is not None}
            self._sweep_at = 2 * len(self.known) + SWEEP_TICKETS

    def watch(self, watch: FutureWait, tickets: Iterable[TaskFuture], now: float) -> None:
        """Let `watch` be told when these end; those that have ended are there at once."""
        watched, connection = self.watched, self.connection
        if not watched:
            self.look_at = now + LOOK_SECONDS
            self._watched_at_last_look = frozenset()
        for ticket in tickets:
            if ticket.twin is not None:
                ticket = ticket.twin
            if ticket.ended:
                watch.came.append(ticket)
                continue
            if ticket.watches is None:
                ticket.watches = [watch]
                watched[ticket.id] = ticket
            else:
                ticket.watches.append(watch)
            if ticket.status == ACCEPTED and ticket.told_by != connection:
                self.put_back((ticket,), now)

    def unwatch(self, watch: FutureWait, tickets: Iterable[TaskFuture]) -> None:
        """It waits for these no more."""
        for ticket in tickets:
            ticket = ticket.twin or ticket
            if ticket.watches is not None and watch in ticket.watches:
                ticket.watches.remove(watch)
                if not ticket.watches:
                    self._neglect(ticket)

    def accept(self, ticket: TaskFuture, when: float) -> None:
        """The broker has it; if nobody will tell us of its end, ask at `when`."""
        ticket.status = ACCEPTED
        if ticket.watches is not None and ticket.told_by != self.connection:
            self.put_back((ticket,), when)

    def put_back(self, tickets: Iterable[TaskFuture], when: float) -> None:
        """Ask for those of these that are still watched, at `when` or with those who are asked for before."""
        for ticket in tickets:
            if ticket.watches is not None and not ticket.ended and self.is_here(ticket):
                if not self.to_ask:
                    self.ask_at = when
                self.to_ask[ticket.id] = ticket

    def reconnected(self, connection: int, broker: str, now: float) -> None:
        """What was to be told on the old connection must be asked for on the new one, if that is the same broker."""
        self._moved = self._moved or self.broker not in ("", broker)
        self.connection, self.broker = connection, broker
        self.to_ask = {id_: ticket for id_, ticket in self.watched.items() if ticket.status == ACCEPTED}
        self.to_ask = {id_: ticket for id_, ticket in self.to_ask.items() if self.is_here(ticket)}
        self.ask_at = now

    def take_waits(self, now: float) -> Iterator[Sequence[TaskFuture]]:
        """The tickets to be asked for now, in handfuls."""
        if self.to_ask and now >= self.ask_at:
            tickets = list(self.to_ask.values())
            self.to_ask = {}
            for ticket in tickets:
                ticket.at = ticket.at or self.broker
            yield from handfuls(tickets)

    def take_looks(self, now: float) -> Iterator[Sequence[TaskFuture]]:
        """Tickets that should have been told by now, if at all; in handfuls."""
        if not self.watched or now < self.look_at:
            return
        self.look_at = now + LOOK_SECONDS
        last, connection = self._watched_at_last_look, self.connection
        self._watched_at_last_look = frozenset(self.watched)
        yield from handfuls(
            [
                ticket
                for id_, ticket in self.watched.items()
                if id_ in last and ticket.status == ACCEPTED and ticket.told_by == connection
            ]
        )

    def complete(self, said: Completed) -> None:
        """The broker says that a task has ended."""
        status = ENDS.get(said.status)
        found = self.known.get(said.task_id)
        if status is None or found is None:
            return
        ticket = found()
        if ticket is None:
            del self.known[said.task_id]
        elif said.error is None:
            self.end(ticket, status, bytes(said.result), None)
        else:
            self.end(ticket, status, b"", said.error.trouble())

    def end(self, ticket: TaskFuture, status: int, value: bytes, trouble: TaskFault | None) -> None:
        """It has ended, one way or another: tell whoever watches."""
        ticket.status = status
        ticket.ended = True
        ticket.value = value
        ticket.trouble = trouble
        known = self.known.get(ticket.id)
        if status != UNKNOWN and known is not None and known() is ticket:
            del self.known[ticket.id]
        watches = ticket.watches
        if watches is not None:
            for watch in watches:
                watch.came.append(ticket)
                self._touched[watch] = None
            self._neglect(ticket)

    def rename(self, ticket: TaskFuture, id_: str, now: float) -> None:
        """Its key was used before: it stands for the task that came first."""
        if id_ == ticket.id:
            return
        self.known.pop(ticket.id, None)
        watches = tuple(ticket.watches or ())
        self._neglect(ticket)
        ticket.told_by = 0
        first = self.find(id_)
        if first is None:
            ticket.id = id_
            self.known[id_] = weakref.ref(ticket)
        else:
            ticket.twin = first
        for watch in watches:
            self.watch(watch, (ticket,), now)

    def fail(self, trouble: TaskFault) -> None:
        """Nothing will be told for now: whoever watches is told that. The tickets stay what they are."""
        for ticket in tuple(self.watched.values()):
            for watch in ticket.watches or ():
                watch.trouble = trouble
                self._touched[watch] = None
            self._neglect(ticket)

    def tell(self, out: FutureUpdates) -> None:
        """News for each watch to which something came."""
        if self._touched:
            out.news.extend([FutureChanged(watch.tag) for watch in self._touched])
            self._touched = {}

    def _neglect(self, ticket: TaskFuture) -> None:
        ticket.watches = None
        self.watched.pop(ticket.id, None)
        self.to_ask.pop(ticket.id, None)


def handfuls(tickets: Sequence[TaskFuture]) -> Iterator[Sequence[TaskFuture]]:
    """As many as one wait takes."""
    for first in range(0, len(tickets), MAX_WAIT_IDS):
        yield tickets[first : first + MAX_WAIT_IDS]
