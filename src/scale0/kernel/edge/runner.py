"""The runner: a machine on asyncio, with its sockets and its store. A turn takes messages from one socket, lets the
machine decide, and passes its effects to `kernel.turn`. Invariants: a turn takes a bounded number of messages, for a
bounded time; the sockets take turns; the loop never waits for a socket, the disk or an answer."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from typing import Any, Final

from scale0.kernel.clock import Now
from scale0.kernel.edge.aside_queries import AsideQueries
from scale0.kernel.edge.commits import Commits
from scale0.kernel.edge.inbox import Cut, Inbox, whole
from scale0.kernel.effects import Effects, Message, PeerAddress, Readers, StoreQuery
from scale0.kernel.log_context import about
from scale0.kernel.machine import (
    BufferedSocket,
    ClosableSocket,
    CountingSocket,
    DialingSocket,
    DroppingSocket,
    FairSocket,
    Machine,
    MessageSocket,
    PublishSocket,
    Sent,
)
from scale0.kernel.turn import Turn

log = logging.getLogger("scale0.runner")

TURN_SECONDS: Final = 0.0005
"""How long a turn takes messages: meanwhile other sockets wait, and nothing is sent."""
TURN_MESSAGES: Final = 1_000
"""Messages taken from one socket in one turn."""
BACKLOG_RETRY_SECONDS: Final = 0.05
"""Retry interval for a peer that could accept nothing more, in case its socket signals nothing."""
MAX_UNSTORED_BYTES: Final = 64 * 1024 * 1024
"""Data that may wait for the disk; above it, sockets with flow control are not read."""
MAX_SENDER_ROWS: Final = 500
"""Rows, events and queries of one sender that may wait for the store; above it, no more of its messages are taken."""
HOLD_SECONDS: Final = 0.25
"""How long that may last: then one more message is taken, because it may be a heartbeat."""
ROW_BYTES: Final = 1_024
"""Size that a row counts for in MAX_UNSTORED_BYTES; events count with their actual size."""
MAX_DELAY_SECONDS: Final = 3_600.0

Enter = Callable[[list[Any], Now], Sequence[Any]]
"""Numbers a turn's events; returns what must be stored: first the journal row that holds them, with its `body`."""


