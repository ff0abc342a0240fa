"""The desk at which a broker serves Majordomo's peers.

Lives here: the words of `compat.majordomo.broker_interface.Desk`, each said in the broker's own. Never here: frames, or
a rule of either protocol. It stands in `io/` because the two rooms never import each other; it does no I/O itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from scale0.broker.core.broker import Broker
from scale0.broker.core.connections import Connection
from scale0.broker.core.discovery import Discovery
from scale0.broker.core.members import MAJORDOMO, Member
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
    """One broker's desk."""

    __slots__ = ("_broker", "_discovery")

    def __init__(self, broker: Broker, discovery: Discovery) -> None:
        self._broker = broker
        self._discovery = discovery

    @property
    def serving(self) -> bool:
        """Joining and disabled brokers say nothing: these peers then try elsewhere, or later."""
        return self._broker.state.state == ACTIVE

    @property
    def limits(self) -> Limits:
        """As they are now."""
        return self._broker.state.limits

    @property
    def timers(self) -> TimerWheel[Alarm]:
        """The broker's own."""
        return self._broker.state.timers

    def may_ask(self, connection: Connection, now: Now) -> bool:
        """The rate of one key is one, whatever it speaks."""
        return self._broker.may_ask(connection, now)

    def submit(
        self, connection: Connection, id_: str, service: str, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """As a REQUEST with `retry`: Majordomo's workers are idempotent by its standard, and its clients send again."""
        state = self._broker.state
        if is_reserved(service):
            self._discovery.answer(connection, messages.Request(service=service, id=id_), bodies, now, effects)
            return
        if state.draining:
            return
        timeout = state.limits.request_timeout
        policy = state.policies.get(service)
        if policy is not None and policy.timeout is not None:
            timeout = policy.timeout
        self._broker.requests.submit(connection, id_, service, bodies, timeout, True, now, effects)

    def offered(self, service: str) -> bool:
        """True if a backend offers it, whatever it speaks."""
        return self._broker.scheduler.offered(service)

    def enlist(self, connection: Connection, identity: str, service: str, now: Now, effects: Effects) -> None:
        """A backend with one slot and one service."""
        own = self._broker.state.config.services
        if own != "all" and service not in own:
            raise Refusal(codes.NOT_ALLOWED, "this broker does not serve that service")
        if connection.member is not None and not connection.member.foreign:
            raise Refusal(codes.IN_USE, f"this connection is {connection.member.identity}, which speaks SCALE0/1")
        members = self._broker.members
        member = members.name(connection, made_for(connection.user_id, identity), now, effects)
        member.protocol = MAJORDOMO
        if member.suspended:
            # Majordomo has no word for what a worker still holds.
            members.reconcile(member, (), now, effects)
        members.join(member, [service], 1, now, effects)

    def enlisted(self, connection: Connection) -> bool:
        """True while it is a worker that can be reached."""
        member = worker_of(connection)
        return member is not None and not member.suspended

    def strike(self, connection: Connection, now: Now, effects: Effects) -> None:
        """It leaves; its work goes back at once."""
        member = worker_of(connection)
        if member is not None:
            self._broker.members.leave(member, now, effects)

    def judge(self, connection: Connection, interval: float, patience: float, now: Now) -> None:
        """Silence kills it from now on."""
        member = worker_of(connection)
        if member is not None:
            self._broker.members.judge(member, interval, patience, now)

    def heartbeat(self, connection: Connection, now: Now) -> None:
        """For the minute's summary."""
        member = worker_of(connection)
        if member is not None:
            self._broker.members.heartbeat(member, now)

    def holds(self, connection: Connection, id_: str) -> bool:
        """True while the request of this id is with this worker."""
        member = worker_of(connection)
        return member is not None and member.backend is not None and id_ in member.backend.held

    def partial(self, connection: Connection, id_: str, bodies: Sequence[bytes], now: Now, effects: Effects) -> None:
        """A part of an answer."""
        self._broker.requests.partial(connection, id_, bodies, now, effects)

    def reply(self, connection: Connection, id_: str, bodies: Sequence[bytes], now: Now, effects: Effects) -> None:
        """The last of an answer."""
        self._broker.requests.reply(connection, id_, bodies, now, effects)

    def blame(self, connection: Connection, code: int, message: str, now: Now, effects: Effects) -> None:
        """Count bad input."""
        self._broker.blame(connection, code, message, now, effects)


def worker_of(connection: Connection) -> Member | None:
    """The member of this connection, if it came by Majordomo."""
    member = connection.member
    return member if member is not None and member.protocol == MAJORDOMO else None
