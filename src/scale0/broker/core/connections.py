"""Connections: one record for each (socket, routing id), with its framing, identity and count of bad input.

Invariants: a record exists only while the peer was active within the idle time, or has work or an identity; the number
of records is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message
from scale0.kernel.limits import Limits
from scale0.kernel.rate_window import RateWindow
from scale0.transport.core.request_batches import number_of

if TYPE_CHECKING:
    from scale0.broker.cluster.peer import Peer
    from scale0.broker.core.members import Member
    from scale0.broker.core.request_batches import RequestBatch


MAX_SENDERS: Final = 10_000
"""Clients of other brokers whose rates are counted; then the one that was silent for the longest time is forgotten."""
LISTED_ROWS: Final = 10
"""Rows of a list that cost as much as one request."""


class ProtocolHandler(Protocol):
    """A protocol on a client socket: it handles incoming frames and packs outgoing messages."""

    def receive(self, connection: Connection, frames: list[bytes], now: Now, effects: Effects) -> None:
        """Handle one message; its routing id and delimiter are already removed."""
        ...

    def pack(self, connection: Connection, messages: Sequence[Message]) -> list[list[bytes]]: ...


class SenderAccount:
    """The rate windows and bad messages of a sender. All connections of one key share one account."""

    __slots__ = ("bad", "banned_until", "control", "offer_bytes", "offers", "pages", "requests", "sessions")

    def __init__(self) -> None:
        self.requests = RateWindow()
        self.control = RateWindow()
        """Negotiation and heartbeats."""
        self.offers = RateWindow()
        """Services that its backends added, changed or withdrew."""
        self.offer_bytes = 0
        """What the broker keeps of its services and statuses."""
        self.pages = RateWindow()
        """Pages of lists that were built for it."""
        self.sessions = RateWindow()
        """Bytes of the events about its sessions."""
        self.bad = RateWindow()
        self.banned_until: float | None = None

    def charge_rows(self, found: int = 0, listed: int = 0) -> None:
        """Charge a request that was allowed for the rows that it reads: each that is found by its id counts as a
        request, ten rows of a list as one."""
        self.requests.used += found + listed // LISTED_ROWS

    def clear(self) -> None:
        self.bad, self.banned_until = RateWindow(), None


class Connection:
    __slots__ = (
        "account",
        "arrays",
        "batch",
        "batches",
        "bucket",
        "control",
        "delimiter",
        "handler",
        "is_gone",
        "last_received",
        "member",
        "number",
        "one_reply",
        "outstanding",
        "peer",
        "prefers",
        "prefers_at",
        "public_key",
        "request_batches",
        "routing_id",
        "sender",
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
        public_key: str = "",
    ) -> None:
        self.socket = socket
        self.routing_id = routing_id
        self.handler = handler
        self.is_gone = False
        """It ended: nobody waits for replies."""
        self.delimiter = False
        self.one_reply = False
        """Its protocol has no message for a part of a reply."""
        self.batch = False
        self.request_batches = False
        """It accepts REQUESTS and REPLIES."""
        self.last_received = now.mono
        self.member: Member | None = None
        self.peer: Peer | None = None
        """The broker at the other end, after its HELLO."""
        self.prefers = ""
        """The broker that the client names as its own, if it is another one."""
        self.prefers_at = 0.0
        """When the client named it: an instruction from before that time may be outdated."""
        self.outstanding: dict[Any, Any] = {}
        """Its requests by their ids, except those in `batches`."""
        self.batches: list[RequestBatch] = []
        self.bucket = 0
        self.control = RateWindow()
        self.account = account or SenderAccount()
        self.stale = False
        """Known from before the broker was disabled: it must negotiate again."""
        self.user_id = user_id
        """The user of its key (`broker.core.keys`); blank without CURVE."""
        self.sender = user_id if account is not None else ""
        """The user whose limits it shares with the other connections of its key; blank: it has limits of its own. That
        is so without CURVE, and for programs on the broker's machine, which all have one key."""
        self.public_key = public_key
        """Its key: what it stores, such as tasks, belongs to that, and not to the name. Blank without CURVE."""
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

    @property
    def awaits(self) -> bool:
        """True while it waits for the answer to a request."""
        return bool(self.outstanding or self.batches)

    @property
    def waiting_count(self) -> int:
        """How many requests it waits for."""
        return len(self.outstanding) + sum(batch.left for batch in self.batches)

    def awaits_id(self, id_: Any) -> bool:
        """True while it waits for the answer to this request."""
        if id_ in self.outstanding:
            return True
        place = number_of(id_) if self.batches else None
        return place is not None and any(batch.has_id(*place) for batch in self.batches)

    def awaits_any(self, text: str, first: int, count: int) -> bool:
        """True while it waits for the answer to a request with one of these ids: the text and consecutive numbers."""
        for batch in self.batches:
            if batch.text == text and batch.first < first + count and first < batch.first + batch.count:
                return True
        outstanding = self.outstanding
        return bool(outstanding) and any(f"{text}{number}" in outstanding for number in range(first, first + count))

    @property
    def name(self) -> str:
        """The name for lists and events: the identity, or else the routing id."""
        who = self.member or self.peer
        return who.identity if who is not None else f"{self.socket}/{self.routing_id.hex()}"

    @property
    def takes_pushes(self) -> bool:
        """False for a REQ socket: it would take any unsolicited message for its reply."""
        return not self.delimiter

    @property
    def takes_parts(self) -> bool:
        """False for a client that takes one message for each request."""
        return not (self.delimiter or self.one_reply)


