"""The runner: turns of drain, decide, commit, send.

Lives here: the loop around a machine. Never here: a protocol, or what a machine and a door are (`runnable`).
Invariants: a turn takes in a bounded number of messages, for a bounded time; what depends on no commit leaves at the
end of the turn, what does leaves after its commit; a peer that does not read holds back nobody else, and no more than
`max_client_bytes` of memory for longer than STALL_SECONDS.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from scale0.kernel.clock import Now
from scale0.kernel.edge.commits import Commits
from scale0.kernel.edge.inbox import Cut, Inbox, whole
from scale0.kernel.edge.send_backlog import SendBacklog
from scale0.kernel.effects import Effects, Message, PeerAddress, StoreQuery
from scale0.kernel.log_context import about
from scale0.kernel.machine import ClosableSocket, DialingSocket, Machine, MessageSocket, PublishSocket

log = logging.getLogger("scale0.runner")

TURN_SECONDS: Final = 0.002
"""How long a turn takes in messages: while it does, whoever speaks at another door waits, and nothing is sent."""
TURN_MESSAGES: Final = 1_000
"""Messages taken from one socket in one turn."""
BACKLOG_RETRY_SECONDS: Final = 0.05
"""How often a peer that could take nothing more is tried, if libzmq says nothing."""
MAX_UNSTORED_BYTES: Final = 64 * 1024 * 1024
"""What waits for the disk; while there is more, a door that can make others wait takes nothing in."""
ROW_BYTES: Final = 1_024
"""What a row counts for in that, whatever it holds; events count as they are."""
MAX_DELAY_SECONDS: Final = 3_600.0
"""The longest sleep."""


class Runner:
    """One machine, its doors and its store."""

    def __init__(
        self,
        machine: Machine,
        doors: Iterable[MessageSocket],
        publishers: Iterable[PublishSocket],
        commits: Commits,
        journal: Any,
        clock: Callable[[], Now],
        answer: Callable[[Any], Awaitable[Any]],
        max_client_bytes: int,
        cut: Cut = whole,
    ) -> None:
        """`cut`: what makes portions of a long message, so that others have their turn between them."""
        self._machine = machine
        self._doors = {door.name: door for door in doors}
        self._intakes = {name: Inbox(door, cut) for name, door in self._doors.items()}
        self._closing = {name: door for name, door in self._doors.items() if isinstance(door, ClosableSocket)}
        self._dialing = next((door for door in self._doors.values() if isinstance(door, DialingSocket)), None)
        self._publishers = {publisher.name: publisher for publisher in publishers}
        self._commits = commits
        self._journal = journal
        self._clock = clock
        self._answer = answer
        self._max_client_bytes = max_client_bytes
        self._backlogs: dict[PeerAddress, SendBacklog] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._again: set[MessageSocket] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: list[tuple[StoreQuery, Any]] = []
        self._unstored_bytes = 0
        self._held: set[MessageSocket] = set()
        """Doors that are not looked at until the disk has caught up."""
        self._paused = False
        self._stopped = False

    def start(self, step: Effects, now: Now) -> None:
        """The first turn's output, and then the doors are open."""
        for door in self._doors.values():
            self._loop.add_reader(door.descriptor, self._turn, door)
        for publisher in self._publishers.values():
            self._loop.add_reader(publisher.descriptor, self._listen, publisher)
        self._finish(step, now)
        for door in self._doors.values():
            self._soon(door)
        for publisher in self._publishers.values():
            self._listen(publisher)

    def stop(self, step: Effects, now: Now) -> None:
        """The doors are closed; what the last turn says is still done."""
        self._stopped = True
        for door in self._doors.values():
            self._loop.remove_reader(door.descriptor)
        for publisher in self._publishers.values():
            self._loop.remove_reader(publisher.descriptor)
        if self._timer is not None:
            self._timer.cancel()
        self._finish(step, now)

    def take(self, do: Callable[[Now, Effects], None]) -> None:
        """A turn for what came by no door: `do` tells it to the machine."""
        if self._stopped:
            return
        now, step = self._clock(), Effects()
        try:
            do(now, step)
        except Exception:
            log.exception("something from outside was too much for us: please report this", extra=about())
        self._finish(step, now)

    def pause(self, on: bool) -> None:
        """While `on`, doors that can make others wait take nothing in: there is no room for what it would become."""
        self._paused = on
        if not on:
            for door in list(self._held):
                self._open(door)

    def _hold(self, door: MessageSocket) -> None:
        """The disk is behind: whoever is at this door waits there, until what was decided before is stored."""
        if door not in self._held:
            self._held.add(door)
            self._loop.remove_reader(door.descriptor)
            self._commits.add([], functools.partial(self._open, door))

    def _open(self, door: MessageSocket) -> None:
        if door in self._held and not self._paused and not self._stopped:
            self._held.discard(door)
            self._loop.add_reader(door.descriptor, self._turn, door)
            self._soon(door)

    def _soon(self, door: MessageSocket) -> None:
        """There may be more at this door: another turn for it, after those whom the loop finds waiting at others."""
        if door not in self._again and not self._stopped:
            self._again.add(door)
            self._loop.call_soon(self._loop.call_soon, self._turn, door, True)

    def _turn(self, door: MessageSocket, due: bool = False) -> None:
        """Drain, decide; `_finish` commits and sends. A door whose turn is due has none before it: each would lead to
        one more, and who comes to another door would wait for all of them."""
        if self._stopped or (door in self._again and not due):
            return
        self._again.discard(door)
        if (self._paused or self._unstored_bytes > MAX_UNSTORED_BYTES) and door.name in self._closing:
            self._hold(door)
            return
        now = self._clock()
        step = Effects()
        receive, name, taken = self._machine.receive, door.name, 0
        for routing_id, *frames in self._intakes[name].take(TURN_MESSAGES):
            taken += 1
            if not frames:
                continue
            try:
                receive(name, routing_id, frames, now, step)
            except Exception:
                # Our own mistake: it must not cost the others their turn, and it must be seen.
                log.exception(
                    "a message on the %s socket was too much for us: please report this",
                    name,
                    extra=about(socket=name, client=routing_id),
                )
            if self._clock().mono - now.mono > TURN_SECONDS:
                taken = TURN_MESSAGES
                break
        if taken >= TURN_MESSAGES:
            self._soon(door)
        self._finish(step, now)

    def _listen(self, publisher: PublishSocket) -> None:
        """Somebody subscribed, or left."""
        if self._stopped:
            return
        now, step = self._clock(), Effects()
        for frames in publisher.subscriptions(TURN_MESSAGES):
            try:
                self._machine.hear_subscription(frames, now, step)
            except Exception:
                log.exception(
                    "a subscription was too much for us: please report this", extra=about(socket=publisher.name)
                )
        self._finish(step, now)

    def _finish(self, step: Effects, now: Now) -> None:
        if now.mono >= self._timer_at:
            try:
                self._machine.tick(now, step)
            except Exception:
                log.exception("an alarm was too much for us: please report this", extra=about())
        if self._backlogs:
            self._retry(now, step)
        self._send_all(step, now)
        self._arm(now)

    def _send_all(self, step: Effects, now: Now) -> None:
        """Send, and go on while sending itself makes the machine say more."""
        used: set[str] = set()
        self._settle(step, now)
        if step.dials or step.hangs:
            self._dial(step)
        while step.sends or step.promises or step.writes or step.events or step.asks or step.publishes or step.closes:
            sends, step.sends = step.sends, {}
            closes, step.closes = step.closes, []
            asks, step.asks = step.asks, []
            promised = step.promises
            self._commit(step, now)
            for ask in asks:
                self._start_answer(ask)
            for peer, messages in sends.items():
                used.add(peer.door)
                self._send(peer, messages, now, step)
            for peer in closes:
                self._close(peer, peer in promised)
            self._settle(step, now)
        self._look_again(used)

    def _dial(self, step: Effects) -> None:
        """Connections to make, and to end once what this turn says has left."""
        assert self._dialing is not None, "nothing here can dial"
        dials, step.dials = step.dials, []
        hangs, step.hangs = step.hangs, []
        for endpoint in dials:
            self._dialing.dial(endpoint)
        for endpoint in hangs:
            self._loop.call_soon(self._dialing.hang_up, endpoint)

    def _close(self, peer: PeerAddress, promised: bool) -> None:
        """Forget what waits for it; a door that can end the connection does so, after what this turn promised it."""
        self._backlogs.pop(peer, None)
        door = self._closing.get(peer.door)
        if door is None:
            return
        if promised:
            self._commits.add([], lambda: door.close_peer(peer.routing_id))
        else:
            door.close_peer(peer.routing_id)

    def _settle(self, step: Effects, now: Now) -> None:
        try:
            self._machine.settle(now, step)
        except Exception:
            log.exception("the end of a turn was too much for us: please report this", extra=about())

    def _look_again(self, used: Iterable[str]) -> None:
        """Sending may have swallowed the signal that something came: ask, or it would wait for ever."""
        for name in used:
            door = self._doors[name]
            if not self._stopped and door.pending():
                self._soon(door)

    def _commit(self, step: Effects, now: Now) -> None:
        writes, step.writes = step.writes, []
        events, step.events = step.events, []
        promises, step.promises = step.promises, {}
        publishes, step.publishes = step.publishes, []
        size = ROW_BYTES * len(writes)
        if events:
            row = self._journal.append(events, now)
            if row is not None:
                writes.append(row)
                size += len(row.body)
        self._unstored_bytes += size
        if promises or publishes:
            self._commits.add(writes, lambda: self._release(promises, publishes, size))
        elif writes:
            self._commits.add(writes, functools.partial(self._note_stored, size))

    def _note_stored(self, size: int) -> None:
        self._unstored_bytes -= size

    def _release(
        self, promises: dict[PeerAddress, list[Message]], publishes: list[tuple[str, list[bytes]]], size: int
    ) -> None:
        """It is stored: now it may be said."""
        self._note_stored(size)
        now = self._clock()
        step = Effects()
        heard: set[PublishSocket] = set()
        for name, frames in publishes:
            publisher = self._publishers.get(name)
            if publisher is not None:
                publisher.publish(frames)
                heard.add(publisher)
        for peer, messages in promises.items():
            self._send(peer, messages, now, step)
        self._send_all(step, now)
        self._look_again({peer.door for peer in promises})
        for publisher in heard:
            # Publishing, too, may have swallowed the signal that somebody subscribed.
            self._listen(publisher)
        self._arm(now)

    def _send(self, peer: PeerAddress, messages: Sequence[Message], now: Now, step: Effects) -> None:
        door = self._doors[peer.door]
        backlog = self._backlogs.get(peer)
        packed = peer.pack(messages)
        for number, frames in enumerate(packed):
            if backlog is None:
                match door.send(peer.routing_id, frames):
                    case "sent":
                        continue
                    case "gone":
                        # What left before may have arrived: only what certainly did not is done elsewhere.
                        alone = len(packed) == len(messages)
                        stayed = messages[number:] if alone or number == 0 else ()
                        self._machine.undelivered(peer, stayed, now, step)
                        return
                    case "full":
                        self._backlogs[peer] = backlog = SendBacklog(now.mono)
            backlog.frames.append(frames)
            backlog.bytes += sum(map(len, frames))
        if backlog is not None:
            self._judge(peer, backlog, now, step)

    def _judge(self, peer: PeerAddress, backlog: SendBacklog, now: Now, step: Effects) -> None:
        """A peer that is too far behind is let go."""
        if backlog.is_too_much(self._max_client_bytes, now.mono):
            self._backlogs.pop(peer, None)
            self._machine.overflow(peer, now, step)

    def _retry(self, now: Now, step: Effects) -> None:
        """libzmq woke us: perhaps somebody reads again."""
        used = {peer.door for peer in self._backlogs}
        for peer, backlog in list(self._backlogs.items()):
            door = self._doors[peer.door]
            while backlog.frames:
                sent = door.send(peer.routing_id, backlog.frames[0])
                if sent == "full":
                    self._judge(peer, backlog, now, step)
                    break
                if sent == "gone":
                    self._backlogs.pop(peer, None)
                    self._machine.undelivered(peer, (), now, step)
                    break
                backlog.bytes -= sum(map(len, backlog.frames.popleft()))
                backlog.moved = now.mono
            else:
                self._backlogs.pop(peer, None)
        self._look_again(used)

    def _arm(self, now: Now) -> None:
        """Wake up for the machine's next deadline."""
        if self._stopped:
            return
        due = self._machine.deadline()
        when = now.mono + MAX_DELAY_SECONDS if due is None else due
        if self._backlogs:
            when = min(when, now.mono + BACKLOG_RETRY_SECONDS)
        if self._timer is not None:
            # A ring that comes too early costs less than setting the timer anew in every turn.
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_later(max(0.0, when - now.mono), self._ring)

    def _ring(self) -> None:
        self._timer = None
        if not self._stopped:
            self._finish(Effects(), self._clock())

    def _start_answer(self, ask: Any) -> None:
        if type(ask) is StoreQuery and not ask.aside:
            self._commits.ask(ask.ask, functools.partial(self._take_answer, ask))
            return
        task = self._loop.create_task(self._find(ask))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take_answer(self, question: StoreQuery, value: Any) -> None:
        """The answers that come together are one turn."""
        if not self._answers:
            self._loop.call_soon(self._hear_answers)
        self._answers.append((question, value))

    def _hear_answers(self) -> None:
        answers, self._answers = self._answers, []
        now, step = self._clock(), Effects()
        for question, value in answers:
            self._hear(question, value, now, step)
        self._finish(step, now)

    def _hear(self, ask: Any, value: Any, now: Now, step: Effects) -> None:
        try:
            self._machine.answer(ask, value, now, step)
        except Exception:
            log.exception("an answer was too much for us: please report this", extra=about(ask=type(ask).__name__))

    async def _find(self, ask: Any) -> None:
        value = await self._answer(ask)
        now = self._clock()
        step = Effects()
        self._hear(ask, value, now, step)
        self._finish(step, now)
