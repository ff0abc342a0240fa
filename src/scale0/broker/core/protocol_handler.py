"""`SCALE0/1` on the client sockets: decode frames, dispatch commands, and pack messages.

Invariant: only commands that the table of `dispatch` allows on that socket, in that state, are executed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from scale0.broker.admin.commands import AdminCommands
from scale0.broker.cluster.catalog_replication import CatalogReplication
from scale0.broker.cluster.config_replication import ConfigReplication
from scale0.broker.cluster.forwarding import Forwarding
from scale0.broker.cluster.peers import Peers
from scale0.broker.cluster.rebalancing import Rebalancing
from scale0.broker.cluster.standby import Standby
from scale0.broker.core.connections import Connection
from scale0.broker.core.discovery import Discovery
from scale0.broker.core.enrolment import Enrolment, no_token
from scale0.broker.core.negotiation import Negotiation
from scale0.broker.core.rate_limits import RateLimits
from scale0.broker.core.requests import Requests
from scale0.broker.core.state import BrokerState
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message
from scale0.kernel.errors import Refusal
from scale0.kernel.names import is_reserved, is_service_name
from scale0.transport.core import codec as wire
from scale0.transport.core import messages as options
from scale0.transport.core.command_table import COMMANDS, RULES
from scale0.transport.core.sockets import ACTIVE, CLIENT_SOCKETS, DISABLED, PEER_SOCKETS

DOORS: Final = (*CLIENT_SOCKETS, *PEER_SOCKETS)
Act = Callable[[Connection, Any, Sequence[bytes], Now, Effects], None]


class ClusterParts(NamedTuple):
    peers: Peers
    spread: ConfigReplication
    tables: CatalogReplication
    forwarding: Forwarding
    rebalancing: Rebalancing
    pair: Standby


class Scale0Handler:
    __slots__ = (
        "_acts",
        "_codecs",
        "_discovery",
        "_hot",
        "_negotiation",
        "_rate_limits",
        "_rebalancing",
        "_requests",
        "_state",
        "_states",
        "enrolment",
        "tasks_done",
        "tasks_status",
    )

    def __init__(
        self,
        state: BrokerState,
        requests: Requests,
        negotiation: Negotiation,
        discovery: Discovery,
        management: AdminCommands,
        blame: RateLimits,
        cluster: ClusterParts,
    ) -> None:
        self._state = state
        self._rate_limits = blame
        self._requests = requests
        self.tasks_status: Act = lambda *_: None
        self.tasks_done: Act = lambda *_: None
        """Called with the reports of backends about tasks; the composition root sets it."""
        self._negotiation = negotiation
        self._rebalancing = cluster.rebalancing
        self._discovery = discovery
        self.enrolment = Enrolment(state)
        clients, brokers = self._client_acts(negotiation, management), self._broker_acts(cluster, management)
        self._acts = {
            door: {
                rule.command: (brokers if door in PEER_SOCKETS else clients)[rule.command]
                for rule in RULES
                if door in rule.sockets
            }
            for door in DOORS
        }
        self._states = {door: {rule.command: rule.states for rule in RULES if door in rule.sockets} for door in DOORS}
        self._codecs = {
            door: wire.Codec(
                {rule.command: rule.schema for rule in RULES if door in rule.sockets},
                {rule.command for rule in RULES if rule.hot},
                COMMANDS,
                state.limits,
            )
            for door in DOORS
        }
        self._hot = {
            door: {kind: self._acts[door][command] for kind, command in codec.commands.items()}
            for door, codec in self._codecs.items()
        }

    def _client_acts(self, negotiation: Negotiation, management: AdminCommands) -> Mapping[str, Act]:
        return {
            "CHECKCONFIG": self._within_reason(negotiation.check_config),
            "READY": self._within_reason(negotiation.ready),
            "HEARTBEAT": self._within_reason(negotiation.heartbeat),
            "NEEDBROKER": self._within_reason(negotiation.need_broker),
            "DISCONNECT": negotiation.disconnect,
            "REQUEST": self._request,
            "PARTIAL": self._partial,
            "REPLY": self._reply,
            "ERROR": self._error,
            "TASKSTATUS": self._task_status,
            "TASKSDONE": self._tasks_done,
            "MANAGEMENTREQ": management.receive,
            "ENROL": no_token,
        }

    def _broker_acts(self, cluster: ClusterParts, management: AdminCommands) -> Mapping[str, Act]:
        peers, spread, tables, forwarding, _, _ = cluster
        return {
            "HELLO": self._within_reason(peers.hello),
            "HEARTBEAT": self._within_reason(peers.heartbeat),
            "FORCENEGOTIATE": self._within_reason(peers.force),
            "DISCONNECTERROR": peers.refused,
            "CHECKCONFIG": self._within_reason(spread.check_config),
            "CONFIG": self._within_reason(self._after_hello(spread.config)),
            "CONFIGACK": spread.acknowledged,
            "TABLE": self._after_hello(tables.table),
            "TABLEREQ": self._within_reason(self._after_hello(tables.table_req)),
            "FORWARD": self._after_hello(forwarding.forward),
            "PARTIAL": self._partial,
            "REPLY": self._reply,
            "ERROR": self._error,
            "MANAGEMENTREQ": management.receive,
            "ENROL": no_token,
        }

    def receive(self, connection: Connection, frames: list[bytes], now: Now, effects: Effects) -> None:
        state, states, acts = self._state, self._states[connection.door], self._acts[connection.door]
        codec = self._codecs[connection.door]
        if state.state == ACTIVE and not connection.stale:
            typed = codec.decode_hot(frames)
            if typed is not None:
                self._receive_hot(connection, typed, self._hot[connection.door], now, effects)
                return
        account = connection.account
        for decoded in codec.decode(frames):
            if account.banned_until is not None:
                return
            if isinstance(decoded, Refusal):
                self._refuse(connection, decoded, now, effects)
                continue
            command, said, bodies = decoded
            if state.state not in states[command]:
                self._not_serving(connection, command, said, effects)
                continue
            if connection.stale:
                self._renegotiate(connection, command, effects)
            try:
                acts[command](connection, said, bodies, now, effects)
            except Refusal as refusal:
                self._refuse(connection, refusal, now, effects)

    def receive_guest(self, connection: Connection, frames: list[bytes], now: Now, effects: Effects) -> None:
        """A token's key may send ENROL and nothing else (PROTOCOL 11)."""
        account = connection.account
        if frames[0] != wire.MAGIC:
            self._rate_limits.blame(connection, codes.NOT_ALLOWED, "a token is for ENROL only", now, effects)
            return
        connection.handler = self
        for decoded in self._codecs[connection.door].decode(frames):
            if account.banned_until is not None:
                return
            try:
                if isinstance(decoded, Refusal):
                    raise decoded
                command, said, _ = decoded
                if command != "ENROL":
                    raise Refusal(codes.NOT_ALLOWED, "the key of a token may say ENROL, and nothing else")
                if self._state.state == DISABLED:
                    return
                self.enrolment.enrol(connection, said, effects)
            except Refusal as refusal:
                self._refuse(connection, refusal, now, effects)

    def _receive_hot(
        self, connection: Connection, messages: list[Any], acts: Mapping[type, Act], now: Now, effects: Effects
    ) -> None:
        """Handle the hot commands of one BATCH. None of them changes the broker's state, so it is checked once."""
        account = connection.account
        for message in messages:
            if account.banned_until is not None:
                return
            body = message.body
            try:
                acts[type(message)](connection, message.options, () if body is None else (body,), now, effects)
            except Refusal as refusal:
                self._refuse(connection, refusal, now, effects)

    def pack(self, connection: Connection, messages: Sequence[Message]) -> list[list[bytes]]:
        """Pack as one BATCH for peers that accept it, or else one by one."""
        if connection.batch:
            limits = self._state.limits
            if list not in map(type, messages):
                return wire.encode_batch(messages, limits.max_batch_messages, limits.max_message_bytes)
            packed: list[list[bytes]] = []
            for ready, group in itertools.groupby(messages, lambda message: isinstance(message, list)):
                if ready:
                    packed.extend(map(wire.encode, group))
                else:
                    some = list(group)
                    packed.extend(wire.encode_batch(some, limits.max_batch_messages, limits.max_message_bytes))
            return packed
        return [wire.encode(message) for message in messages]

    def _after_hello(self, act: Act) -> Act:
        """Wrap a handler: it requires HELLO. A broker that we lost may not know so yet; that is not bad input."""

        def known(connection: Connection, said: Any, bodies: Sequence[bytes], now: Now, effects: Effects) -> None:
            if connection.peer is not None:
                act(connection, said, bodies, now, effects)
                return
            if isinstance(said, options.Forward):
                error = {"id": said.id, "code": codes.NOT_SERVING, "message": "say HELLO first", "unrun": True}
                effects.send(connection, ("ERROR", error))
            effects.send(connection, ("FORCENEGOTIATE", options.ForceNegotiate(reason="say HELLO first")))

        return known

    def _within_reason(self, act: Act) -> Act:
        """Wrap a handler: it is subject to the rate limit."""
        allows = self._rate_limits.allows_control

        def bounded(connection: Connection, said: Any, bodies: Sequence[bytes], now: Now, effects: Effects) -> None:
            if allows(connection, now, effects):
                act(connection, said, bodies, now, effects)

        return bounded

    def refuse_big(self, connection: Connection, head: list[bytes], now: Now, effects: Effects) -> None:
        """Reply 413, with the id of the request if there is one."""
        message = f"a message is at most {self._state.limits.max_message_bytes} bytes"
        for decoded in self._codecs[connection.door].decode(head):
            if not isinstance(decoded, Refusal) and decoded[0] == "REQUEST" and self._state.state == ACTIVE:
                said = decoded[1]
                effects.send(connection, ("ERROR", {"id": said.id, "code": codes.TOO_BIG, "message": message}))
            elif isinstance(decoded, tuple) and decoded[0] in ("PARTIAL", "REPLY") and self._state.state == ACTIVE:
                self._requests.error(connection, decoded[1].id, codes.TOO_BIG, message, now, effects)
            else:
                self._refuse(connection, Refusal(codes.TOO_BIG, message), now, effects)

    def _refuse(self, connection: Connection, refusal: Refusal, now: Now, effects: Effects) -> None:
        """Bad input: send the error, count it and disconnect the sender."""
        if self._state.state == DISABLED:
            return
        said = options.DisconnectError(code=refusal.code, message=refusal.message[:500])
        effects.send(connection, ("DISCONNECTERROR", said))
        self._negotiation.refused(connection, refusal, now, effects)

    def _not_serving(self, connection: Connection, command: str, said: Any, effects: Effects) -> None:
        if self._state.state == DISABLED:
            return
        message = f"this broker is {self._state.state}"
        if command in ("REQUEST", "FORWARD"):
            error = {"id": said.id, "code": codes.NOT_SERVING, "message": message, "unrun": True}
            effects.send(connection, ("ERROR", error))
        else:
            effects.send(connection, ("DISCONNECTERROR", options.DisconnectError(codes.NOT_SERVING, message)))

    def _renegotiate(self, connection: Connection, command: str, effects: Effects) -> None:
        connection.stale = False
        if command not in ("CHECKCONFIG", "MANAGEMENTREQ", "READY", "HEARTBEAT") and connection.takes_pushes:
            effects.send(connection, ("FORCENEGOTIATE", options.ForceNegotiate(reason="this broker was disabled")))

    def _request(
        self, connection: Connection, said: options.Request, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        service, state = said.service, self._state
        if not self._rate_limits.allows_request(connection.account, now):
            if said.id not in connection.outstanding:  # a repeated id: only the first request is run and answered
                message = f"more than {state.limits.max_requests_per_second} requests in a second: try again later"
                effects.send(connection, ("ERROR", {"id": said.id, "code": codes.TOO_MANY, "message": message}))
            return
        timeout, retry = said.timeout, said.retry
        if state.policies and service in state.policies:
            policy = state.policies[service]
            timeout = policy.timeout if timeout is None else timeout
            retry = retry or bool(policy.retry)
        if timeout is None:
            timeout = state.limits.request_timeout
        known = self._requests.is_known(service)
        if not known and is_reserved(service):
            self._discovery.answer(connection, said, bodies, now, effects)
            return
        refusal = None
        if not known or state.draining or not 0 < timeout <= state.limits.max_request_timeout:
            refusal = self._why_not(service, timeout)
        if refusal is None:
            self._requests.submit(connection, said.id, service, bodies, timeout, retry, now, effects)
        else:
            if state.draining:
                self._rebalancing.send_now(connection, effects)
            error = {"id": said.id, "code": refusal.code, "message": refusal.message}
            if refusal.code == codes.NOT_SERVING:
                error["unrun"] = True
            effects.send(connection, ("ERROR", error))

    def _why_not(self, service: str, timeout: float) -> Refusal | None:
        limits = self._state.limits
        if not 0 < timeout <= limits.max_request_timeout:
            return Refusal(codes.MALFORMED, f"timeout is above 0 and at most {limits.max_request_timeout:g}")
        if self._state.draining:
            return Refusal(codes.NOT_SERVING, f"this broker is {self._state.shown}")
        if not is_service_name(service, limits.max_service_bytes):
            return Refusal(codes.MALFORMED, "that is no service's name")
        return None

    def _partial(
        self, connection: Connection, said: options.Answer, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        self._requests.partial(connection, said.id, bodies, now, effects)

    def _reply(
        self, connection: Connection, said: options.Answer, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        self._requests.reply(connection, said.id, bodies, now, effects)

    def _task_status(
        self, connection: Connection, said: Any, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        self.tasks_status(connection, said, bodies, now, effects)

    def _tasks_done(
        self, connection: Connection, said: Any, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        self.tasks_done(connection, said, bodies, now, effects)

    def _error(
        self, connection: Connection, said: options.Error, _: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        self._requests.error(connection, said.id, said.code, said.message[:2_000], now, effects, said.unrun)
