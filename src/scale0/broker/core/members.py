"""Members: clients with an identity, their registration, and their liveness.

Invariants: an identity belongs to one connection of its role at a time; only the monotonic clock decides liveness; a
member that is gone is in no table or queue, and holds no work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Final

from scale0.broker.core.connections import Connection, Connections, SenderAccount
from scale0.broker.core.offer_memory import NAME_BYTES, SERVICE_BYTES, OfferMemory, cost_of_services
from scale0.broker.core.permission_check import PermissionCheck
from scale0.broker.core.permissions import OFFER, TAKE
from scale0.broker.core.requests import Requests
from scale0.broker.core.scheduler import Backend, Scheduler
from scale0.broker.core.session_log import Offer, SessionLog
from scale0.broker.core.state import BrokerState
from scale0.history.events.clients import ClientLeft, ClientLost, ClientReplaced, ClientSeen
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.transport.core import messages
from scale0.transport.core.session import RECHECK_SECONDS
from scale0.transport.core.sockets import BACKEND

SCALE0: Final = "scale0"
MAJORDOMO: Final = "majordomo"
ZEROTASK: Final = "zerotask"
"""The protocols of members; the last is JSON-RPC, for task nodes."""
SEEN_SECONDS: Final = 60.0
"""How often heartbeats are summarised in an event."""
SEEN_CHUNK: Final = 1_000
GONE_SECONDS: Final = 10.0
"""How long a client that never sent a heartbeat may take to connect again: its requests and their bytes wait for it."""


Holds = Sequence[tuple[str, int]]
"""The work that a backend reports as in flight: ids with the attempt, which is 0 for requests."""


class Member:
    __slots__ = (
        "backend",
        "bucket",
        "closed",
        "config_type",
        "config_version",
        "connection",
        "doubted",
        "gone",
        "heartbeats",
        "home",
        "identity",
        "interval",
        "joined",
        "joined_wall",
        "judged",
        "last_gap_start",
        "longest_gap",
        "move_sent",
        "old_since",
        "overdue",
        "patience",
        "payer",
        "prefetch",
        "protocol",
        "recorded",
        "role",
        "service_bytes",
        "services",
        "slots",
        "status",
        "status_bytes",
        "suspended",
    )

    def __init__(self, identity: str, role: str, connection: Connection, now: Now) -> None:
        self.identity = identity
        self.role = role
        self.connection = connection
        self.services: tuple[str, ...] = ()
        self.slots = 0
        """How many items it accepts at once, from its last READY."""
        self.backend: Backend | None = None
        self.prefetch = 0
        self.judged = False
        """Liveness is enforced: it has sent READY or HEARTBEAT."""
        self.joined = False
        self.joined_wall = now.wall
        self.recorded: Offer | None = None
        """What the journal has as its offer; None: no session."""
        self.interval = 0.0
        self.patience = 0.0
        """The longest silence allowed, in seconds, once liveness is enforced."""
        self.doubted: float | None = None
        """When its silence first exceeded the limit."""
        self.bucket = 0
        self.config_type = "json"
        self.config_version: int | None = None
        self.old_since: float | None = None
        """Since when its heartbeats show an old configuration."""
        self.overdue = 0
        """How often it was told to negotiate for that reason."""
        self.heartbeats = 0
        self.longest_gap = 0.0
        self.last_gap_start = now.mono
        self.gone = False
        self.closed = False
        """Its connection ended."""
        self.suspended = False
        """Its connection is gone or new: it gets no work until its READY reports what it holds."""
        self.home = ""
        """The broker that it belongs to, if another; it moves there when that broker is back."""
        self.move_sent = False
        """It was sent to another broker, because this one drains."""
        self.protocol = SCALE0
        self.status = b""
        """The last status that a task node reported, in JSON; empty: none."""
        self.payer: SenderAccount | None = None
        """The account of its bytes; `OfferMemory` writes this and the fields below."""
        self.service_bytes = 0
        self.status_bytes = 0

    @property
    def foreign(self) -> bool:
        """It speaks a protocol other than SCALE0/1."""
        return self.protocol != SCALE0


class Members:
    def __init__(
        self,
        state: BrokerState,
        connections: Connections,
        scheduler: Scheduler,
        requests: Requests,
        permission_check: PermissionCheck,
    ) -> None:
        self._state = state
        self._permission_check = permission_check
        self._connections = connections
        self._scheduler = scheduler
        self._requests = requests
        self._session_log = SessionLog(state)
        self.memory = OfferMemory(state.limits)
        self.by_name: dict[tuple[str, str], Member] = {}
        self.changed: dict[tuple[str, str], None] = {}
        """Members that joined, left or changed their services; catalog replication empties this."""
        self.changes = 0
        """Counts these changes, and new members."""
        self.judged = 0
        self._seen: list[Member] = []

    def start(self, now: Now) -> None:
        self._state.timers.add((self._sum_up, None), now.mono + SEEN_SECONDS)

    def name(self, connection: Connection, identity: str, now: Now, effects: Effects) -> Member:
        """Return the member of this connection; register it if it is new."""
        member = connection.member
        if member is not None:
            if member.identity != identity:
                raise Refusal(409, f"this connection is {member.identity}, it cannot be {identity} too")
            return member
        if self._state.keys is not None:
            self._state.keys.check(connection.socket, connection.user_id, identity)
        role = connection.socket
        member = self.by_name.get((role, identity))
        if member is None:
            member = Member(identity, role, connection, now)
            self.by_name[role, identity] = member
            self.changes += 1
            self._arm(member, now.mono + self._state.limits.frontend_idle)
        else:
            self._take_over(member, connection, now, effects)
        connection.member = member
        return member

    def _note_change(self, member: Member) -> None:
        self.changes += 1
        self.changed[member.role, member.identity] = None

    def join(self, member: Member, services: Mapping[str, int], slots: int, now: Now, effects: Effects) -> Backend:
        """READY: add the backend to the queue of each service with the slots of that service, or replace its queues."""
        backend = self._register(member, services, slots, now, effects)
        self._requests.feed(backend, None, now, effects)
        return backend

    def _register(self, member: Member, services: Mapping[str, int], slots: int, now: Now, effects: Effects) -> Backend:
        backend = self._enter(member)
        changed = self._scheduler.change(backend, services, slots, now.mono)
        if changed:
            self.memory.charge(member, cost_of_services(services), member.status_bytes)
        if member.joined and services and not changed:
            return backend
        member.services, member.slots = tuple(sorted(services)), slots
        self._set_untaken(member, backend)
        member.joined = True
        self._session_log.note(member, now, effects)
        self._note_change(member)
        self._requests.tasks.offer(backend, now, effects)
        return backend

    def take_work(self, member: Member, message: messages.Ready, slots: int, now: Now, effects: Effects) -> None:
        """READY of a SCALE0/1 backend: tasks may be pushed to it."""
        known = member.backend is not None
        backend = self._enter(member)
        backend.prefetch, backend.pushes, backend.returns = message.prefetch, bool(slots), message.returns
        self._register(member, slots_of(message, slots), slots, now, effects)
        if message.holds or not known:
            claims = {id_: attempt for id_, attempt in message.holds if attempt > 0 and id_ not in backend.held}
            self._requests.tasks.claim(backend, claims, now, effects)
        # After the claim: work in flight already occupies its slots.
        self._requests.feed(backend, None, now, effects)

    def check_memory(self, connection: Connection, services: Collection[str], each: int = SERVICE_BYTES) -> None:
        """Raise a refusal if the key of this connection has no memory left for these services."""
        member = connection.member
        status = 0 if member is None else member.status_bytes
        self.memory.check(connection.account, member, cost_of_services(services, each), status)

    def name_services(self, member: Member, services: Sequence[str]) -> None:
        """A frontend names the services that it uses."""
        names = tuple(sorted(set(services)))
        self.check_memory(member.connection, names, NAME_BYTES)
        self.memory.charge(member, cost_of_services(names, NAME_BYTES), member.status_bytes)
        member.services = names

    def set_status(self, member: Member, status: bytes) -> None:
        """A task node reports its status, in JSON. Raises a refusal if its key has no memory left for it."""
        self.memory.check(member.connection.account, member, member.service_bytes, len(status))
        self.memory.charge(member, member.service_bytes, len(status))
        member.status = status

    def check_offer(self, connection: Connection, services: Iterable[str], now: Now, effects: Effects) -> None:
        """Raise a refusal unless the key of this connection may offer all of these services."""
        if self._state.keys is not None:
            for service in services:
                reason = self._permission_check.why_not(connection, OFFER, service, now, effects)
                if reason:
                    raise Refusal(codes.NOT_ALLOWED, reason)

    def apply_permissions(self, now: Now, effects: Effects) -> None:
        """The permissions of keys may have changed: backends that may no longer offer a service are disconnected."""
        for member in list(self.by_name.values()):
            if member.backend is None:
                continue
            self._set_untaken(member, member.backend)
            try:
                if member.protocol != ZEROTASK:  # such a node takes tasks, and offers nothing to callers
                    self.check_offer(member.connection, member.services, now, effects)
            except Refusal as refusal:
                self.expel(member, refusal.code, refusal.message, now, effects)

    def _set_untaken(self, member: Member, backend: Backend) -> None:
        if self._state.keys is not None:
            permits, connection = self._permission_check.permits, member.connection
            backend.untaken = frozenset(name for name in member.services if not permits(connection, TAKE, name))

    def _enter(self, member: Member) -> Backend:
        if member.backend is None:
            member.backend = self._scheduler.enter(member.identity, member.connection)
        return member.backend

    def record_frontend(self, member: Member, now: Now, effects: Effects) -> None:
        """A frontend has negotiated: record it once."""
        if not member.joined and member.role != BACKEND:
            member.joined = True
            self._note_change(member)
            self._session_log.note(member, now, effects)

    def judge(self, member: Member, interval: float, patience: float, now: Now) -> None:
        """Enforce liveness for this member from now on."""
        if not member.judged:
            member.judged = True
            self.judged += 1
        if member.patience != patience:
            member.patience = patience
            self._arm(member, now.mono + patience)
        member.interval = interval

    def heartbeat(self, member: Member, now: Now) -> None:
        gap = now.mono - member.last_gap_start
        if gap > member.longest_gap:
            member.longest_gap = gap
        member.last_gap_start = now.mono
        member.heartbeats += 1

    def leave(self, member: Member, now: Now, effects: Effects) -> None:
        """Leave in order: its work is requeued at once."""
        if member.joined:
            self._session_log.end(member, ClientLeft, effects)
        self._remove(member, now, effects)

    def expel(self, member: Member, code: int, message: str, now: Now, effects: Effects) -> None:
        """Send DISCONNECTERROR and remove the member."""
        if member.connection.takes_pushes:
            effects.send(member.connection, ("DISCONNECTERROR", messages.DisconnectError(code=code, message=message)))
        self.leave(member, now, effects)

    def lose(self, member: Member, now: Now, effects: Effects) -> None:
        """The member is dead: it was silent for too long, or its connection is gone."""
        if member.joined:
            silent = now.mono - member.connection.last_received
            self._session_log.end(member, ClientLost, effects, last_received_wall=now.wall - silent)
        self._remove(member, now, effects)

    def hang_up(self, member: Member, now: Now) -> None:
        """Its connection ended, and it may be back on a new one: heartbeats decide, or else a short time."""
        member.closed = True
        if not member.judged:
            self._arm(member, now.mono + GONE_SECONDS)

    def suspend(self, member: Member, now: Now) -> None:
        """Give this backend no new work; it keeps its work until it returns or dies."""
        member.suspended = True
        self._note_change(member)
        if member.backend is not None:
            self._scheduler.change(member.backend, {}, 0, now.mono)

    def reconcile(self, member: Member, holds: Holds, now: Now, effects: Effects) -> None:
        """A backend is back on a new connection: work that it does not report is retried elsewhere."""
        member.suspended = False
        if member.backend is not None:
            self._requests.lose(member.backend, {id_ for id_, _ in holds}, now, effects)
            self._requests.tasks.lose(member.backend, dict(holds), now, effects)

    def _take_over(self, member: Member, newcomer: Connection, now: Now, effects: Effects) -> None:
        old = member.connection
        if old.takes_pushes:
            message = messages.DisconnectError(
                code=409, message=f"{member.identity} registered from another connection"
            )
            effects.send(old, ("DISCONNECTERROR", message))
        effects.close(old)
        old.member = None
        is_same_key = newcomer.public_key == old.public_key
        if is_same_key:
            self._requests.move(old, newcomer, now, effects)
        else:
            self._requests.origin_gone(old, now)
        self._connections.forget(old)
        if member.joined:
            self._session_log.end(member, ClientReplaced, effects)
        member.joined = member.move_sent = member.closed = False
        member.protocol = SCALE0
        member.connection = newcomer
        self.memory.charge(member, member.service_bytes, member.status_bytes)
        if not member.judged:
            self._arm(member, now.mono + self._state.limits.frontend_idle)
        member.old_since = None
        if member.backend is not None:
            if not is_same_key:
                # Another key has the identity now: it gets none of the work of the previous one.
                self.reconcile(member, (), now, effects)
            self.suspend(member, now)
            member.backend.peer = newcomer

    def _remove(self, member: Member, now: Now, effects: Effects) -> None:
        member.gone = True
        self._note_change(member)
        self.memory.release(member)
        self._state.timers.remove((self._check_silence, member), member.bucket)
        self.by_name.pop((member.role, member.identity), None)
        if member.judged:
            self.judged -= 1
        connection = member.connection
        connection.member = None
        if member.backend is not None:
            backend, member.backend = member.backend, None
            self._scheduler.leave(backend, now.mono)
            self._requests.lose(backend, (), now, effects)
            self._requests.tasks.lose(backend, {}, now, effects)
        self._requests.origin_gone(connection, now)
        effects.close(connection)

    def _arm(self, member: Member, when: float) -> None:
        timers = self._state.timers
        timers.remove((self._check_silence, member), member.bucket)
        member.bucket = timers.add((self._check_silence, member), when)

    def _check_silence(self, member: Member, now: Now, effects: Effects) -> None:
        """Check the member's silence: one check for each patience period, not one timer for each message."""
        if member.gone:
            return
        if member.closed and not member.judged:
            self.leave(member, now, effects)
            self._connections.forget_unless_bad(member.connection)
            return
        connection = member.connection
        due = connection.last_received + (member.patience if member.judged else self._state.limits.frontend_idle)
        if now.mono < due:
            member.doubted = None
            self._arm(member, due)
        elif member.judged and (member.doubted is None or now.mono - member.doubted > 2 * RECHECK_SECONDS):
            member.doubted = now.mono
            self._arm(member, now.mono + RECHECK_SECONDS)
        elif member.judged:
            if connection.takes_pushes and not member.foreign:
                # The client may only have been suspended; this is then the first message that it reads.
                message = messages.DisconnectError(
                    codes.HEARTBEATS_STOPPED, "no heartbeat was received within the liveness time"
                )
                effects.send(connection, ("DISCONNECTERROR", message))
            self.lose(member, now, effects)
            self._connections.forget_unless_bad(connection)
        elif connection.awaits or connection.waits:
            self._arm(member, now.mono + self._state.limits.frontend_idle)
        else:
            self.leave(member, now, effects)
            self._connections.forget_unless_bad(connection)

    def _sum_up(self, _: None, now: Now, effects: Effects) -> None:
        if not self._seen:
            self._seen = [member for member in self.by_name.values() if member.heartbeats]
        for member in self._seen[-SEEN_CHUNK:]:
            effects.record(
                ClientSeen(
                    identity=member.identity, heartbeats=member.heartbeats, longest_gap_seconds=member.longest_gap
                )
            )
            member.heartbeats, member.longest_gap = 0, 0.0
        del self._seen[-SEEN_CHUNK:]
        again = now.mono if self._seen else now.mono + SEEN_SECONDS
        self._state.timers.add((self._sum_up, None), again)


def slots_of(message: messages.Ready, slots: int) -> dict[str, int]:
    """The slots of each service in READY; a backend that names none shares the total between its services."""
    return {
        name: min(own, slots)
        for name, own in zip(message.services, message.service_slots or repeat(slots), strict=False)
    }
