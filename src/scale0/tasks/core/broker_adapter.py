"""What tasks need from their broker beyond its parts: membership of task nodes, negotiation, and validation of
names."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from scale0.broker.core.audit_limit import AuditLimit
from scale0.broker.core.connections import Connection, Connections
from scale0.broker.core.members import ZEROTASK, Members
from scale0.broker.core.permission_check import PermissionCheck
from scale0.broker.core.rate_limits import RateLimits
from scale0.broker.core.requests import Requests
from scale0.broker.core.scheduler import Backend, changes
from scale0.broker.core.state import BrokerState
from scale0.history.events.columns import clip_int
from scale0.history.events.tasks import TaskRefused
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.kernel.names import is_reserved, is_service_name
from scale0.transport.core import messages
from scale0.transport.core.codec import depth_within
from scale0.transport.core.sockets import BACKEND


def results_refused(user: str, more: int, _subjects: Sequence[str]) -> TaskRefused:
    """For refused results of a key, or without keys of a node, that are recorded as a number."""
    return TaskRefused("", user, 0, 0, more)


class BrokerAdapter:
    def __init__(
        self,
        state: BrokerState,
        connections: Connections,
        members: Members,
        requests: Requests,
        rate_limits: RateLimits,
        permission_check: PermissionCheck,
    ) -> None:
        self._state = state
        self._connections = connections
        self._members = members
        self._requests = requests
        self.reject = rate_limits.reject
        self.allows_request = rate_limits.allows_request
        self._check_changes = rate_limits.check_changes
        self.why_not = permission_check.why_not
        self._refused_results = AuditLimit(state, results_refused)

    def refuse_result(
        self,
        connection: Connection,
        node: str,
        id_: str,
        attempt: int | None,
        code: int,
        now: Now,
        effects: Effects,
    ) -> None:
        """Records a refused result: the first ones of a key by themselves, a flood as a number."""
        event = TaskRefused(id_[:128], node, clip_int(attempt or 0), code)
        self._refused_results.record(connection.user_id or node, event, now, effects)

    def force(self, connection: Connection, now: Now, effects: Effects) -> None:
        """Requires the client to negotiate again. It may have many results to report, so this does not count as bad
        input."""
        self._state.count("results_unknown")
        if connection.takes_pushes:
            message = messages.ForceNegotiate(
                reason="the state of this client is not known: negotiate again with CHECKCONFIG"
            )
            effects.send(connection, ("FORCENEGOTIATE", message))

    def renegotiate(self, connection: Connection, now: Now, effects: Effects) -> None:
        """Requires the client to negotiate again, without any fault of its own."""
        if connection.member is not None:
            message = messages.ForceNegotiate(reason="results can be stored again: send READY, then the results")
            effects.send(connection, ("FORCENEGOTIATE", message))

    def backend_of(self, connection: Connection) -> Backend | None:
        return connection.member.backend if connection.member is not None else None

    def node(self, node_id: str) -> tuple[Backend, Connection] | None:
        member = self._members.by_name.get((BACKEND, node_id))
        if member is None or member.backend is None:
            return None
        return member.backend, member.connection

    def register(
        self, connection: Connection, node_id: str, methods: Sequence[str], now: Now, effects: Effects
    ) -> Backend:
        """Registers a node as a backend without slots, because it pulls its work."""
        own = self._state.config.services
        if own != "all" and not set(methods) <= set(own):
            raise Refusal(codes.NOT_ALLOWED, "this broker does not serve all of these methods")
        known = connection.member
        if known is not None and known.backend is not None and known.backend.pushes:
            # A native backend that also pulls tasks keeps its membership.
            if known.identity != node_id:
                raise Refusal(codes.IN_USE, f"this connection is {known.identity}")
            return known.backend
        member = self._members.name(connection, node_id, now, effects)
        member.protocol = ZEROTASK
        if member.suspended:
            self._members.reconcile(member, (), now, effects)
        if member.backend is not None:
            member.backend.pushes = False
        backend = self._members.join(member, dict.fromkeys(methods, 0), 0, now, effects)
        interval = self._state.interval
        self._members.judge(member, interval, interval * self._state.liveness, now)
        return backend

    def check_changes(self, connection: Connection, methods: Collection[str], now: Now) -> None:
        """Raises a refusal if the key of this node changes too many services, or has no memory left for them."""
        backend = None if connection.member is None else connection.member.backend
        if backend is None or not backend.pushes:
            changed = changes(backend, dict.fromkeys(methods, 0), 0)
            if changed:
                self._check_changes(connection.account, changed, now)
                self._members.check_memory(connection, methods)

    def rebind(self, connection: Connection, node_id: str, now: Now, effects: Effects) -> None:
        """Moves a known node to a new connection; its leases and methods stay."""
        member = self._members.by_name[BACKEND, node_id]
        services, slots = member.services, member.slots
        self._members.name(connection, node_id, now, effects)
        member.suspended, member.protocol = False, ZEROTASK
        self._members.join(member, dict.fromkeys(services, slots), slots, now, effects)

    def remove(self, connection: Connection, now: Now, effects: Effects) -> None:
        if connection.member is not None:
            self._members.leave(connection.member, now, effects)

    def last_received(self, connection: Connection) -> float:
        """Returns when the connection last sent a message; -inf if the broker no longer knows it."""
        known = self._connections.find(connection.socket, connection.routing_id)
        return connection.last_received if known is connection else float("-inf")

    def serve(self, backend: Backend, services: Collection[str], now: Now, effects: Effects) -> None:
        """Dispatches queued requests of these services, which take precedence over tasks."""
        self._requests.serve(backend, services, now, effects)

    def heartbeat(self, connection: Connection, now: Now) -> None:
        if connection.member is not None:
            self._members.heartbeat(connection.member, now)

    def set_status(self, connection: Connection, status: bytes) -> None:
        """The status of a node, in JSON. Raises a refusal if its key has no memory left for it."""
        if connection.member is not None:
            self._members.set_status(connection.member, status)

    def is_shallow(self, data: bytes, around: int = 0) -> bool:
        """True for JSON that nests at most `max_json_depth` deep; `around`: levels that do not count."""
        return depth_within(data, self._state.limits.max_json_depth + around)

    def is_service(self, name: str) -> bool:
        return is_service_name(name, self._state.limits.max_service_bytes) and not is_reserved(name)
