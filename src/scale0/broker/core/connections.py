"""Connections: one record for each (socket, routing id), with its framing, identity and count of bad input.

Invariants: a record exists only while the peer was active within the idle time, or has work or an identity; the number
of records is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message
from scale0.kernel.limits import Limits
from scale0.kernel.rate_window import RateWindow

if TYPE_CHECKING:
    from scale0.broker.cluster.peer import Peer
    from scale0.broker.core.members import Member


class ProtocolHandler(Protocol):
    """A protocol on a client socket: it handles incoming frames and packs outgoing messages."""

    def receive(self, connection: Connection, frames: list[bytes], now: Now, effects: Effects) -> None:
        """Handle one message; its routing id and delimiter are already removed."""
        ...

    def pack(self, connection: Connection, messages: Sequence[Message]) -> list[list[bytes]]: ...


class SenderAccount:
    """The rate windows and bad messages of a sender. All connections of one key share one account."""

    __slots__ = ("bad", "banned_until", "control", "requests")

    def __init__(self) -> None:
        self.requests = RateWindow()
        self.control = RateWindow()
        """Negotiation and heartbeats."""
        self.bad = RateWindow()
        self.banned_until: float | None = None

    def clear(self) -> None:
        self.bad, self.banned_until = RateWindow(), None


class Connection:
    __slots__ = (
        "account",
        "arrays",
        "batch",
        "bucket",
        "control",
        "delimiter",
        "handler",
        "last_received",
        "member",
        "number",
        "outstanding",
        "parts",
        "peer",
        "prefers",
        "prefers_at",
        "routing_id",
        "socket",
        "stale",
        "user_id",
        "waiting_bytes",
        "waits",
    )

    def __init__(
        self,
        socket: str,
        routing_id: bytes,
        handler: ProtocolHandler,
        now: Now,
        user_id: str = "",
        account: SenderAccount | None = None,
    ) -> None:
        self.socket = socket
        self.routing_id = routing_id
        self.handler = handler
        self.delimiter = False
        self.batch = False
        self.last_received = now.mono
        self.member: Member | None = None
        self.peer: Peer | None = None
        """The broker at the other end, after its HELLO."""
        self.prefers = ""
        """The broker that the client names as its own, if it is another one."""
        self.prefers_at = 0.0
        """When the client named it: an instruction from before that time may be outdated."""
        self.outstanding: dict[Any, Any] = {}
        self.parts: dict[Any, list[bytes]] | None = None
        self.bucket = 0
        self.control = RateWindow()
        self.account = account or SenderAccount()
        self.stale = False
        """Known from before the broker was disabled: it must negotiate again."""
        self.user_id = user_id
        """The user of its key (`broker.core.keys`); blank without CURVE."""
        self.waiting_bytes = 0
        self.arrays = False
        """It has sent a JSON-RPC array, so the broker may send it one."""
        self.number = 0
        """The number under which tasks store a subscriber; 0: it has no subscription."""
        self.waits = 0
        """Number of tasks whose results it waits for."""

    def pack(self, messages: Sequence[Message]) -> list[list[bytes]]:
        """Return wire messages in this peer's framing, without the routing id."""
        packed = self.handler.pack(self, messages)
        return [[b"", *frames] for frames in packed] if self.delimiter else packed

    def keep_part(self, id_: Any, bodies: Sequence[bytes], limits: Limits) -> bool:
        """Buffer parts of a reply for a peer that takes one message for each request; False above the limits."""
        if self.parts is None:
            self.parts = {}
        kept = self.parts.setdefault(id_, [])
        kept.extend(bodies)
        # Check the number first: the sum over very many small parts, repeated for each part, would be quadratic.
        return len(kept) <= limits.max_parts and sum(map(len, kept)) <= limits.max_message_bytes

    @property
    def name(self) -> str:
        """The name for lists and events: the identity, or else the routing id."""
        who = self.member or self.peer
        return who.identity if who is not None else f"{self.socket}/{self.routing_id.hex()}"

    @property
    def takes_pushes(self) -> bool:
        """False for a REQ socket: it would take any unsolicited message for its reply."""
        return not self.delimiter


class Connections:
    def __init__(self, limits: Limits, sockets: Sequence[str]) -> None:
        self._limits = limits
        self._by_socket: dict[str, dict[bytes, Connection]] = {socket: {} for socket in sockets}
        self._accounts: dict[str, SenderAccount] = {}
        """By user. A connection without a key has its own account."""
        self._of_user: dict[str, int] = {}
        self.refused = 0
        self.on_forget: Callable[[Connection], None] = lambda _: None
        """Called to cancel the timer of a connection that is removed."""

    def find(self, socket: str, routing_id: bytes) -> Connection | None:
        return self._by_socket[socket].get(routing_id)

    def open(
        self, socket: str, routing_id: bytes, handler: ProtocolHandler, now: Now, user_id: str = ""
    ) -> Connection | None:
        """Create a record; None when the limit of all connections, or of one key, is reached."""
        limits = self._limits
        if len(self) >= limits.max_clients or self._of_user.get(user_id, 0) >= limits.max_key_connections:
            self.refused += 1
            return None
        account = self._accounts.setdefault(user_id, SenderAccount()) if user_id else None
        connection = Connection(socket, routing_id, handler, now, user_id, account)
        self._by_socket[socket][routing_id] = connection
        if user_id:
            self._of_user[user_id] = self._of_user.get(user_id, 0) + 1
        return connection

    def of_users(self, users: Container[str]) -> list[Connection]:
        return [connection for connection in self if connection.user_id in users]

    def forget_users(self, users: Iterable[str]) -> None:
        for user in users:
            self._accounts.pop(user, None)

    def forget(self, connection: Connection) -> None:
        table = self._by_socket[connection.socket]
        if table.get(connection.routing_id) is connection:
            del table[connection.routing_id]
            user = connection.user_id
            if user in self._of_user:
                self._of_user[user] -= 1
                if not self._of_user[user]:
                    del self._of_user[user]
            self.on_forget(connection)

    def forget_unless_bad(self, connection: Connection) -> None:
        """Remove the record of a client that left, unless bad input is counted against it; such a record expires."""
        if not connection.account.bad.used:
            self.forget(connection)

    def apply(self, limits: Limits) -> None:
        self._limits = limits

    def __len__(self) -> int:
        return sum(map(len, self._by_socket.values()))

    def __iter__(self) -> Iterator[Connection]:
        for table in self._by_socket.values():
            yield from table.values()

    def count_error(self, connection: Connection, now: Now) -> bool:
        """Count one bad message; True when its sender becomes an error client."""
        limits, account = self._limits, connection.account
        if account.bad.add(1, limits.error_client_window, now.mono) <= limits.error_client_limit:
            return False
        account.banned_until = now.mono + limits.error_client_ban
        return True

    def banned(self, now: Now) -> list[tuple[str, str, SenderAccount]]:
        """The error clients: name, socket and account. A key counts as one client."""
        alone = [(peer.name, peer.socket, peer.account) for peer in self if not peer.user_id]
        keyed = [(user, user.partition("/")[0], account) for user, account in self._accounts.items()]
        return [row for row in (*alone, *keyed) if row[2].banned_until is not None and row[2].banned_until > now.mono]
