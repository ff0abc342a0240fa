"""Negotiation: CHECKCONFIG, READY, HEARTBEAT, NEEDBROKER and DISCONNECT (PROTOCOL 2.1).

Invariant: no member is in a queue without a configuration that this broker knows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from scale0.broker.cluster.clock_skew import ClockSkew
from scale0.broker.cluster.failover import Failover, serves
from scale0.broker.cluster.rebalancing import Rebalancing
from scale0.broker.core.config_document import ConfigDocument
from scale0.broker.core.connections import Connection, Connections
from scale0.broker.core.members import Member, Members, slots_of
from scale0.broker.core.rate_limits import RateLimits
from scale0.broker.core.scheduler import changes
from scale0.broker.core.state import BrokerState
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.kernel.limits import MAX_HEARTBEAT_INTERVAL
from scale0.kernel.names import is_identity, is_reserved, is_service_name, made_for
from scale0.transport.core import messages
from scale0.transport.core.address_book import SERVER_KEY

CONTROL_BYTES: Final = 65_536
"""So many bytes of the body of READY count as another control message."""
OVERDUE_LIMIT: Final = 3
"""How often a client with an old configuration is told to negotiate before it is disconnected."""
UNPENALIZED_CODES: Final = frozenset({codes.NOT_SERVING, codes.TOO_MANY})
"""Refusals that do not count as bad input."""
INTERVAL_HYSTERESIS: Final = 1.25
"""The interval is raised only when it is too short by this factor, not with every new client."""


class Negotiation:
    def __init__(
        self,
        state: BrokerState,
        connections: Connections,
        members: Members,
        documents: ConfigDocument,
        skew: ClockSkew,
        rate_limits: RateLimits,
        failover: Failover,
        rebalancing: Rebalancing,
    ) -> None:
        self._state = state
        self._connections = connections
        self._members = members
        self._documents = documents
        self._clock_skew = skew
        self._rate_limits = rate_limits
        self._failover = failover
        self._rebalancing = rebalancing

    def check_config(
        self, connection: Connection, message: messages.CheckConfig, _: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """CHECKCONFIG: a client's first message."""
        if message.services:
            self._check_names(message.services)
            # A client that names the services of a Helen gets her part of the document.
            self._members.check_offer(connection, message.services, now, effects)
        member = self._named(connection, message.identity, now, effects)
        connection.batch = message.batch
        connection.request_batches = message.request_batches and connection.takes_pushes
        if self._state.keys is not None and self._state.keys.server[1] and connection.takes_pushes:
            # CONFIG waits for a commit: a client that ends before it must learn our new key, too.
            key = self._state.endpoints[SERVER_KEY]
            beat = {"time": now.wall, "config_version": self._documents.version, "server_key": key}
            effects.send(connection, ("HEARTBEAT", beat))
        self._rebalancing.negotiated(member, now)
        if message.services is not None and member.backend is None:
            self._members.name_services(member, message.services)
        self._documents.answer(member, message, now, effects)
        self._members.record_frontend(member, now, effects)

    def ready(
        self, connection: Connection, message: messages.Ready, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """READY: add the member to the queues, or replace its queues."""
        member = connection.member
        if member is None or message.config_version is None or message.config_version != member.config_version:
            self.force(
                connection, "CHECKCONFIG must come first: the configuration of this client is not known", now, effects
            )
            return
        if message.identity is not None:
            self._named(connection, message.identity, now, effects)
        if self._state.redirects_to_active and member.backend is None:
            self._pass_on(member, message.services, now, effects)
            return
        elsewhere = connection.takes_pushes and not serves(self._state.config.services, message.services)
        if elsewhere and self._failover.send_on(connection, message.services, self._state.interval, effects):
            self._members.leave(member, now, effects)
            return
        slots = message.slots if connection.takes_pushes else 0
        changed = changes(member.backend, slots_of(message, slots), slots)
        if changed:
            self._rate_limits.check_changes(connection.account, changed, now)
            self._check_names(message.services)
            self._members.check_memory(connection, message.services)
        if elsewhere or not serves(self._state.config.services, message.services):
            raise Refusal(codes.NOT_ALLOWED, "no reachable broker serves all of these services")
        if changed:
            self._members.check_offer(connection, message.services, now, effects)
        self._check_ready(message)
        if bodies:
            if not self._rate_limits.allows_control(connection, now, effects, len(bodies[0]) // CONTROL_BYTES):
                return
            message = msgspec.structs.replace(message, holds=messages.read_holds(bodies[0]))
        if member.suspended:
            self._members.reconcile(member, message.holds, now, effects)
        interval = self._interval(message.heartbeat_interval)
        member.prefetch = message.prefetch
        self._members.judge(member, interval, interval * self._state.liveness, now)
        self._ready_ok(member, now, effects)
        self._members.take_work(member, message, slots, now, effects)
        if message.time is not None:
            self._clock_skew.read(member, message.time, now, effects)

    def _pass_on(self, member: Member, services: Sequence[str], now: Now, effects: Effects) -> None:
        """This broker is a standby: send clients that want to work to the active broker."""
        sent = member.connection.takes_pushes
        if not sent or not self._failover.send_on(member.connection, services, self._state.interval, effects):
            active = self._state.config.standby_for
            raise Refusal(codes.NOT_SERVING, f"this broker is the standby of {active}, whose address is not known now")
        self._members.leave(member, now, effects)

    def heartbeat(
        self, connection: Connection, message: messages.Heartbeat, _: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """HEARTBEAT: the reply is a HEARTBEAT."""
        member = connection.member
        if member is None:
            self.force(connection, "I do not know you: start again with CHECKCONFIG", now, effects)
            return
        self._members.heartbeat(member, now)
        if not member.judged:
            interval = self._interval(None)
            self._members.judge(member, interval, interval * self._state.liveness, now)
        effects.send(
            connection,
            ("HEARTBEAT", {"time": now.wall, "config_version": self._documents.version}),
        )
        if message.config_version is not None and message.config_version < self._documents.version:
            self._outdated(member, now, effects)
        else:
            member.old_since, member.overdue = None, 0
            if message.config_version is not None:
                member.config_version = message.config_version
        if member.backend is not None and connection.takes_pushes:
            self._stretch(member, now, effects)
        if message.time is not None:
            self._clock_skew.read(member, message.time, now, effects)

    def disconnect(
        self, connection: Connection, _message: messages.Disconnect, _: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        if connection.member is not None:
            self._members.leave(connection.member, now, effects)
        self._connections.forget_unless_bad(connection)

    def need_broker(
        self, connection: Connection, message: messages.NeedBroker, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """NEEDBROKER: the client's own broker does not answer."""
        if message.identity is not None and connection.member is not None:
            self._named(connection, message.identity, now, effects)
        self._rebalancing.prefers(connection, message.preferred_broker or "", now)
        self._failover.need_broker(connection, message, bodies, now, effects)

    def force(self, connection: Connection, reason: str, now: Now, effects: Effects) -> None:
        """Send FORCENEGOTIATE. A client that needs it repeatedly is counted as bad input."""
        effects.send(connection, ("FORCENEGOTIATE", messages.ForceNegotiate(reason=reason)))
        self._rate_limits.reject(connection, codes.MALFORMED, "negotiates again and again", now, effects)

    def refused(self, connection: Connection, refusal: Refusal, now: Now, effects: Effects) -> None:
        """DISCONNECTERROR was sent: end the registration, and count bad input."""
        if connection.member is not None:
            self._members.leave(connection.member, now, effects)
        if refusal.code not in UNPENALIZED_CODES:
            self._rate_limits.reject(connection, refusal.code, refusal.message, now, effects)

    def _named(self, connection: Connection, identity: str | None, now: Now, effects: Effects) -> Member:
        if identity is None:
            if connection.member is not None:
                return connection.member
            identity = made_for(connection.sender, f"{connection.socket}-{self._state.rng.getrandbits(48):012x}")
        elif not is_identity(identity):
            raise Refusal(codes.MALFORMED, "an identity is 1 to 128 characters of A-Z a-z 0-9 . _ : -")
        return self._members.name(connection, identity, now, effects)

    def _check_names(self, services: Sequence[str]) -> None:
        limits = self._state.limits
        if len(services) > limits.max_services:
            raise Refusal(codes.TOO_BIG, f"a backend offers at most {limits.max_services} services")
        for name in services:
            if not is_service_name(name, limits.max_service_bytes):
                raise Refusal(codes.MALFORMED, f"a service's name is 1 to {limits.max_service_bytes} printable bytes")
            if is_reserved(name):
                raise Refusal(codes.NOT_ALLOWED, f"{name} is a reserved name")

    def _check_ready(self, message: messages.Ready) -> None:
        asked = message.heartbeat_interval
        if asked is not None and not 0 < asked <= MAX_HEARTBEAT_INTERVAL:
            raise Refusal(codes.MALFORMED, f"heartbeat_interval is above 0 and at most {MAX_HEARTBEAT_INTERVAL:g}")
        most = self._state.limits.max_slots
        if not 1 <= message.slots <= most or not 0 <= message.prefetch <= most:
            raise Refusal(codes.MALFORMED, f"slots are 1 to {most}, prefetch is 0 to {most}")
        each = message.service_slots
        if each and (len(each) != len(message.services) or min(each) < 1 or max(each) > most):
            raise Refusal(codes.MALFORMED, f"service_slots has a number from 1 to {most} for each of the services")

    def _interval(self, asked: float | None) -> float:
        """A client may request a longer interval; a large number of clients also raises it."""
        shared = min(self._members.judged / self._state.limits.max_heartbeats_per_second, MAX_HEARTBEAT_INTERVAL)
        wanted = max(self._state.interval, asked or 0.0)
        return wanted if shared <= wanted else math.ceil(shared * 10) / 10

    def _stretch(self, member: Member, now: Now, effects: Effects) -> None:
        interval = self._interval(member.interval)
        if interval > member.interval * INTERVAL_HYSTERESIS:
            self._members.judge(member, interval, interval * self._state.liveness, now)
            self._ready_ok(member, now, effects)

    def _ready_ok(self, member: Member, now: Now, effects: Effects) -> None:
        message = messages.ReadyOk(
            identity=member.identity,
            heartbeat_interval=member.interval,
            time=now.wall,
            config_version=member.config_version or 0,
        )
        effects.send(member.connection, ("READYOK", message))

    def _outdated(self, member: Member, now: Now, effects: Effects) -> None:
        """The member's configuration is old: send it again, then ask for negotiation, then disconnect."""
        if not member.connection.takes_pushes:
            return
        if member.old_since is None:
            member.old_since = now.mono
        if now.mono - member.old_since < 2 * member.interval:
            self._documents.give(member, effects)
            return
        member.overdue += 1
        if member.overdue > OVERDUE_LIMIT:
            self._members.expel(member, codes.CONFIG_TOO_OLD, "your configuration stays too old", now, effects)
        else:
            member.old_since = now.mono
            effects.send(
                member.connection, ("FORCENEGOTIATE", messages.ForceNegotiate(reason="your configuration is too old"))
            )
