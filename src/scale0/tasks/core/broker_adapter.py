"""What tasks need from their broker beyond its parts: membership of task nodes, negotiation, and validation of
names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scale0.broker.core.broker import Broker
from scale0.broker.core.connections import Connection
from scale0.broker.core.members import ZEROTASK, Members
from scale0.broker.core.scheduler import Backend
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.kernel.names import is_reserved, is_service_name
from scale0.transport.core import messages
from scale0.transport.core.codec import depth_within
from scale0.transport.core.sockets import BACKEND


class BrokerAdapter:
    __slots__ = ("_broker",)

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def _members(self) -> Members:
        return self._broker.members

    def blame(self, line: Connection, code: int, message: str, now: Now, effects: Effects) -> None:
        self._broker.blame(line, code, message, now, effects)

    def force(self, line: Connection, now: Now, effects: Effects) -> None:
        """Requires the client to negotiate again. It may have many results to report, so this does not count as bad
        input."""
        self._broker.state.count("results_unknown")
        if line.takes_pushes:
            said = messages.ForceNegotiate(reason="I do not know your state: start again with CHECKCONFIG")
            effects.send(line, ("FORCENEGOTIATE", said))

    def renegotiate(self, line: Connection, now: Now, effects: Effects) -> None:
        """Requires the client to negotiate again, without any fault of its own."""
        if line.member is not None:
            said = messages.ForceNegotiate(reason="there is room on the disk again: say READY and your results")
            effects.send(line, ("FORCENEGOTIATE", said))

    def backend_of(self, line: Connection) -> Backend | None:
        return line.member.backend if line.member is not None else None

    def node(self, node_id: str) -> tuple[Backend, Connection] | None:
        member = self._members.by_name.get((BACKEND, node_id))
        if member is None or member.backend is None:
            return None
        return member.backend, member.connection

    def enlist(self, line: Connection, node_id: str, methods: Sequence[str], now: Now, effects: Effects) -> Backend:
        """Registers a node as a backend without slots, because it pulls its work."""
        own = self._broker.state.config.services
        if own != "all" and not set(methods) <= set(own):
            raise Refusal(codes.NOT_ALLOWED, "this broker does not serve all of these methods")
        known = line.member
        if known is not None and known.backend is not None and known.backend.pushes:
            # A native backend that also pulls tasks keeps its membership.
            if known.identity != node_id:
                raise Refusal(codes.IN_USE, f"this connection is {known.identity}")
            return known.backend
        member = self._members.name(line, node_id, now, effects)
        member.protocol = ZEROTASK
        if member.suspended:
            self._members.reconcile(member, (), now, effects)
        if member.backend is not None:
            member.backend.pushes = False
        backend = self._members.join(member, list(methods), 0, now, effects)
        interval = self._broker.state.interval
        self._members.judge(member, interval, interval * self._broker.state.liveness, now)
        return backend

    def rebind(self, line: Connection, node_id: str, now: Now, effects: Effects) -> None:
        """Moves a known node to a new connection; its leases and methods stay."""
        member = self._members.by_name[BACKEND, node_id]
        services, slots = member.services, member.slots
        self._members.name(line, node_id, now, effects)
        member.suspended, member.protocol = False, ZEROTASK
        self._members.join(member, list(services), slots, now, effects)

    def strike(self, line: Connection, now: Now, effects: Effects) -> None:
        if line.member is not None:
            self._members.leave(line.member, now, effects)

    def heard(self, line: Connection) -> float:
        """Returns when the connection last sent a message; -inf if the broker no longer knows it."""
        known = self._broker.connections.find(line.door, line.routing_id)
        return line.heard if known is line else float("-inf")

    def serve(self, backend: Backend, now: Now, effects: Effects) -> None:
        """Dispatches queued requests, which take precedence over tasks."""
        self._broker.requests.serve(backend, now, effects)

    def heartbeat(self, line: Connection, now: Now) -> None:
        if line.member is not None:
            self._members.heartbeat(line.member, now)

    def say_status(self, line: Connection, status: Any) -> None:
        if line.member is not None:
            line.member.status = status

    def is_shallow(self, data: bytes) -> bool:
        return depth_within(data, self._broker.state.limits.max_json_depth)

    def is_service(self, name: str) -> bool:
        return is_service_name(name, self._broker.state.limits.max_service_bytes) and not is_reserved(name)