class Connections:
    def __init__(self, limits: Limits, sockets: Sequence[str]) -> None:
        self._limits = limits
        self._by_socket: dict[str, dict[bytes, Connection]] = {socket: {} for socket in sockets}
        self._accounts: dict[str, SenderAccount] = {}
        self._senders: dict[str, SenderAccount] = {}
        """Clients of other brokers whose keys are not used here, the one that was silent for the longest time first."""
        """By user. A connection without a key has its own account."""
        self._of_user: dict[str, int] = {}
        self.refused = 0
        self.on_forget: Callable[[Connection], None] = lambda _: None
        """Called to cancel the timer of a connection that is removed."""

    def find(self, socket: str, routing_id: bytes) -> Connection | None:
        return self._by_socket[socket].get(routing_id)

    def open(
        self,
        socket: str,
        routing_id: bytes,
        handler: ProtocolHandler,
        now: Now,
        user_id: str = "",
        public_key: str = "",
        is_program: bool = False,
    ) -> Connection | None:
        """Create a record; None when the limit of all connections, or of one key, is reached."""
        limits = self._limits
        if len(self) >= limits.max_clients or self._of_user.get(user_id, 0) >= limits.max_key_connections:
            self.refused += 1
            return None
        account = self._accounts.setdefault(user_id, SenderAccount()) if user_id and not is_program else None
        connection = Connection(socket, routing_id, handler, now, user_id, account, public_key)
        self._by_socket[socket][routing_id] = connection
        if user_id:
            self._of_user[user_id] = self._of_user.get(user_id, 0) + 1
        return connection

    def account_of(self, sender: str, peer: SenderAccount) -> SenderAccount:
        """The account of a client of another broker: that of its key, if it is known here; that of the peer, if the
        client is not named."""
        if not sender:
            return peer
        account = self._accounts.get(sender) or self._senders.pop(sender, None) or SenderAccount()
        if sender not in self._accounts:
            while len(self._senders) >= MAX_SENDERS:
                del self._senders[next(iter(self._senders))]
            self._senders[sender] = account
        return account

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
        alone = [(peer.name, peer.socket, peer.account) for peer in self if not peer.sender]
        keyed = [(user, user.partition("/")[0], account) for user, account in self._accounts.items()]
        return [row for row in (*alone, *keyed) if row[2].banned_until is not None and row[2].banned_until > now.mono]
