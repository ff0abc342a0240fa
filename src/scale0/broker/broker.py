"""The broker: one machine, joined from its parts.

Lives here: the way in (which protocol, which connection, may it), timers, and what happens to a peer that cannot be
reached. Never here: any one part's decisions. Invariant: no input raises out of `receive`; what one client sends
changes nothing for another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from scale0.base import codes
from scale0.base.errors import Refusal
from scale0.base.identity import is_reserved, is_service_name
from scale0.base.now import Now
from scale0.base.step import Message, Step
from scale0.broker import options, wire
from scale0.broker.blame import Blame
from scale0.broker.connection import Connection, Connections, Speaker
from scale0.broker.discovery import Discovery
from scale0.broker.dispatch import COMMANDS, RULES
from scale0.broker.documents import Documents
from scale0.broker.management import Management
from scale0.broker.members import Members
from scale0.broker.negotiation import Negotiation
from scale0.broker.requests import Requests
from scale0.broker.roster import Roster
from scale0.broker.skew import Skew
from scale0.broker.state import ACTIVE, DISABLED, BrokerState
from scale0.broker.tally import SUM_SECONDS
from scale0.events.clients import ClientRefused
from scale0.events.sources import BrokerStarted, BrokerStopped, SourceAlive

ALIVE_SECONDS: Final = 60.0
"""How often a source says that it was watching."""
PRUNE_SECONDS: Final = 3_600.0
"""How long a service that nobody offers is remembered."""

Act = Callable[[Connection, Any, Sequence[bytes], Now, Step], None]


class Broker:
    """A broker without sockets."""

    __slots__ = (
        "_blame",
        "_skew",
        "connections",
        "documents",
        "management",
        "members",
        "requests",
        "roster",
        "scale0",
        "speakers",
        "state",
        "version",
    )

    def __init__(
        self,
        state: BrokerState,
        connections: Connections,
        members: Members,
        roster: Roster,
        requests: Requests,
        documents: Documents,
        management: Management,
        scale0: Scale0Speaker,
        blame: Blame,
        skew: Skew,
        version: str,
    ) -> None:
        self.state = state
        self.connections = connections
        self.members = members
        self.roster = roster
        self.requests = requests
        self.documents = documents
        self.management = management
        self.scale0 = scale0
        self.version = version
        self.speakers: dict[bytes, Speaker] = {wire.MAGIC: scale0}
        self._blame = blame
        self._skew = skew
        connections.on_forget = self._stop_idle

    def start(self, boots: int, now: Now, step: Step) -> None:
        """The first turn."""
        self.state.started = now.mono
        step.record(BrokerStarted(identity=self.state.identity, version=self.version, boots=boots))
        self.members.start(now)
        self._skew.start(now)
        self.documents.start(now, step)
        self.state.timers.add((self._alive, None), now.mono + ALIVE_SECONDS)
        self.state.timers.add((self._sum, None), now.mono + SUM_SECONDS)

    def stop(self, reason: str, now: Now, step: Step) -> None:
        """The last turn: what is summed up is recorded."""
        self.requests.tally.flush(step)
        step.record(BrokerStopped(identity=self.state.identity, reason=reason))

    def receive(self, door: str, routing_id: bytes, frames: list[bytes], now: Now, step: Step) -> None:
        """One message from a client socket, its routing id taken off."""
        connection = self.connections.find(door, routing_id)
        if connection is None:
            connection = self.connections.open(door, routing_id, self.scale0, now)
            if connection is None:
                return
            due = now.mono + self.state.limits.frontend_idle
            connection.bucket = self.state.timers.add((self._idle, connection), due)
        if connection.banned_until is not None:
            if now.mono < connection.banned_until:
                return
            connection.banned_until, connection.bad = None, 0
        connection.heard = now.mono
        connection.delimiter = not frames[0] and len(frames) > 1
        if connection.delimiter:
            frames = frames[1:]
        speaker = self.speakers.get(frames[0])
        if speaker is None:
            self.state.count("messages_unknown")
            self.blame(connection, codes.MALFORMED, "unknown protocol", now, step)
            return
        connection.speaker = speaker
        limits = self.state.limits
        if len(frames) > limits.max_parts or sum(map(len, frames)) > limits.max_message_bytes:
            self._too_big(connection, frames, now, step)
            return
        speaker.receive(connection, frames, now, step)

    def tick(self, now: Now, step: Step) -> None:
        """Do what its time has come for."""
        alarms = deque(self.state.timers.expire(now.mono))
        try:
            while alarms:
                act, subject = alarms.popleft()
                act(subject, now, step)
        finally:
            # Should one of them fail by our own mistake, the others ring in the next turn.
            for alarm in alarms:
                self.state.timers.add(alarm, now.mono)
        self.requests.tick(now, step)

    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        one, other = self.state.timers.deadline(), self.requests.deadline()
        if one is None or other is None:
            return one if other is None else other
        return one if one < other else other

    def answer(self, ask: object, value: object, now: Now, step: Step) -> None:
        """What an Ask found."""
        self.management.answer(ask, value, now, step)

    def undelivered(self, connection: Connection, messages: Sequence[Message], now: Now, step: Step) -> None:
        """The socket says that this peer is gone: what did not leave is done elsewhere at once."""
        member = connection.member
        if member is None:
            self.requests.origin_gone(connection, now)
            self.connections.forget(connection)
            return
        if member.backend is not None:
            self.members.suspend(member, now)
        for message in messages:
            if isinstance(message, tuple) and message[0] == "REQUEST":
                self.requests.redirect(message[1]["id"], now, step)

    def overflow(self, connection: Connection, now: Now, step: Step) -> None:
        """A peer that does not read: it is let go, so that it costs nobody else."""
        self.state.count("clients_overflowed")
        step.record(ClientRefused(identity=connection.name, code=codes.TOO_MANY, data={"reason": "does not read"}))
        if connection.member is not None:
            self.members.lose(connection.member, now, step)
        self.requests.origin_gone(connection, now)
        self.connections.forget(connection)
        step.close(connection)

    def blame(self, connection: Connection, code: int, message: str, now: Now, step: Step) -> None:
        """Count bad input; at the limit its sender becomes an error client."""
        self._blame.blame(connection, code, message, now, step)

    def _too_big(self, connection: Connection, frames: list[bytes], now: Now, step: Step) -> None:
        limits = self.state.limits
        if connection.speaker is self.scale0 and len(frames) > 2 and len(frames[2]) <= limits.max_options_bytes:
            self.scale0.refuse_big(connection, frames[:3], now, step)
        else:
            self.blame(connection, codes.TOO_BIG, "message too big", now, step)

    def _idle(self, connection: Connection, now: Now, step: Step) -> None:
        """Nobody is remembered for nothing."""
        if self.connections.find(connection.door, connection.routing_id) is not connection:
            return
        due = max(connection.heard + self.state.limits.frontend_idle, connection.banned_until or 0.0)
        if connection.member is not None or connection.outstanding:
            due = max(due, now.mono + self.state.limits.frontend_idle)
        if now.mono < due:
            connection.bucket = self.state.timers.add((self._idle, connection), due)
        else:
            self.connections.forget(connection)
            step.close(connection)

    def _stop_idle(self, connection: Connection) -> None:
        self.state.timers.remove((self._idle, connection), connection.bucket)

    def _alive(self, _: None, now: Now, step: Step) -> None:
        step.record(SourceAlive(identity=self.state.identity))
        self.roster.prune(now.mono, PRUNE_SECONDS)
        self.state.timers.add((self._alive, None), now.mono + ALIVE_SECONDS)

    def _sum(self, _: None, now: Now, step: Step) -> None:
        self.requests.tally.flush(step)
        self.state.timers.add((self._sum, None), now.mono + SUM_SECONDS)


class Scale0Speaker:
    """`SCALE0/1` on the client sockets: decode, look up the rule, do it."""

    __slots__ = (
        "_acts",
        "_blame",
        "_codecs",
        "_discovery",
        "_hot",
        "_negotiation",
        "_requests",
        "_state",
        "_states",
    )

    def __init__(
        self,
        state: BrokerState,
        requests: Requests,
        negotiation: Negotiation,
        discovery: Discovery,
        management: Management,
        blame: Blame,
    ) -> None:
        self._state = state
        self._blame = blame
        self._requests = requests
        self._negotiation = negotiation
        self._discovery = discovery
        self._acts: Mapping[str, Act] = {
            "CHECKCONFIG": self._within_reason(negotiation.check_config),
            "READY": self._within_reason(negotiation.ready),
            "HEARTBEAT": self._within_reason(negotiation.heartbeat),
            "NEEDBROKER": self._within_reason(negotiation.need_broker),
            "DISCONNECT": negotiation.disconnect,
            "REQUEST": self._request,
            "PARTIAL": self._partial,
            "REPLY": self._reply,
            "ERROR": self._error,
            "MANAGEMENTREQ": management.receive,
        }
        self._states = {rule.command: rule.states for rule in RULES}
        self._codecs = {
            door: wire.Codec(
                {rule.command: rule.schema for rule in RULES if door in rule.doors},
                {rule.command for rule in RULES if rule.hot},
                COMMANDS,
                state.limits,
            )
            for door in {door for rule in RULES for door in rule.doors}
        }
        self._hot = {
            door: {kind: self._acts[command] for kind, command in codec.commands.items()}
            for door, codec in self._codecs.items()
        }

    def receive(self, connection: Connection, frames: list[bytes], now: Now, step: Step) -> None:
        """One message, or one BATCH of them."""
        state, states, acts = self._state, self._states, self._acts
        codec = self._codecs[connection.door]
        if state.state == ACTIVE and not connection.stale:
            typed = codec.decode_hot(frames)
            if typed is not None:
                self._receive_hot(connection, typed, self._hot[connection.door], now, step)
                return
        for decoded in codec.decode(frames):
            if connection.banned_until is not None:
                return
            if isinstance(decoded, Refusal):
                self._refuse(connection, decoded, now, step)
                continue
            command, said, bodies = decoded
            if state.state not in states[command]:
                self._not_serving(connection, command, said, step)
                continue
            if connection.stale:
                self._renegotiate(connection, command, step)
            try:
                acts[command](connection, said, bodies, now, step)
            except Refusal as refusal:
                self._refuse(connection, refusal, now, step)

    def _receive_hot(
        self, connection: Connection, messages: list[Any], acts: Mapping[type, Act], now: Now, step: Step
    ) -> None:
        """The hot commands of one BATCH. None of them changes the broker's state, so it need not be asked again."""
        for message in messages:
            if connection.banned_until is not None:
                return
            body = message.body
            try:
                acts[type(message)](connection, message.options, () if body is None else (body,), now, step)
            except Refusal as refusal:
                self._refuse(connection, refusal, now, step)

    def pack(self, connection: Connection, messages: Sequence[Message]) -> list[list[bytes]]:
        """As a BATCH for those who take it, else one by one."""
        if connection.batch:
            limits = self._state.limits
            return wire.encode_batch(messages, limits.max_batch_messages, limits.max_message_bytes)
        return [wire.encode(message) for message in messages]

    def _within_reason(self, act: Act) -> Act:
        """The same, unless it comes as a flood."""
        affords = self._blame.affords

        def bounded(connection: Connection, said: Any, bodies: Sequence[bytes], now: Now, step: Step) -> None:
            if affords(connection, now, step):
                act(connection, said, bodies, now, step)

        return bounded

    def refuse_big(self, connection: Connection, head: list[bytes], now: Now, step: Step) -> None:
        """413, to the request's id where there is one."""
        message = f"a message is at most {self._state.limits.max_message_bytes} bytes"
        for decoded in self._codecs[connection.door].decode(head):
            if not isinstance(decoded, Refusal) and decoded[0] == "REQUEST" and self._state.state == ACTIVE:
                said = decoded[1]
                step.send(connection, ("ERROR", {"id": said.id, "code": codes.TOO_BIG, "message": message}))
            elif isinstance(decoded, tuple) and decoded[0] in ("PARTIAL", "REPLY") and self._state.state == ACTIVE:
                self._requests.error(connection, decoded[1].id, codes.TOO_BIG, message, now, step)
            else:
                self._refuse(connection, Refusal(codes.TOO_BIG, message), now, step)

    def _refuse(self, connection: Connection, refusal: Refusal, now: Now, step: Step) -> None:
        """They are wrong: say so, count it, and they are disconnected."""
        if self._state.state == DISABLED:
            return
        said = options.DisconnectError(code=refusal.code, message=refusal.message[:500])
        step.send(connection, ("DISCONNECTERROR", said))
        self._negotiation.refused(connection, refusal, now, step)

    def _not_serving(self, connection: Connection, command: str, said: Any, step: Step) -> None:
        if self._state.state == DISABLED:
            return
        message = f"this broker is {self._state.state}"
        if command == "REQUEST":
            step.send(connection, ("ERROR", {"id": said.id, "code": codes.NOT_SERVING, "message": message}))
        else:
            step.send(connection, ("DISCONNECTERROR", options.DisconnectError(codes.NOT_SERVING, message)))

    def _renegotiate(self, connection: Connection, command: str, step: Step) -> None:
        connection.stale = False
        if command not in ("CHECKCONFIG", "MANAGEMENTREQ", "READY", "HEARTBEAT") and connection.takes_pushes:
            step.send(connection, ("FORCENEGOTIATE", options.ForceNegotiate(reason="this broker was disabled")))

    def _request(
        self, connection: Connection, said: options.Request, bodies: Sequence[bytes], now: Now, step: Step
    ) -> None:
        service, state = said.service, self._state
        timeout, retry = said.timeout, said.retry
        if state.policies and service in state.policies:
            policy = state.policies[service]
            timeout = policy.timeout if timeout is None else timeout
            retry = retry or bool(policy.retry)
        if timeout is None:
            timeout = state.limits.request_timeout
        known = self._requests.is_known(service)
        if not known and is_reserved(service):
            self._discovery.answer(connection, said, bodies, now, step)
            return
        refusal = None
        if not known or state.draining or not 0 < timeout <= state.limits.max_request_timeout:
            refusal = self._why_not(service, timeout)
        if refusal is None:
            self._requests.submit(connection, said.id, service, bodies, timeout, retry, now, step)
        else:
            error = {"id": said.id, "code": refusal.code, "message": refusal.message}
            step.send(connection, ("ERROR", error))

    def _why_not(self, service: str, timeout: float) -> Refusal | None:
        """What is wrong with a request, if anything."""
        limits = self._state.limits
        if not 0 < timeout <= limits.max_request_timeout:
            return Refusal(codes.MALFORMED, f"timeout is above 0 and at most {limits.max_request_timeout:g}")
        if self._state.draining:
            return Refusal(codes.NOT_SERVING, "this broker is draining")
        if not is_service_name(service, limits.max_service_bytes):
            return Refusal(codes.MALFORMED, "that is no service's name")
        return None

    def _partial(
        self, connection: Connection, said: options.Answer, bodies: Sequence[bytes], now: Now, step: Step
    ) -> None:
        self._requests.partial(connection, said.id, bodies, now, step)

    def _reply(
        self, connection: Connection, said: options.Answer, bodies: Sequence[bytes], now: Now, step: Step
    ) -> None:
        self._requests.reply(connection, said.id, bodies, now, step)

    def _error(self, connection: Connection, said: options.Error, _: Sequence[bytes], now: Now, step: Step) -> None:
        self._requests.error(connection, said.id, said.code, said.message[:2_000], now, step)
