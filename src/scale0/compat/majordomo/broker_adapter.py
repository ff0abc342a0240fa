"""The operations of a broker that Majordomo's handlers use. It contains no framing and no rule of either protocol."""

from __future__ import annotations

from collections.abc import Sequence

from scale0.broker.core.broker import Broker
from scale0.broker.core.connections import Connection
from scale0.broker.core.discovery import Discovery
from scale0.broker.core.members import MAJORDOMO, Member
from scale0.broker.core.permissions import CALL, DISCOVER, SUBMIT
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.kernel.limits import Limits
from scale0.kernel.names import is_reserved, made_for
from scale0.kernel.timers import Alarm, TimerWheel
from scale0.transport.core import messages
from scale0.transport.core.sockets import ACTIVE


class MajordomoAdapter:
    def __init__(self, broker: Broker, discovery: Discovery) -> None:
        self._broker = broker
        self._discovery = discovery

    @property
    def serving(self) -> bool:
        """Joining and disabled brokers do not answer: the peers then try another broker, or try again later."""
        return self._broker.state.state == ACTIVE

    @property
    def limits(self) -> Limits:
        return self._broker.state.limits

    @property
    def timers(self) -> TimerWheel[Alarm]:
        return self._broker.state.timers

    def may_ask(self, connection: Connection, now: Now) -> bool:
        """All protocols of one key share one rate limit."""
        return self._broker.may_ask(connection, now)

    def submit(
        self, connection: Connection, id_: str, service: str, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """Submits a REQUEST with `retry`: Majordomo requires idempotent workers, and its clients resend."""
        state = self._broker.state
        if is_reserved(service):
            self._discovery.answer(connection, messages.Request(service=service, id=id_), bodies, now, effects)
            return
        if state.draining or not self.may_call(connection, service, now, effects):
            return
        timeout = state.limits.request_timeout
        policy = state.policies.get(service)
        if policy is not None and policy.timeout is not None:
            timeout = min(policy.timeout, state.limits.max_request_timeout)
        self._broker.requests.submit(connection, id_, service, bodies, timeout, True, now, effects)

    def may_call(self, connection: Connection, service: str, now: Now, effects: Effects) -> bool:
        """True if the key of this client may call the service; a refusal is recorded."""
        return not self._broker.permission_check.why_not(connection, CALL, service, now, effects)

    def may_store(self, connection: Connection, service: str, now: Now, effects: Effects) -> bool:
        """True if the key may call the service and submit its tasks, as a stored request is; a refusal is recorded."""
        may_call = self.may_call(connection, service, now, effects)
        return may_call and not self._broker.permission_check.why_not(connection, SUBMIT, service, now, effects)

    def offered(self, connection: Connection, service: str) -> bool:
        """True if a backend of any protocol offers the service, and the key of this client may discover it."""
        found = self._broker.scheduler.offered(service)
        return found and self._broker.permission_check.permits(connection, DISCOVER, service)

    def register(self, connection: Connection, identity: str, service: str, now: Now, effects: Effects) -> None:
        """Registers a backend with one slot and one service."""
        own = self._broker.state.config.services
        if own != "all" and service not in own:
            raise Refusal(codes.NOT_ALLOWED, "this broker does not serve that service")
        if connection.member is not None and not connection.member.foreign:
            raise Refusal(codes.IN_USE, f"this connection is {connection.member.identity}, which speaks SCALE0/1")
        members = self._broker.members
        members.check_offer(connection, (service,), now, effects)
        member = members.name(connection, made_for(connection.sender, identity), now, effects)
        member.protocol = MAJORDOMO
        if member.suspended:
            # Majordomo cannot report what a worker still holds.
            members.reconcile(member, (), now, effects)
        members.join(member, {service: 1}, 1, now, effects)

    def is_registered(self, connection: Connection) -> bool:
        """True while it is a reachable worker."""
        member = worker_of(connection)
        return member is not None and not member.suspended

    def remove(self, connection: Connection, now: Now, effects: Effects) -> None:
        """Removes a worker; its work is requeued at once."""
        member = worker_of(connection)
        if member is not None:
            self._broker.members.leave(member, now, effects)

    def judge(self, connection: Connection, interval: float, patience: float, now: Now) -> None:
        """Applies the heartbeat timeout to a worker from now on."""
        member = worker_of(connection)
        if member is not None:
            self._broker.members.judge(member, interval, patience, now)

    def heartbeat(self, connection: Connection, now: Now) -> None:
        member = worker_of(connection)
        if member is not None:
            self._broker.members.heartbeat(member, now)

    def holds(self, connection: Connection, id_: str) -> bool:
        """True while this worker has the request."""
        member = worker_of(connection)
        return member is not None and member.backend is not None and id_ in member.backend.held

    def partial(self, connection: Connection, id_: str, bodies: Sequence[bytes], now: Now, effects: Effects) -> None:
        self._broker.requests.partial(connection, id_, bodies, now, effects)

    def reply(self, connection: Connection, id_: str, bodies: Sequence[bytes], now: Now, effects: Effects) -> None:
        self._broker.requests.reply(connection, id_, bodies, now, effects)

    def reject(self, connection: Connection, code: int, message: str, now: Now, effects: Effects) -> None:
        self._broker.reject(connection, code, message, now, effects)


def worker_of(connection: Connection) -> Member | None:
    """Returns the member of this connection if it registered by Majordomo."""
    member = connection.member
    return member if member is not None and member.protocol == MAJORDOMO else None
