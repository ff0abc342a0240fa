"""The broker without sockets: it dispatches messages, timers and answers to its parts.

Invariants: no input raises out of `receive`, and a message from one client never changes the state of another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, cast

from scale0.broker.admin.commands import AdminCommands
from scale0.broker.cluster.clock_skew import ClockSkew
from scale0.broker.cluster.key_replication import KeyReplication
from scale0.broker.core.config_document import ConfigDocument
from scale0.broker.core.connections import Connection, Connections, ProtocolHandler
from scale0.broker.core.enrolment import LearnPeerKey, StoreKey
from scale0.broker.core.key_audit import KeyAudit
from scale0.broker.core.keys import is_enrolment_key
from scale0.broker.core.members import Members
from scale0.broker.core.permission_check import PermissionCheck
from scale0.broker.core.protocol_handler import ClusterParts, Scale0Handler
from scale0.broker.core.rate_limits import RateLimits
from scale0.broker.core.request_stats import SUM_SECONDS
from scale0.broker.core.requests import Requests
from scale0.broker.core.scheduler import Scheduler
from scale0.broker.core.state import BrokerState
from scale0.broker.core.stored_times import StoredTimes
from scale0.history.events.clients import ClientRefused
from scale0.history.events.sources import BrokerStarted, BrokerStopped, SourceAlive
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message, StoreQuery
from scale0.kernel.errors import Refusal
from scale0.kernel.timers import ring
from scale0.transport.core import codec
from scale0.transport.core import messages as options
from scale0.transport.core.address_book import SERVER_KEY
from scale0.transport.core.session import RECHECK_SECONDS
from scale0.transport.core.sockets import CLIENT_SOCKETS, CONFIG_SUB, DIALED, DISABLED, PEER_SOCKETS

MAX_LATE_TICKS: Final = 4
"""A broker whose every tick is late has too much to do: its deadlines are judged all the same."""
ALIVE_SECONDS: Final = 60.0
"""How often each event source records that it is alive."""
PRUNE_SECONDS: Final = 3_600.0
LATE_SECONDS: Final = RECHECK_SECONDS
"""A tick that is later than this follows a suspension, and waits as long for what is in the sockets."""

JSON_STARTS: Final = frozenset({b"{", b"["})


class Broker:
    def __init__(
        self,
        state: BrokerState,
        connections: Connections,
        members: Members,
        cluster: ClusterParts,
        scheduler: Scheduler,
        requests: Requests,
        documents: ConfigDocument,
        management: AdminCommands,
        scale0: Scale0Handler,
        rate_limits: RateLimits,
        clock_skew: ClockSkew,
        key_audit: KeyAudit,
        stored_times: StoredTimes,
        rpc: ProtocolHandler,
        permission_check: PermissionCheck,
        subscribe: Callable[[bytes, Now, Effects], None],
        version: str,
    ) -> None:
        self.state = state
        self.connections = connections
        self.members = members
        self.peers = cluster.peers
        self._cluster = cluster
        self.scheduler = scheduler
        self.requests = requests
        self.documents = documents
        self.management = management
        self.scale0 = scale0
        self.version = version
        self.handlers: dict[bytes, ProtocolHandler] = {codec.MAGIC: scale0}
        self.rpc = rpc
        """Handles a first frame that starts like JSON; also packs messages for a peer that has sent nothing yet."""
        self.key_replication: KeyReplication | None = None
        self.list_own_key: Callable[[Now, Effects], None] = lambda *_: None
        """Writes our own key into the network document; set by the composition root."""
        self.tasks: Any = None
        """The task queue, for views and tests; the broker itself uses `requests.tasks` only."""
        self._subscribe = subscribe
        self._rate_limits = rate_limits
        self._clock_skew = clock_skew
        self.key_audit = key_audit
        self._stored_times = stored_times
        self.permission_check = permission_check
        self._settled = 0.0
        """When the last turn ended, monotonic time."""
        self._awaited: float | None = None
        """The deadline that the host knows."""
        self._reads_until: float | None = None
        """After a late tick: no deadline is judged before this time."""
        self._late_ticks = 0
        """Ticks in a row that were late."""
        connections.on_forget = self._stop_idle

    def start(self, boots: int, now: Now, effects: Effects) -> None:
        self.state.started = now.mono
        effects.record(BrokerStarted(identity=self.state.identity, version=self.version, boots=boots))
        self.members.start(now)
        self._clock_skew.start(now)
        self.documents.start(now, effects)
        self.peers.start(now, effects)
        self._cluster.catalog_replication.start(now)
        self._cluster.forwarding.start(now)
        self._cluster.rebalancing.start(now)
        self._cluster.standby.start(now)
        self.state.timers.add((self._alive, None), now.mono + ALIVE_SECONDS)
        self.state.timers.add((self._sum, None), now.mono + SUM_SECONDS)

    def stop(self, reason: str, now: Now, effects: Effects) -> None:
        self.requests.stats.flush(effects)
        effects.record(BrokerStopped(identity=self.state.identity, reason=reason))
        self._stored_times.store(now, effects)

    def ignores(self, socket: str, routing_id: bytes) -> bool:
        """True while the sender is banned for bad input."""
        connection = self.connections.find(socket, routing_id)
        return connection is not None and connection.account.banned_until is not None

    def receive(self, socket: str, routing_id: bytes, frames: list[bytes], now: Now, effects: Effects) -> None:
        """Handle one message from a client socket; the routing id is already removed."""
        connection, user, keys = self.connections.find(socket, routing_id), "", self.state.keys
        if keys is not None:
            user = keys.user_of(socket, routing_id)
            connection = self._same_user(connection, user, now, effects)
        if connection is None:
            if socket == CONFIG_SUB:
                self._cluster.config_replication.published(frames, now, effects)
                return
            is_program = keys is not None and keys.is_program(user)
            public_key = keys.public_key_of(user) if keys is not None else ""
            connection = self.connections.open(socket, routing_id, self.rpc, now, user, public_key, is_program)
            if connection is None:
                return
            due = now.mono + self.state.limits.frontend_idle
            connection.bucket = self.state.timers.add((self._idle, connection), due)
        account = connection.account
        if account.banned_until is not None:
            if now.mono < account.banned_until:
                self.peers.ignore(connection, now, effects)
                return
            account.clear()
        connection.last_received = now.mono
        if connection.peer is not None:
            connection.peer.last_received, connection.peer.last_received_wall = now.mono, now.wall
        connection.delimiter = not frames[0] and len(frames) > 1
        if connection.delimiter:
            frames = frames[1:]
        handler = self.handlers.get(frames[0])
        if user and is_enrolment_key(user):
            self.scale0.receive_guest(connection, frames, now, effects)
            return
        if handler is None:
            if frames[0][:1] in JSON_STARTS and frames[0]:
                self._receive_json(connection, frames, now, effects)
                return
            self.state.count("messages_unknown")
            self.reject(connection, codes.MALFORMED, "unknown protocol", now, effects)
            return
        connection.handler = handler
        limits = self.state.limits
        if len(frames) > limits.max_parts or sum(map(len, frames)) > limits.max_message_bytes:
            self._too_big(connection, frames, now, effects)
            return
        handler.receive(connection, frames, now, effects)

    def _receive_json(self, connection: Connection, frames: list[bytes], now: Now, effects: Effects) -> None:
        """JSON-RPC does not change the connection's framing: a peer may use it next to another protocol."""
        if self.state.state != DISABLED:
            self.rpc.receive(connection, frames, now, effects)

    def receive_subscription(self, frames: list[bytes], now: Now, effects: Effects) -> None:
        self._subscribe(frames[0], now, effects)

    def settle(self, now: Now, effects: Effects) -> None:
        self._settled = now.mono
        self.requests.tasks.settle(now, effects)
        self._stored_times.settle(now, effects)

    def tick(self, now: Now, effects: Effects) -> None:
        if self._reads_first(now):
            return
        ring(self.state.timers, now, effects)
        self.requests.tick(now, effects)
        self.requests.tasks.tick(now, effects)

    def _reads_first(self, now: Now) -> bool:
        """True for a tick that is late. What clients sent in time may wait in the sockets, so no deadline is judged
        before there was time to read them."""
        due = self._awaited
        late = due is not None and now.mono > max(due, self._settled) + LATE_SECONDS
        self._late_ticks = self._late_ticks + 1 if late else 0
        waits = 0 < self._late_ticks < MAX_LATE_TICKS
        self._reads_until = now.mono + LATE_SECONDS if waits else None
        return waits

    def deadline(self) -> float | None:
        self._awaited = self._due() if self._reads_until is None else self._reads_until
        return self._awaited

    def _due(self) -> float | None:
        one, other = self.state.timers.deadline(), self.requests.deadline()
        if one is None or (other is not None and other < one):
            one = other
        other = self.requests.tasks.deadline()
        return other if one is None or (other is not None and other < one) else one

    def answer(self, ask: object, value: object, now: Now, effects: Effects) -> None:
        if type(ask) is StoreQuery:
            ask.then(value, now, effects)
        elif type(ask) is StoreKey:
            self.scale0.enrolment.answer(ask, cast("Refusal | None", value), effects)
        elif type(ask) is LearnPeerKey:
            return
        else:
            self.management.answer(ask, value, now, effects)

    def undelivered(self, connection: Connection, messages: Sequence[Message], now: Now, effects: Effects) -> None:
        """The socket reports that this peer is gone: retry the unsent messages elsewhere at once."""
        member = connection.member
        if connection.socket in PEER_SOCKETS:
            # Take back the unsent requests first: they never ran, so they are retried and do not count as lost.
            forwarded = [one[1]["id"] for one in messages if isinstance(one, tuple) and one[0] == "FORWARD"]
            left_not = self.requests.take_back(forwarded, now)
            self.peers.gone(connection, now, effects)
            self.requests.again(left_not, now, effects)
            return
        if member is None:
            self.requests.origin_gone(connection, now)
            self.connections.forget(connection)
            return
        if member.backend is not None:
            self.members.suspend(member, now)
        for message in messages:
            if isinstance(message, list):
                if member.backend is not None and message[0][:1] in (b"{", b"["):
                    # An answer of JSON-RPC: it may hand out tasks.
                    self.requests.tasks.unsent(member.backend, message[0], now, effects)
            elif message[0] == "REQUEST":
                self.requests.redirect((message[1]["id"],), now, effects)
            elif message[0] == "REQUESTS":
                self.requests.redirect_batch(connection, message[1]["first"], now, effects)
            elif message[0] == "TASKS" and member.backend is not None:
                self.requests.tasks.unsent(member.backend, message[2], now, effects)

    def overflow(self, connection: Connection, now: Now, effects: Effects) -> None:
        """A peer does not read its messages: disconnect it, so that it uses no more memory."""
        self.state.count("clients_overflowed")
        effects.record(ClientRefused(identity=connection.name, code=codes.TOO_MANY, data={"reason": "does not read"}))
        self._disconnect(connection, now, effects)

    def closed(self, socket: str, routing_id: bytes, now: Now, effects: Effects) -> None:
        """A connection ended: its requests and subscriptions end, too. A client that has negotiated may reconnect and
        continue: heartbeats decide about it, or a short time if it sent none."""
        connection = self.connections.find(socket, routing_id)
        if connection is None or connection.peer is not None:
            return
        if connection.member is not None:
            self.members.hang_up(connection.member, now)
            return
        self.requests.origin_gone(connection, now)
        self.connections.forget_unless_bad(connection)
        effects.close(connection)

    def lose_users(self, users: Collection[str], now: Now, effects: Effects) -> None:
        """The keys changed. Those of these users were revoked or have expired: send their connections an error and
        disconnect them."""
        expired = self.state.keys.expired if self.state.keys is not None else frozenset()
        self.key_audit.record(now, effects)
        self.members.apply_permissions(now, effects)
        for connection in self.connections.of_users(users):
            if not is_enrolment_key(connection.user_id):
                reason = "key has expired" if connection.user_id in expired else "key was revoked"
                refused = {"reason": f"its {reason}"}
                effects.record(ClientRefused(identity=connection.name, code=codes.NOT_ALLOWED, data=refused))
                if connection.takes_pushes and connection.socket in CLIENT_SOCKETS:
                    message = options.DisconnectError(codes.NOT_ALLOWED, f"your {reason}")
                    effects.send(connection, ("DISCONNECTERROR", message))
            if connection.socket == DIALED:
                self.peers.ignore(connection, now, effects)
            else:
                self._disconnect(connection, now, effects)
        self.connections.forget_users(users)

    def rotate_server_key(self, public_key: str, now: Now, effects: Effects) -> None:
        """Our own key has changed, or the previous one is retired: record and announce it."""
        self.key_audit.record(now, effects)
        if self.state.endpoints.get(SERVER_KEY) != public_key:
            self.state.endpoints[SERVER_KEY] = public_key
            self.documents.announce_server_key(list(self.members.by_name.values()), now)
        self.list_own_key(now, effects)
        self.peers.send_hello_to_all(now, effects)

    def _same_user(self, connection: Connection | None, user: str, now: Now, effects: Effects) -> Connection | None:
        """Return the connection, unless its routing id now belongs to another key; in that case the old one ends."""
        if connection is None or connection.user_id == user:
            return connection
        if connection.socket == DIALED:
            connection.user_id = user
            return connection
        self._disconnect(connection, now, effects)
        return None

    def _disconnect(self, connection: Connection, now: Now, effects: Effects) -> None:
        if connection.member is not None:
            self.members.lose(connection.member, now, effects)
        if connection.peer is not None:
            self.peers.gone(connection, now, effects)
        self.requests.origin_gone(connection, now)
        self.connections.forget(connection)
        effects.close(connection)

    def reject(self, connection: Connection, code: int, message: str, now: Now, effects: Effects) -> None:
        self._rate_limits.reject(connection, code, message, now, effects)

    def may_ask(self, connection: Connection, now: Now) -> bool:
        return self._rate_limits.allows_request(connection.account, now)

    def _too_big(self, connection: Connection, frames: list[bytes], now: Now, effects: Effects) -> None:
        limits = self.state.limits
        if connection.handler is self.scale0 and len(frames) > 2 and len(frames[2]) <= limits.max_options_bytes:
            self.scale0.refuse_big(connection, frames, now, effects)
        else:
            self.reject(connection, codes.TOO_BIG, "message too big", now, effects)

    def _idle(self, connection: Connection, now: Now, effects: Effects) -> None:
        """Forget a connection that is idle, and has no work and no ban."""
        if self.connections.find(connection.socket, connection.routing_id) is not connection:
            return
        # A ban of a key is stored with the key, not with the connection.
        banned = 0.0 if connection.sender else connection.account.banned_until or 0.0
        due = max(connection.last_received + self.state.limits.frontend_idle, banned)
        if connection.member is not None or connection.peer is not None or connection.awaits or connection.waits:
            due = max(due, now.mono + self.state.limits.frontend_idle)
        if now.mono < due:
            connection.bucket = self.state.timers.add((self._idle, connection), due)
        else:
            self.connections.forget(connection)
            effects.close(connection)

    def _stop_idle(self, connection: Connection) -> None:
        self.requests.tasks.forget(connection)
        self.state.timers.remove((self._idle, connection), connection.bucket)

    def _alive(self, _: None, now: Now, effects: Effects) -> None:
        effects.record(SourceAlive(identity=self.state.identity))
        self.scheduler.prune(now.mono, PRUNE_SECONDS)
        self.state.timers.add((self._alive, None), now.mono + ALIVE_SECONDS)

    def _sum(self, _: None, now: Now, effects: Effects) -> None:
        self.requests.stats.flush(effects)
        self.state.timers.add((self._sum, None), now.mono + SUM_SECONDS)
