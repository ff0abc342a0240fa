"""Connections: who is at the other end of a socket, how it frames, and how often it was wrong.

Lives here: one record per (socket, routing id), and the account of bad input that makes an error client. Never here:
what a message means. Invariant: a record exists only while something was heard within the idle time, or while work or
an identity hangs on it; the number of records is bounded.
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
    """A protocol on a client socket: it takes frames in and packs messages out."""

    def receive(self, connection: Connection, frames: list[bytes], now: Now, effects: Effects) -> None:
        """Act on one message, its routing id and delimiter taken off."""
        ...

    def pack(self, connection: Connection, messages: Sequence[Message]) -> list[list[bytes]]:
        """Wire messages in this protocol's form."""
        ...


class SenderAccount:
    """What a sender used of its rate limits, and its bad messages. All connections of one key share one account."""

    __slots__ = ("bad", "banned_until", "control", "requests")

    def __init__(self) -> None:
        self.requests = RateWindow()
        self.control = RateWindow()
        """Negotiation and heartbeats."""
        self.bad = RateWindow()
        self.banned_until: float | None = None

    def clear(self) -> None:
        """Forgive everything."""
        self.bad, self.banned_until = RateWindow(), None


class Connection:
    """One peer on one socket."""

    __slots__ = (
        "account",
        "arrays",
        "batch",
        "bucket",
        "control",
        "delimiter",
        "door",
        "handler",
        "heard",
        "member",
        "number",
        "outstanding",
        "parts",
        "peer",
        "prefers",
        "prefers_at",
        "routing_id",
        "stale",
        "user_id",
        "waiting_bytes",
        "waits",
    )

    def __init__(
        self,
        door: str,
        routing_id: bytes,
        handler: ProtocolHandler,
        now: Now,
        user_id: str = "",
        account: SenderAccount | None = None,
    ) -> None:
        self.door = door
        self.routing_id = routing_id
        self.handler = handler
        self.delimiter = False
        self.batch = False
        self.heard = now.mono
        self.member: Member | None = None
        self.peer: Peer | None = None
        """The broker at the other end, once it said HELLO."""
        self.prefers = ""
        """Another broker, which it said that it belongs to."""
        self.prefers_at = 0.0
        """When it said so: what it was told to do then may be out of date when it does it."""
        self.outstanding: dict[str | int, Any] = {}
        self.parts: dict[str | int, list[bytes]] | None = None
        self.bucket = 0
        """Of its idle timer."""
        self.control = RateWindow()
        self.account = account or SenderAccount()
        self.stale = False
        """Known from before the broker was disabled: it must negotiate anew."""
        self.user_id = user_id
        """Whose key it came with (`broker.core.keys`); blank without CURVE."""
        self.waiting_bytes = 0
        """Of its requests that wait for a backend."""
        self.arrays = False
        """It has sent a JSON-RPC array: it may get one."""
        self.number = 0
        """By which tasks remember who wants to be told; 0: nobody asked."""
        self.waits = 0
        """Tasks that it waits to hear of."""

    def pack(self, messages: Sequence[Message]) -> list[list[bytes]]:
        """Wire messages, without the routing id, as this peer frames them."""
        packed = self.handler.pack(self, messages)
        return [[b"", *frames] for frames in packed] if self.delimiter else packed

    def keep_part(self, id_: str | int, bodies: Sequence[bytes], limits: Limits) -> bool:
        """Keep parts of an answer, for whoever takes one message for each request; False when they are too many."""
        if self.parts is None:
            self.parts = {}
        kept = self.parts.setdefault(id_, [])
        kept.extend(bodies)
        # Their number first: adding up the sizes of endless crumbs, again with each one, would take all our time.
        return len(kept) <= limits.max_parts and sum(map(len, kept)) <= limits.max_message_bytes

    @property
    def name(self) -> str:
        """What to call it in lists and events: its identity, else its routing id."""
        who = self.member or self.peer
        return who.identity if who is not None else f"{self.door}/{self.routing_id.hex()}"

    @property
    def takes_pushes(self) -> bool:
        """False for a REQ socket: it would take anything unasked for its reply."""
        return not self.delimiter


class Connections:
    """All records of one broker."""

    __slots__ = ("_accounts", "_by_door", "_limits", "_of_user", "on_forget", "refused")

    def __init__(self, limits: Limits, doors: Sequence[str]) -> None:
        self._limits = limits
        self._by_door: dict[str, dict[bytes, Connection]] = {door: {} for door in doors}
        self._accounts: dict[str, SenderAccount] = {}
        """By user; of connections without a key each has its own."""
        self._of_user: dict[str, int] = {}
        """How many connections each user has."""
        self.refused = 0
        self.on_forget: Callable[[Connection], None] = lambda _: None
        """Whoever times connections stops the timer here."""

    def find(self, door: str, routing_id: bytes) -> Connection | None:
        """The record of a peer, if there is one."""
        return self._by_door[door].get(routing_id)

    def open(
        self, door: str, routing_id: bytes, handler: ProtocolHandler, now: Now, user_id: str = ""
    ) -> Connection | None:
        """A new record; None when there are too many already, of all or of one key."""
        most = self._limits.max_clients
        if len(self) >= most or self._of_user.get(user_id, 0) >= most // 2:
            self.refused += 1
            return None
        account = self._accounts.setdefault(user_id, SenderAccount()) if user_id else None
        connection = Connection(door, routing_id, handler, now, user_id, account)
        self._by_door[door][routing_id] = connection
        if user_id:
            self._of_user[user_id] = self._of_user.get(user_id, 0) + 1
        return connection

    def of_users(self, users: Container[str]) -> list[Connection]:
        """The connections of these."""
        return [connection for connection in self if connection.user_id in users]

    def forget_users(self, users: Iterable[str]) -> None:
        """These keys are gone, and so is what was held against them."""
        for user in users:
            self._accounts.pop(user, None)

    def forget(self, connection: Connection) -> None:
        """Drop a record."""
        table = self._by_door[connection.door]
        if table.get(connection.routing_id) is connection:
            del table[connection.routing_id]
            user = connection.user_id
            if user in self._of_user:
                self._of_user[user] -= 1
                if not self._of_user[user]:
                    del self._of_user[user]
            self.on_forget(connection)

    def let_go(self, connection: Connection) -> None:
        """Drop a record whose client left, unless something is counted against it: that goes when it is idle."""
        if not connection.account.bad.used:
            self.forget(connection)

    def apply(self, limits: Limits) -> None:
        """Use other limits from now on."""
        self._limits = limits

    def __len__(self) -> int:
        return sum(map(len, self._by_door.values()))

    def __iter__(self) -> Iterator[Connection]:
        for table in self._by_door.values():
            yield from table.values()

    def blame(self, connection: Connection, now: Now) -> bool:
        """Count one bad message; True when that makes it an error client."""
        limits, account = self._limits, connection.account
        if account.bad.add(1, limits.error_client_window, now.mono) <= limits.error_client_limit:
            return False
        account.banned_until = now.mono + limits.error_client_ban
        return True

    def banned(self, now: Now) -> list[tuple[str, str, SenderAccount]]:
        """The error clients of this moment: name, socket, and what is held against them. A key is one of them."""
        alone = [(peer.name, peer.door, peer.account) for peer in self if not peer.user_id]
        keyed = [(user, user.partition("/")[0], account) for user, account in self._accounts.items()]
        return [row for row in (*alone, *keyed) if row[2].banned_until is not None and row[2].banned_until > now.mono]