class Runner:
    def __init__(
        self,
        machine: Machine,
        sockets: Iterable[MessageSocket],
        publishers: Iterable[PublishSocket],
        commits: Commits,
        enter: Enter,
        clock: Callable[[], Now],
        answer: Callable[[Any], Awaitable[Any]],
        max_client_bytes: int,
        cut: Cut = whole,
        held: Container[str] = (),
    ) -> None:
        """`cut` divides a long message, so that other senders have their turn between the parts. On the sockets of
        `held`, a sender waits for its own rows in the store, so that others do not wait for them."""
        self._machine = machine
        self._sockets = {socket.name: socket for socket in sockets}
        self._inboxes = {name: Inbox(socket, cut) for name, socket in self._sockets.items()}
        self._closable = {name: socket for name, socket in self._sockets.items() if isinstance(socket, ClosableSocket)}
        self._drops = {name: one.drop_peer for name, one in self._sockets.items() if isinstance(one, DroppingSocket)}
        self._notes = {name: one.note_backlog for name, one in self._sockets.items() if isinstance(one, CountingSocket)}
        self._dialing = next((one for one in self._sockets.values() if isinstance(one, DialingSocket)), None)
        servers = {name: socket for name, socket in self._sockets.items() if isinstance(socket, FairSocket)}
        self._fair = {name: socket for name, socket in servers.items() if name in held}
        self._servers = frozenset(servers)
        """Sockets that may stop reading before a turn is over."""
        self._rows: dict[tuple[str, bytes], int] = {}
        """By socket and connection: what waits for the store."""
        self._publishers = {publisher.name: publisher for publisher in publishers}
        everything: dict[str, object] = {**self._sockets, **self._publishers}
        self._flushes = {name: one.flush for name, one in everything.items() if isinstance(one, BufferedSocket)}
        self._commits = commits
        self._enter = enter
        self.read_clock = clock
        self._answer = answer
        self._turn = Turn(machine, self, max_client_bytes)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._again: set[MessageSocket] = set()
        self._aside = AsideQueries(answer, self._take_aside)
        self._rereads: dict[PublishSocket, tuple[float, asyncio.TimerHandle]] = {}
        """Publishers with subscriptions that are read later, and when."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: deque[Callable[[Now, Effects], None]] = deque()
        self._unstored_bytes = 0
        self._held: set[MessageSocket] = set()
        """Sockets that are not read until the disk has caught up."""
        self._used: set[str] = set()
        """Sockets that this turn sent on."""
        self._published: set[PublishSocket] = set()
        self._paused = False
        self._stopped = False

    def start(self, effects: Effects, now: Now) -> None:
        """Performs the first turn's effects, then reads the sockets."""
        for socket in self._sockets.values():
            self._loop.add_reader(socket.descriptor, self._read, socket)
        for publisher in self._publishers.values():
            self._loop.add_reader(publisher.descriptor, self._read_subscriptions, publisher)
        self._finish(effects, now)
        for socket in self._sockets.values():
            self._soon(socket)
        for publisher in self._publishers.values():
            self._read_subscriptions(publisher)

    def stop(self, effects: Effects, now: Now) -> None:
        """Stops reading the sockets; the effects of the last turn are still performed."""
        self._stopped = True
        for socket in self._sockets.values():
            self._loop.remove_reader(socket.descriptor)
        for publisher in self._publishers.values():
            self._loop.remove_reader(publisher.descriptor)
        for _, timer in self._rereads.values():
            timer.cancel()
        self._aside.stop()
        if self._timer is not None:
            self._timer.cancel()
        self._finish(effects, now)

    def take(self, do: Callable[[Now, Effects], None]) -> None:
        """Runs a turn for an input that came from no socket."""
        if self._stopped:
            return
        now, effects = self.read_clock(), Effects()
        try:
            do(now, effects)
        except Exception as error:
            self.failed("an input", error)
        self._finish(effects, now)

    def pause(self, on: bool) -> None:
        """While `on`, sockets with flow control are not read: the disk has no room for the result."""
        self._paused = on
        if not on:
            for socket in list(self._held):
                self._resume(socket)

    # Reading.

    def _hold(self, socket: MessageSocket) -> None:
        """Stops reading this socket until everything decided so far is stored."""
        if socket not in self._held:
            self._held.add(socket)
            self._loop.remove_reader(socket.descriptor)
            self._commits.add([], functools.partial(self._resume, socket))

    def _resume(self, socket: MessageSocket) -> None:
        if socket in self._held and not self._paused and not self._stopped:
            self._held.discard(socket)
            self._loop.add_reader(socket.descriptor, self._read, socket)
            self._soon(socket)

    def _soon(self, socket: MessageSocket) -> None:
        """Reads the socket again after other sockets that are readable now, because it may have more messages."""
        if socket not in self._again and not self._stopped:
            self._again.add(socket)
            self._loop.call_soon(self._loop.call_soon, self._read, socket, True)

    def _read(self, socket: MessageSocket, due: bool = False) -> None:
        """Runs one turn of a socket. A socket whose turn is scheduled gets none before it: each would lead to one more,
        and messages at other sockets would wait for all of them."""
        if self._stopped or (socket in self._again and not due):
            return
        self._again.discard(socket)
        if (self._paused or self._unstored_bytes > MAX_UNSTORED_BYTES) and socket.name in self._closable:
            self._hold(socket)
            return
        now, effects = self.read_clock(), Effects()
        receive, name, taken = self._machine.receive, socket.name, 0
        fair, costs = self._fair.get(name), dict[bytes, int]()
        for routing_id, *frames in self._inboxes[name].take(TURN_MESSAGES):
            taken += 1
            if not frames:
                continue
            rows = 0 if fair is None else effects.rows
            try:
                receive(name, routing_id, frames, now, effects)
            except Exception:
                # An internal error must be visible and must not affect other senders.
                log.exception(
                    "internal error while handling a message on the %s socket; the message was dropped. "
                    "Please report this traceback.",
                    name,
                    extra=about(socket=name, client=routing_id),
                )
            if fair is not None and effects.rows > rows:
                costs[routing_id] = costs.get(routing_id, 0) + effects.rows - rows
                if costs[routing_id] + self._rows.get((name, routing_id), 0) > MAX_SENDER_ROWS:
                    self._hold_sender(socket, fair, routing_id)
            if self.read_clock().mono - now.mono > TURN_SECONDS:
                taken = TURN_MESSAGES
                break
        if taken >= TURN_MESSAGES or (name in self._servers and socket.pending()):
            self._soon(socket)
        self._finish(effects, now)
        for routing_id, cost in costs.items():
            self._rows[name, routing_id] = self._rows.get((name, routing_id), 0) + cost
            self._when_answered(functools.partial(self._settle_rows, (name, routing_id), cost))

    def _hold_sender(self, socket: MessageSocket, fair: FairSocket, routing_id: bytes) -> None:
        """Takes no more messages of a sender until its rows are stored, or for HOLD_SECONDS."""
        sender = fair.hold(routing_id)
        if sender is None:
            return
        released = False

        def release() -> None:
            nonlocal released
            if not released:
                released = True
                timer.cancel()
                fair.release(sender)
                self._soon(socket)

        timer = self._loop.call_later(HOLD_SECONDS, release)
        self._loop.call_soon(self._when_answered, release)

    def _when_answered(self, do: Callable[[], None]) -> None:
        """Calls `do` when everything so far is stored, and the answers of the store are handled."""

        def stored() -> None:
            if self._answers:
                self._answers.append(lambda _now, _effects: do())
            else:
                do()

        def later() -> None:
            self._loop.call_soon(stored)  # behind the answers of the same commit

        self._commits.add([], later)

    def _settle_rows(self, connection: tuple[str, bytes], cost: int) -> None:
        left = self._rows[connection] - cost
        if left:
            self._rows[connection] = left
        else:
            del self._rows[connection]

    def _read_subscriptions(self, publisher: PublishSocket) -> None:
        if self._stopped:
            return
        now, effects = self.read_clock(), Effects()
        for frames in publisher.subscriptions(TURN_MESSAGES):
            try:
                self._machine.receive_subscription(frames, now, effects)
            except Exception as error:
                self.failed(f"a subscription on the {publisher.name} socket", error)
        self._finish(effects, now)
        self._reread(publisher)

    def _reread(self, publisher: PublishSocket) -> None:
        """Schedules the next read of a publisher that has more subscriptions than one turn takes, or held some back."""
        wait = publisher.pending()
        if wait is None or self._stopped:
            return
        when = self._loop.time() + wait
        earlier = self._rereads.get(publisher)
        if earlier is not None and earlier[0] <= when:
            return
        if earlier is not None:
            earlier[1].cancel()

        def read() -> None:
            del self._rereads[publisher]
            self._read_subscriptions(publisher)

        self._rereads[publisher] = when, self._loop.call_later(wait, read)

    def _finish(self, effects: Effects, now: Now) -> None:
        self._turn.finish(effects, now)
        self._look_again()
        self._arm(now)

    def _look_again(self) -> None:
        """Flushes the sockets that were sent on, and checks whether they have more messages."""
        used, self._used = self._used, set()
        for name in used:
            socket = self._sockets[name]
            flush = self._flushes.get(name)
            if flush is not None:
                flush()
            if not self._stopped and socket.pending():
                self._soon(socket)
        published, self._published = self._published, set()
        for publisher in published:
            flush = self._flushes.get(publisher.name)
            if flush is not None:
                flush()
            self._read_subscriptions(publisher)

    def _arm(self, now: Now) -> None:
        if self._stopped:
            return
        due = self._turn.due
        when = now.mono + MAX_DELAY_SECONDS if due is None else due
        if self._turn.backlogs:
            when = min(when, now.mono + BACKLOG_RETRY_SECONDS)
        if self._timer is not None:
            # A timer that fires too early costs less than setting it again in every turn.
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_later(max(0.0, when - now.mono), self._wake)

    def _wake(self) -> None:
        self._timer = None
        if not self._stopped:
            self._finish(Effects(), self.read_clock())

    # The host of a turn: see kernel.turn.TurnHost.

    def commit(self, writes: list[Any], events: list[Any], release: Callable[[], None] | None, now: Now) -> None:
        size = ROW_BYTES * len(writes)
        if events:
            rows = self._enter(events, now)
            writes += rows
            size += sum(len(row.body) for row in rows[:1])
        if writes or release is not None:
            self._unstored_bytes += size
            self._commits.add(writes, functools.partial(self._stored, size, release))

    def _stored(self, size: int, release: Callable[[], None] | None) -> None:
        self._unstored_bytes -= size
        if release is not None:
            release()
            self._look_again()
            self._arm(self.read_clock())

    def ask(self, ask: Any) -> None:
        if type(ask) is StoreQuery:
            if ask.aside:
                self._aside.add(ask)
            else:
                self._commits.ask(ask.ask, functools.partial(self._take_answer, ask))
            return
        task = self._loop.create_task(self._find(ask))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def pack(self, peer: PeerAddress, messages: Sequence[Message]) -> list[list[bytes]]:
        return peer.pack(messages)

    def send(self, peer: PeerAddress, frames: list[bytes]) -> Sent:
        self._used.add(peer.socket)
        return self._sockets[peer.socket].send(peer.routing_id, frames)

    def publish(self, socket: str, frames: list[bytes], readers: Readers | None) -> None:
        publisher = self._publishers.get(socket)
        if publisher is not None:
            publisher.publish(frames, readers)
            self._published.add(publisher)

    def dial(self, endpoint: str) -> None:
        assert self._dialing is not None, "none of the sockets can dial"
        self._dialing.dial(endpoint)

    def disconnect(self, endpoint: str) -> None:
        assert self._dialing is not None, "none of the sockets can dial"
        self._loop.call_soon(self._dialing.disconnect, endpoint)

    def close(self, peer: PeerAddress) -> None:
        socket = self._closable.get(peer.socket)
        if socket is not None:
            socket.close_peer(peer.routing_id)

    def drop(self, peer: PeerAddress) -> None:
        drop = self._drops.get(peer.socket)
        if drop is not None:
            drop(peer.routing_id)

    def note_backlog(self, peer: PeerAddress, size: int) -> None:
        note = self._notes.get(peer.socket)
        if note is not None:
            note(peer.routing_id, size)

    def failed(self, where: str, error: Exception) -> None:
        log.error(
            "internal error while handling %s. Please report this traceback.", where, exc_info=error, extra=about()
        )

    # Answers.

    def _take_answer(self, query: StoreQuery, value: Any) -> None:
        """Answers that arrive together are handled in one turn, or in several if they take longer than one."""
        if not self._answers:
            self._loop.call_soon(self._give_answers)
        self._answers.append(functools.partial(self._give, query, value))

    def _give_answers(self) -> None:
        answers, now, effects = self._answers, self.read_clock(), Effects()
        while answers:
            answers[0](now, effects)
            answers.popleft()
            if self.read_clock().mono - now.mono > TURN_SECONDS:
                break
        if answers:
            self._loop.call_soon(self._loop.call_soon, self._give_answers)
        self._finish(effects, now)

    def _give(self, ask: Any, value: Any, now: Now, effects: Effects) -> None:
        try:
            self._machine.answer(ask, value, now, effects)
        except Exception as error:
            self.failed(f"the answer to {type(ask).__name__}", error)

    async def _find(self, ask: Any) -> None:
        self._take_aside(ask, await self._answer(ask))

    def _take_aside(self, ask: Any, value: Any) -> None:
        now, effects = self.read_clock(), Effects()
        self._give(ask, value, now, effects)
        self._finish(effects, now)
