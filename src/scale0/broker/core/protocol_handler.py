"""`SCALE0/1` on the client sockets: decode frames, dispatch commands, and pack messages.

Invariant: only commands that the table of `dispatch` allows on that socket, in that state, are executed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from scale0.broker.admin.commands import INTERNAL_ERROR, AdminCommands
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
from scale0.broker.core.permission_check import PermissionCheck
from scale0.broker.core.permissions import CALL
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
from scale0.transport.core.request_batches import bodies_of, check_ids, ids_of, separated
from scale0.transport.core.sockets import ACTIVE, CLIENT_SOCKETS, DISABLED, PEER_SOCKETS

SOCKETS: Final = (*CLIENT_SOCKETS, *PEER_SOCKETS)
REQUESTING: Final = frozenset({"REQUEST", "REQUESTS"})
ANSWERING: Final = frozenset({"PARTIAL", "REPLY", "REPLIES"})
Act = Callable[[Connection, Any, Sequence[bytes], Now, Effects], None]


class ClusterParts(NamedTuple):
    peers: Peers
    config_replication: ConfigReplication
    catalog_replication: CatalogReplication
    forwarding: Forwarding
    rebalancing: Rebalancing
    standby: Standby


class Scale0Handler:
    def __init__(
        self,
        state: BrokerState,
        requests: Requests,
        negotiation: Negotiation,
        discovery: Discovery,
        management: AdminCommands,
        rate_limits: RateLimits,
        permission_check: PermissionCheck,
        cluster: ClusterParts,
        task_reports: Mapping[str, Act],
    ) -> None:
        self._state = state
        self._rate_limits = rate_limits
        self._permission_check = permission_check
        self._requests = requests
        self._negotiation = negotiation
        self._rebalancing = cluster.rebalancing
        self._discovery = discovery
        self.enrolment = Enrolment(state)
        clients = {**self._client_acts(negotiation, management), **task_reports}
        brokers = self._broker_acts(cluster, management)
        self._acts = {
            socket: {
                rule.command: (brokers if socket in PEER_SOCKETS else clients)[rule.command]
                for rule in RULES
                if socket in rule.sockets
            }
            for socket in SOCKETS
        }
        self._states = {
            socket: {rule.command: rule.states for rule in RULES if socket in rule.sockets} for socket in SOCKETS
        }
        self._codecs = {
            socket: wire.Codec(
                {rule.command: rule.schema for rule in RULES if socket in rule.sockets},
                {rule.command for rule in RULES if rule.hot},
                COMMANDS,
                state.limits,
                {rule.command for rule in RULES if rule.alone},
            )
            for socket in SOCKETS
        }
        self._hot = {
            socket: {kind: self._acts[socket][command] for kind, command in codec.commands.items()}
            for socket, codec in self._codecs.items()
        }

    def _client_acts(self, negotiation: Negotiation, management: AdminCommands) -> Mapping[str, Act]:
        return {
            "CHECKCONFIG": self._within_reason(negotiation.check_config),
            "READY": self._within_reason(negotiation.ready),
            "HEARTBEAT": self._within_reason(negotiation.heartbeat),
            "NEEDBROKER": self._within_reason(negotiation.need_broker),
            "DISCONNECT": negotiation.disconnect,
            "REQUEST": self._request,
            "REQUESTS": self._request_batch,
            "REPLIES": self._replies,
            "PARTIAL": self._partial,
            "REPLY": self._reply,
            "ERROR": self._error,
            "MANAGEMENTREQ": management.receive,
            "ENROL": no_token,
        }

    def _broker_acts(self, cluster: ClusterParts, management: AdminCommands) -> Mapping[str, Act]:
        peers, config_replication, catalog_replication, forwarding, _, _ = cluster
        return {
            "HELLO": self._within_reason(peers.hello),
            "HEARTBEAT": self._within_reason(peers.heartbeat),
            "FORCENEGOTIATE": self._within_reason(peers.force),
            "DISCONNECTERROR": peers.refused,
            "CHECKCONFIG": self._within_reason(config_replication.check_config),
            "CONFIG": self._within_reason(self._after_hello(config_replication.config)),
            "CONFIGACK": config_replication.acknowledged,
            "TABLE": self._after_hello(catalog_replication.table),
            "TABLEREQ": self._within_reason(self._after_hello(catalog_replication.table_req)),
            "FORWARD": self._after_hello(forwarding.forward),
            "PARTIAL": self._partial,
            "REPLY": self._reply,
            "ERROR": self._error,
            "MANAGEMENTREQ": management.receive,
            "ENROL": no_token,
        }

    def receive(self, connection: Connection, frames: list[bytes], now: Now, effects: Effects) -> None:
        state, states, acts = self._state, self._states[connection.socket], self._acts[connection.socket]
        codec = self._codecs[connection.socket]
        if state.state == ACTIVE and not connection.stale:
            typed = codec.decode_hot(frames)
            if typed is not None:
                self._receive_hot(connection, typed, self._hot[connection.socket], now, effects)
                return
        account = connection.account
        defect: Exception | None = None
        for decoded in codec.decode(frames):
            if account.banned_until is not None:
                break
            if isinstance(decoded, Refusal):
                self._refuse(connection, decoded, now, effects)
                continue
            command, message, bodies = decoded
            if state.state not in states[command]:
                self._not_serving(connection, command, message, bodies, effects)
                continue
            if connection.stale:
                self._renegotiate(connection, command, effects)
            try:
                acts[command](connection, message, bodies, now, effects)
            except Refusal as refusal:
                self._refuse(connection, refusal, now, effects)
            except Exception as error:
                self._answer_defect(connection, message, bodies, effects)
                defect = defect or error
        if defect is not None:
            raise defect

    def receive_guest(self, connection: Connection, frames: list[bytes], now: Now, effects: Effects) -> None:
        """A token's key may send ENROL and nothing else (PROTOCOL 11)."""
        account = connection.account
        if frames[0] != wire.MAGIC:
            self._rate_limits.reject(
                connection, codes.NOT_ALLOWED, "the key of a join token may only be used for ENROL", now, effects
            )
            return
        connection.handler = self
        for decoded in self._codecs[connection.socket].decode(frames):
            if account.banned_until is not None:
                return
            try:
                if isinstance(decoded, Refusal):
                    raise decoded
                command, message, _ = decoded
                if command != "ENROL":
                    raise Refusal(codes.NOT_ALLOWED, "the key of a join token may only be used for ENROL")
                if self._state.state == DISABLED:
                    return
                self.enrolment.enrol(connection, message, effects)
            except Refusal as refusal:
                self._refuse(connection, refusal, now, effects)

    def _receive_hot(
        self, connection: Connection, messages: list[Any], acts: Mapping[type, Act], now: Now, effects: Effects
    ) -> None:
        """Handle the hot commands of one BATCH. None of them changes the broker's state, so it is checked once."""
        account = connection.account
        defect: Exception | None = None
        for message in messages:
            if account.banned_until is not None:
                break
            body = message.body
            try:
                acts[type(message)](connection, message.options, () if body is None else (body,), now, effects)
            except Refusal as refusal:
                self._refuse(connection, refusal, now, effects)
            except Exception as error:
                self._answer_defect(connection, message.options, (), effects)
                defect = defect or error
        if defect is not None:
            raise defect

    def _answer_defect(self, connection: Connection, message: Any, bodies: Sequence[bytes], effects: Effects) -> None:
        """A defect of the broker must not leave a sender without an answer, nor the other messages of its BATCH without
        effect. A request that was accepted ends by its timeout at the latest; `AdminCommands` answers its own."""
        if isinstance(message, options.Request | options.ManyRequests):
            ids = ids_of(message, bodies[0] if bodies else b"")
            for id_ in [id_ for id_ in ids if not connection.awaits_id(id_)]:
                effects.send(connection, ("ERROR", {"id": id_, "code": codes.FAILED, "message": INTERNAL_ERROR}))

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

        def known(connection: Connection, message: Any, bodies: Sequence[bytes], now: Now, effects: Effects) -> None:
            if connection.peer is not None:
                act(connection, message, bodies, now, effects)
                return
            if isinstance(message, options.Forward):
                error = {"id": message.id, "code": codes.NOT_SERVING, "message": "HELLO must come first", "unrun": True}
                effects.send(connection, ("ERROR", error))
            effects.send(connection, ("FORCENEGOTIATE", options.ForceNegotiate(reason="HELLO must come first")))

        return known

    def _within_reason(self, act: Act) -> Act:
        """Wrap a handler: it is subject to the rate limit."""
        allows = self._rate_limits.allows_control

        def bounded(connection: Connection, message: Any, bodies: Sequence[bytes], now: Now, effects: Effects) -> None:
            if allows(connection, now, effects):
                act(connection, message, bodies, now, effects)

        return bounded

    def refuse_big(self, connection: Connection, frames: list[bytes], now: Now, effects: Effects) -> None:
        """Reply 413, for each request that the message stands for, if there are any."""
        message = f"a message is at most {self._state.limits.max_message_bytes} bytes"
        for decoded in self._codecs[connection.socket].decode(frames[:3]):
            command, ids = "", []
            if not isinstance(decoded, Refusal) and decoded[0] in REQUESTING | ANSWERING and self._state.serving:
                command, ids = decoded[0], ids_of(decoded[1], frames[3] if len(frames) > 3 else b"")
            for id_ in ids:
                if command in REQUESTING:
                    effects.send(connection, ("ERROR", {"id": id_, "code": codes.TOO_BIG, "message": message}))
                else:
                    self._requests.error(connection, id_, codes.TOO_BIG, message, now, effects)
            if not ids:
                self._refuse(connection, Refusal(codes.TOO_BIG, message), now, effects)

    def _refuse(self, connection: Connection, refusal: Refusal, now: Now, effects: Effects) -> None:
        """Bad input: send the error, count it and disconnect the sender."""
        if self._state.state == DISABLED:
            return
        message = options.DisconnectError(code=refusal.code, message=refusal.message[:500])
        effects.send(connection, ("DISCONNECTERROR", message))
        self._negotiation.refused(connection, refusal, now, effects)

    def _not_serving(
        self, connection: Connection, command: str, request: Any, bodies: Sequence[bytes], effects: Effects
    ) -> None:
        if self._state.state == DISABLED:
            return
        message = f"this broker is {self._state.state}"
        asks = command in REQUESTING or command == "FORWARD"
        ids = ids_of(request, bodies[0] if bodies else b"") if asks else ()
        for id_ in ids:
            error = {"id": id_, "code": codes.NOT_SERVING, "message": message, "unrun": True}
            effects.send(connection, ("ERROR", error))
        if not ids:
            effects.send(connection, ("DISCONNECTERROR", options.DisconnectError(codes.NOT_SERVING, message)))

    def _renegotiate(self, connection: Connection, command: str, effects: Effects) -> None:
        connection.stale = False
        if command not in ("CHECKCONFIG", "MANAGEMENTREQ", "READY", "HEARTBEAT") and connection.takes_pushes:
            effects.send(connection, ("FORCENEGOTIATE", options.ForceNegotiate(reason="this broker was disabled")))

    def _request(
        self, connection: Connection, request: options.Request, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        service, state = request.service, self._state
        if not self._rate_limits.allows_request(connection.account, now):
            if not connection.awaits_id(request.id):  # a repeated id: only the first request is run and answered
                message = f"more than {state.limits.max_requests_per_second} requests in a second: try again later"
                effects.send(connection, ("ERROR", {"id": request.id, "code": codes.TOO_MANY, "message": message}))
            return
        timeout, retry = request.timeout, request.retry
        if state.policies and service in state.policies:
            policy = state.policies[service]
            if timeout is None and policy.timeout is not None:
                # It is also the timeout of tasks, which may be longer.
                timeout = min(policy.timeout, state.limits.max_request_timeout)
            retry = retry or bool(policy.retry)
        if timeout is None:
            timeout = state.limits.request_timeout
        known = self._requests.is_known(service)
        if not known and is_reserved(service):
            self._discovery.answer(connection, request, bodies, now, effects)
            return
        if not known and not is_service_name(service, state.limits.max_service_bytes):
            error = {"id": request.id, "code": codes.MALFORMED, "message": "this is not a valid service name"}
            effects.send(connection, ("ERROR", error))
            return
        if state.keys is not None:
            reason = self._permission_check.why_not(connection, CALL, service, now, effects)
            if reason:
                if not connection.awaits_id(request.id):
                    error = {"id": request.id, "code": codes.NOT_ALLOWED, "message": reason}
                    effects.send(connection, ("ERROR", error))
                return
        refusal = None
        if not known or state.draining or not 0 < timeout <= state.limits.max_request_timeout:
            refusal = self._why_not(service, timeout)
        if refusal is None or connection.awaits_id(request.id):  # a repeated id is not refused, but ignored
            self._requests.submit(connection, request.id, service, bodies, timeout, retry, now, effects)
        else:
            if state.draining:
                self._rebalancing.send_now(connection, effects)
            error = {"id": request.id, "code": refusal.code, "message": refusal.message}
            if refusal.code == codes.NOT_SERVING:
                error["unrun"] = True
            effects.send(connection, ("ERROR", error))

    def _request_batch(
        self, connection: Connection, batch: options.ManyRequests, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        """Requests that would all be accepted are accepted as one; otherwise one by one."""
        packed = bodies[0] if len(bodies) == 1 else b""
        count = len(bodies_of(packed))
        check_ids(batch, count)
        service, state = batch.service, self._state
        policy = state.policies.get(service)
        timeout, retry = batch.timeout, batch.retry
        if policy is not None:
            timeout = policy.timeout if timeout is None else timeout
            retry = retry or bool(policy.retry)
        if timeout is None:
            timeout = state.limits.request_timeout
        if (
            self._requests.is_known(service)
            and not state.draining
            and 0 < timeout <= state.limits.max_request_timeout
            and not connection.awaits_any(batch.id, batch.first, count)
            and self._permission_check.permits(connection, CALL, service)
            and self._rate_limits.allows_requests(connection.account, count, now)
        ):
            self._requests.batches.submit(connection, batch, packed, timeout, retry, now, effects)
            return
        for id_, body in separated(batch, bodies):
            request = options.Request(service, id_, batch.timeout, batch.retry)
            self._request(connection, request, (body,), now, effects)

    def _replies(
        self, connection: Connection, message: options.ManyReplies, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        self._requests.batches.replies(connection, message, bodies[0] if bodies else b"", now, effects)

    def _why_not(self, service: str, timeout: float) -> Refusal | None:
        limits = self._state.limits
        if not 0 < timeout <= limits.max_request_timeout:
            return Refusal(codes.MALFORMED, f"timeout is above 0 and at most {limits.max_request_timeout:g}")
        if self._state.draining:
            return Refusal(codes.NOT_SERVING, f"this broker is {self._state.shown}")
        return None

    def _partial(
        self, connection: Connection, message: options.Answer, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        self._requests.partial(connection, message.id, bodies, now, effects)

    def _reply(
        self, connection: Connection, message: options.Answer, bodies: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        self._requests.reply(connection, message.id, bodies, now, effects)

    def _error(
        self, connection: Connection, message: options.Error, _: Sequence[bytes], now: Now, effects: Effects
    ) -> None:
        self._requests.error(connection, message.id, message.code, message.message[:2_000], now, effects, message.unrun)
