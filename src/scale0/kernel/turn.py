"""The order of a turn: how the effects of a machine are performed, wherever it runs.

The asyncio runner, the simulator and the tests all drive this class; they differ only in its host. One round is:
commit, ask, dial, send, close. A round may make the machine decide more (a peer that is gone), so `settle` is called
again and rounds continue until nothing is left; connections that the turn hung up end last.

Invariants: effects that depend on no commit leave in their own round; whatever was promised, published or deferred in a
round leaves after the commit of that round; a peer that does not read delays no other peer, and holds at most
`max_peer_bytes` of memory for longer than STALL_SECONDS."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message, PeerAddress, Readers
from scale0.kernel.machine import Machine, Sent

STALL_SECONDS: Final = 0.5
"""How long a peer whose backlog is over its limit may accept nothing."""
MESSAGE_BYTES: Final = 300
"""What a message needs in a backlog beside its bytes."""
BURST_FACTOR: Final = 3
"""How many times the limit may be queued for a peer that still reads."""


class TurnHost(Protocol):
    """The environment of a machine: performs what a turn decided, in the order of the calls."""

    def read_clock(self) -> Now: ...
    def commit(self, writes: list[Any], events: list[Any], release: Callable[[], None] | None, now: Now) -> None:
        """Stores writes and events in one transaction, after those of earlier calls; then calls `release`."""
        ...

    def ask(self, ask: Any) -> None:
        """Runs a query; its answer is an input of a later turn."""
        ...

    def pack(self, peer: Any, messages: Sequence[Message]) -> list[list[bytes]]: ...
    def send(self, peer: Any, frames: list[bytes]) -> Sent: ...
    def publish(self, socket: str, frames: list[bytes], readers: Readers | None) -> None: ...
    def dial(self, endpoint: str) -> None: ...
    def disconnect(self, endpoint: str) -> None: ...
    def close(self, peer: Any) -> None: ...
    def drop(self, peer: Any) -> None:
        """Ends the connection of a peer that does not read, at once and without what waits for it."""
        ...

    def note_backlog(self, peer: Any, size: int) -> None:
        """So many bytes wait for a peer that does not read; the host may close its connection for that."""
        ...

    def failed(self, where: str, error: Exception) -> None:
        """Handles an exception of the machine: logs it, or raises it again."""
        ...


class SendBacklog:
    """Frames for one peer that does not read."""

    __slots__ = ("bytes", "frames", "moved")

    def __init__(self, mono: float) -> None:
        self.frames: deque[list[bytes]] = deque()
        self.bytes = 0
        self.moved = mono
        """When the peer last accepted something."""

    def append(self, frames: list[bytes]) -> None:
        self.frames.append(frames)
        self.bytes += sum(map(len, frames))

    def is_over_limit(self, max_bytes: int, mono: float) -> bool:
        """True for a peer over the limit that has accepted nothing for a while, or is behind by more than a burst."""
        over = self.bytes - max_bytes
        return over > 0 and (mono - self.moved > STALL_SECONDS or over > BURST_FACTOR * max_bytes)


class Turn:
    """The turns of one machine on one host."""

    __slots__ = ("_host", "_machine", "_max_peer_bytes", "backlogs", "due")

    def __init__(self, machine: Machine, host: TurnHost, max_peer_bytes: int) -> None:
        self._machine = machine
        self._host = host
        self._max_peer_bytes = max_peer_bytes
        self.backlogs: dict[Any, SendBacklog] = {}
        self.due: float | None = float("-inf")
        """The machine's deadline after the last turn, by the monotonic clock."""

    def finish(self, effects: Effects, now: Now) -> None:
        """Ends a turn: performs what is due, resends to slow peers, and performs what the machine decided."""
        if self.due is not None and now.mono >= self.due:
            try:
                self._machine.tick(now, effects)
            except Exception as error:
                self._host.failed("a timer", error)
        if self.backlogs:
            self._retry(now, effects)
        self._run(effects, now)

    def _run(self, effects: Effects, now: Now) -> None:
        """Runs rounds until sending makes the machine decide nothing more."""
        disconnects: list[str] = []
        self._settle(effects, now)
        while not effects.is_empty():
            disconnects += effects.disconnects
            effects = self._round(effects, now)
            self._settle(effects, now)
        for endpoint in disconnects:
            self._host.disconnect(endpoint)
        self.due = self._machine.deadline()

    def _round(self, decided: Effects, now: Now) -> Effects:
        """Performs what was decided; returns what the machine decides meanwhile, for the next round."""
        host, following = self._host, Effects()
        promises, publishes, deferred = decided.promises, decided.publishes, decided.deferred
        close_later = [peer for peer in decided.closes if peer in promises]
        release = None
        if promises or publishes or deferred:
            release = functools.partial(self._release, promises, publishes, deferred, close_later)
        if decided.writes or decided.events or release is not None:
            host.commit(decided.writes, decided.events, release, now)
        for ask in decided.asks:
            host.ask(ask)
        for endpoint in decided.dials:
            host.dial(endpoint)
        for peer, messages in decided.sends.items():
            self._send(peer, messages, now, following)
        for peer in decided.closes:
            if peer not in promises:
                self._close(peer)
        return following

    def _settle(self, effects: Effects, now: Now) -> None:
        try:
            self._machine.settle(now, effects)
        except Exception as error:
            self._host.failed("the end of a turn", error)

    def _release(
        self,
        promises: dict[Any, list[Message]],
        publishes: list[tuple[str, list[bytes], Readers | None]],
        deferred: list[Callable[[Now, Effects], None]],
        closes: list[Any],
    ) -> None:
        """Sends what depends on a commit that is now stored."""
        now, effects = self._host.read_clock(), Effects()
        for publication in publishes:
            self._host.publish(*publication)
        for then in deferred:
            then(now, effects)
        for peer, messages in promises.items():
            self._send(peer, messages, now, effects)
        for peer in closes:
            self._close(peer)
        self._run(effects, now)

    def _close(self, peer: PeerAddress) -> None:
        self.backlogs.pop(peer, None)
        self._host.close(peer)

    def _send(self, peer: Any, messages: Sequence[Message], now: Now, effects: Effects) -> None:
        backlog = self.backlogs.get(peer)
        packed = self._host.pack(peer, messages)
        for number, frames in enumerate(packed):
            if backlog is None:
                match self._host.send(peer, frames):
                    case "sent":
                        continue
                    case "gone":
                        # Messages sent before may have arrived: only those that certainly did not are handled
                        # elsewhere.
                        one_by_one = len(packed) == len(messages)
                        unsent = messages[number:] if one_by_one or number == 0 else ()
                        self._machine.undelivered(peer, unsent, now, effects)
                        return
                    case "full":
                        self.backlogs[peer] = backlog = SendBacklog(now.mono)
            backlog.append(frames)
        if backlog is not None:
            self._limit(peer, backlog, now, effects)

    def _limit(self, peer: Any, backlog: SendBacklog, now: Now, effects: Effects) -> None:
        """Disconnects a peer that is too far behind."""
        if backlog.is_over_limit(self._max_peer_bytes, now.mono):
            self.backlogs.pop(peer, None)
            self._machine.overflow(peer, now, effects)
            self._host.drop(peer)
        else:
            self._host.note_backlog(peer, backlog.bytes + MESSAGE_BYTES * len(backlog.frames))

    def _retry(self, now: Now, effects: Effects) -> None:
        """Sends again to peers that did not read."""
        for peer, backlog in list(self.backlogs.items()):
            while backlog.frames:
                sent = self._host.send(peer, backlog.frames[0])
                if sent == "full":
                    self._limit(peer, backlog, now, effects)
                    break
                if sent == "gone":
                    self.backlogs.pop(peer, None)
                    self._machine.undelivered(peer, (), now, effects)
                    break
                backlog.bytes -= sum(map(len, backlog.frames.popleft()))
                backlog.moved = now.mono
            else:
                self.backlogs.pop(peer, None)
                self._host.note_backlog(peer, 0)
