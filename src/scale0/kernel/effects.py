"""A Step: what one turn of the machines wants done.

Lives here: the ledger that machines write to and the runner empties. Never here: doing any of it.
Invariant: `sends` speak of nothing that must be on disk; `promises` leave only after the turn's
`writes` and `events` are committed together, in one transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scale0.kernel.clock import Now

Message = tuple[Any, ...] | list[bytes]
"""A Scale0 message `(command, options, *bodies)`, or the ready frames of another protocol."""


class PeerAddress(Protocol):
    """The other end of a connection, as the runner needs to see it."""

    @property
    def door(self) -> str:
        """Which socket it is on."""
        ...

    @property
    def routing_id(self) -> bytes:
        """What libzmq calls it."""
        ...

    def pack(self, messages: Sequence[Message]) -> list[list[bytes]]:
        """Wire messages, without the routing id, in the framing that this peer speaks."""
        ...


class StoreQuery:
    """An Ask for the store, and who wants the answer: `then(value, now, step)` in a later turn.

    It is read behind all writes that were decided before it, in the same turn included; one that is `aside` is read
    beside them, when it suits: for long lists.
    """

    __slots__ = ("aside", "ask", "then")

    def __init__(self, ask: Any, then: Callable[[Any, Now, Effects], None], aside: bool = False) -> None:
        self.ask = ask
        self.then = then
        self.aside = aside


class RecordedEvent(Protocol):
    """Something that happened; the classes are in `events/`."""

    @property
    def kind(self) -> str:
        """`noun.past`."""
        ...


class Effects:
    """One turn's output. Machines append; the runner takes it all and starts a new one."""

    __slots__ = ("asks", "closes", "dials", "events", "hangs", "promises", "publishes", "sends", "writes")

    def __init__(self) -> None:
        self.sends: dict[Any, list[Message]] = {}
        self.promises: dict[Any, list[Message]] = {}
        self.publishes: list[tuple[str, list[bytes]]] = []
        self.writes: list[Any] = []
        self.events: list[Any] = []
        self.asks: list[Any] = []
        self.closes: list[Any] = []
        self.dials: list[str] = []
        self.hangs: list[str] = []

    def send(self, peer: PeerAddress, message: Message) -> None:
        """Send as soon as the turn ends."""
        box = self.sends.get(peer)
        if box is None:
            self.sends[peer] = [message]
        else:
            box.append(message)

    def promise(self, peer: PeerAddress, message: Message) -> None:
        """Send once this turn's writes are on disk."""
        self.promises.setdefault(peer, []).append(message)

    def publish(self, door: str, frames: list[bytes]) -> None:
        """Publish on a PUB socket once this turn's writes are on disk."""
        self.publishes.append((door, frames))

    def dial(self, endpoint: str) -> None:
        """Connect to another broker, and keep connecting; before anything is sent."""
        self.dials.append(endpoint)

    def hang_up(self, endpoint: str) -> None:
        """End what was dialed, after what was sent."""
        self.hangs.append(endpoint)

    def close(self, peer: PeerAddress) -> None:
        """Forget whatever still waits for this peer, after what was sent."""
        self.closes.append(peer)

    def record(self, event: RecordedEvent) -> None:
        """Enter an event in the journal."""
        self.events.append(event)

    def write(self, row: object) -> None:
        """Store a row (a class of `storage.rows`) with this turn's commit."""
        self.writes.append(row)

    def ask(self, question: object) -> None:
        """Have something read or computed; the answer is an input of a later turn."""
        self.asks.append(question)
