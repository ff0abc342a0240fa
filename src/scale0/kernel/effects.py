"""Effects: the output of one turn. Invariant: `sends` depend on no commit; `promises`, `publishes` and `after_commit`
leave only after the turn's writes and events are committed together, in one transaction. `kernel.turn` defines the
order in which effects are performed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scale0.kernel.clock import Now

Message = tuple[Any, ...] | list[bytes]
"""A Scale0 message `(command, options, *bodies)`, or encoded frames of another protocol."""

Readers = Callable[[str], bool]
"""Whether subscribers with this public key may receive a publication."""


class PeerAddress(Protocol):
    """The other end of a connection."""

    @property
    def socket(self) -> str:
        """The name of its socket."""
        ...

    @property
    def routing_id(self) -> bytes:
        """The number that its socket gave it."""
        ...

    def pack(self, messages: Sequence[Message]) -> list[list[bytes]]:
        """Returns frames without the routing id, in the framing of this peer."""
        ...


class StoreQuery:
    """A query to the store; `then(value, now, effects)` gets the answer in a later turn.

    It is read after all writes that were decided before it, including those of the same turn. With `aside` it is read
    concurrently, at any time: for long lists. Those are read one at a time and in turn by `sender`; if one fails, its
    answer is a `Refusal`. `rows`: what it adds to the rows of its sender."""

    __slots__ = ("aside", "ask", "rows", "sender", "then")

    def __init__(
        self,
        ask: Any,
        then: Callable[[Any, Now, Effects], None],
        aside: bool = False,
        sender: Hashable = "",
        rows: int = 1,
    ) -> None:
        self.ask = ask
        self.then = then
        self.aside = aside
        self.sender = sender
        self.rows = rows


class RecordedEvent(Protocol):
    @property
    def kind(self) -> str:
        """`noun.past`."""
        ...


class Effects:
    """The output of one round of a turn. Machines append to it."""

    __slots__ = (
        *("asks", "closes", "deferred", "dials", "events", "disconnects", "promises", "publishes", "reads", "sends"),
        "writes",
    )

    def __init__(self) -> None:
        self.sends: dict[Any, list[Message]] = {}
        self.promises: dict[Any, list[Message]] = {}
        self.publishes: list[tuple[str, list[bytes], Readers | None]] = []
        self.deferred: list[Callable[[Now, Effects], None]] = []
        self.writes: list[Any] = []
        self.events: list[Any] = []
        self.asks: list[Any] = []
        self.reads = 0
        """Rows that are read for these and for queries that wait for their turn."""
        self.closes: list[Any] = []
        self.dials: list[str] = []
        self.disconnects: list[str] = []

    def is_empty(self) -> bool:
        return not (
            self.sends
            or self.promises
            or self.writes
            or self.events
            or self.asks
            or self.publishes
            or self.deferred
            or self.closes
            or self.dials
            or self.disconnects
        )

    @property
    def rows(self) -> int:
        """What the store has to do: rows, events and queries."""
        return self.reads + len(self.writes) + len(self.events)

    def send(self, peer: PeerAddress, message: Message) -> None:
        """Sends when the turn ends."""
        box = self.sends.get(peer)
        if box is None:
            self.sends[peer] = [message]
        else:
            box.append(message)

    def promise(self, peer: PeerAddress, message: Message) -> None:
        """Sends after this turn's commit."""
        self.promises.setdefault(peer, []).append(message)

    def publish(self, socket: str, frames: list[bytes], readers: Readers | None = None) -> None:
        """Publishes after this turn's commit, to the subscribers among `readers`; None: to all."""
        self.publishes.append((socket, frames, readers))

    def after_commit(self, then: Callable[[Now, Effects], None]) -> None:
        """Calls `then` after this turn's commit, in a separate turn."""
        self.deferred.append(then)

    def dial(self, endpoint: str) -> None:
        """Connects to another broker before anything is sent, and reconnects after failures."""
        self.dials.append(endpoint)

    def disconnect(self, endpoint: str) -> None:
        """Closes the connection to a dialed endpoint after everything was sent."""
        self.disconnects.append(endpoint)

    def close(self, peer: PeerAddress) -> None:
        """Closes this connection and drops its backlog, after everything was sent and promised."""
        self.closes.append(peer)

    def record(self, event: RecordedEvent) -> None:
        """Appends an event to the journal."""
        self.events.append(event)

    def write(self, row: object) -> None:
        """Stores a row (a class of `storage.rows`) with this turn's commit."""
        self.writes.append(row)

    def ask(self, question: object) -> None:
        """Requests a read or a computation; the answer is an input of a later turn."""
        self.asks.append(question)
        self.reads += getattr(question, "rows", 1)
