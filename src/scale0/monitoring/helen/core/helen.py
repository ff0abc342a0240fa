"""Helen's machine: dispatches events of her two sockets, timers and ends of turns to its parts.

No input makes `receive` raise, except for a bug: then that one connection is closed without an acknowledgement. What
one agent sends never affects another agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from scale0.history.events.sources import SourceAlive
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message
from scale0.kernel.timers import ring
from scale0.monitoring.helen.core import socket_events as events
from scale0.monitoring.helen.core.agent_connection import ACTIVE, ENDED, RELOADING, AgentConnection
from scale0.monitoring.helen.core.evaluation import Evaluation
from scale0.monitoring.helen.core.handshake import Handshake, Revoked
from scale0.monitoring.helen.core.keepalive import Keepalive
from scale0.monitoring.helen.core.migrated_agents import AgentBundles
from scale0.monitoring.helen.core.migration import Migration
from scale0.monitoring.helen.core.pending_requests import Requester
from scale0.monitoring.helen.core.replicas import Replicas
from scale0.monitoring.helen.core.reports import Reports
from scale0.monitoring.helen.core.schedule_push import Schedules
from scale0.monitoring.helen.core.services import Services, status
from scale0.monitoring.helen.core.socket_events import NETWORK, BytesReceived
from scale0.monitoring.helen.core.state import LEFT, LOST, HelenSettings, HelenState
from scale0.monitoring.protocol import messages
from scale0.monitoring.protocol.messages import Report, ToHelen
from scale0.monitoring.protocol.parser import ParseFault
from scale0.storage.check_rows import AgentRow, SpoolRow

ALIVE_SECONDS: Final = 60.0
"""How often `source.alive` is recorded."""
PRUNE_SECONDS: Final = 3_600.0
"""How often old spools are looked for."""
LIVENESS: Final = 3
"""An agent is lost after this many heartbeats without a message."""
PING_FACTOR: Final = 1.5
"""An agent that is half a heartbeat late gets a ping; one that keeps its heartbeat never does."""
MAX_FILE_NAME_BYTES: Final = 1_024
"""The length of a file name in `fetch`: the answer repeats it in a line of limited length."""
MAX_HANDSHAKE_BYTES: Final = 65_536
"""The size of an incomplete message before an agent is accepted: hello and enrol are short."""
LIVENESS_GRACE_SECONDS: Final = 1.0
"""Additional time for an agent that seems lost: Helen's process may have been suspended, with unread data in the
socket."""

INTERNAL_ERROR: Final = "internal error; see the log of this Helen"


class Helen:
    def __init__(self, settings: HelenSettings, evaluation: Evaluation) -> None:
        self.state = state = HelenState(settings, evaluation)
        state.on_timer = self._check_liveness
        self._replicas = Replicas(state)
        evaluation.decides = self._decides
        self._schedules = Schedules(state)
        self._bundles = AgentBundles(state, self._schedules)
        self._migration = Migration(state, self._replicas, self._bundles)
        self._handshake = Handshake(state, self._schedules, self._replicas, self._migration)
        self._reports = Reports(state, self._schedules)
        self._keepalive = Keepalive(state)
        self._services = Services(state, self._replicas, self._migration, self._bundles, self._keepalive)
        self.config_error = ""
        """Why the newest configuration is not used; empty: it is."""

    def start(self, agents: Iterable[AgentRow], spools: Iterable[SpoolRow], now: Now, effects: Effects) -> None:
        """The first turn, with the rows of the store."""
        self._bundles.start(self.state.agents.load(agents), now)
        self.state.spools.load(spools, now)
        self._keepalive.start(now)
        self._record_alive(None, now, effects)
        self.state.timers.add((self._prune, None), now.mono + PRUNE_SECONDS)

    def stop(self, now: Now, effects: Effects) -> None:
        """The last turn: answer all requests and close all connections. Sessions end with their source, so no agent is
        recorded as gone."""
        effects.record(SourceAlive(self.state.settings.identity))
        self.state.requests.fail_all(codes.NOT_SERVING, "Helen is stopping", effects)
        for connection in self.state.connections.values():
            self._send_away(connection, effects)
            effects.close(connection)
        self.settle(now, effects)

    def drain(self, now: Now, effects: Effects) -> None:
        """Redirect agents to other Helens before a stop; these ask for the agents' state while she can still answer.

        The caller continues with turns until `undrained` is 0 or a timeout, and then calls `stop`.
        """
        self._handshake.draining = True
        sent: set[str] = set()
        for connection in list(self.state.connections.values()):
            if self._send_away(connection, effects):
                sent.add(connection.name)
                self.state.drop(connection, LEFT, now, effects)
        self._migration.drain(sent)

    @property
    def undrained(self) -> int:
        """Agents that `drain` redirected and that no other Helen has taken over."""
        return self._migration.undrained

    def _send_away(self, connection: AgentConnection, effects: Effects) -> bool:
        """Redirect an agent to the Helen with the most room, if there is one and the agent's version has redirects."""
        endpoint = self._replicas.redirect_endpoint() if connection.reports else None
        if endpoint is None:
            return False
        self.state.count("agents_redirected")
        connection.send(messages.Redirect(endpoint), effects)
        return True

    def receive(self, socket: str, routing_id: bytes, frames: list[Any], now: Now, effects: Effects) -> None:
        """Handle a message of a socket: its one frame is an event of `socket_events`."""
        event = frames[0]
        if socket == NETWORK:
            try:
                self._receive_from_network(Requester(routing_id), event, now, effects)
            except Exception:
                Requester(routing_id).refuse(codes.FAILED, INTERNAL_ERROR, effects)
                raise
            return
        connection = self.state.connections.get(routing_id)
        match event:
            case BytesReceived() if connection is not None:
                connection.last_seen = now.mono
                try:
                    self._handle_bytes(connection, event.data, now, effects)
                except Exception:
                    # Later messages are lost, too: if the connection stayed open, they would be acknowledged.
                    self.state.refuse(connection, INTERNAL_ERROR, now, effects)
                    raise
            case events.ConnectionOpened():
                self._handshake.open(routing_id, event, now, effects)
            case events.ConnectionClosed() if connection is not None:
                self.state.drop(connection, LEFT if event.orderly else LOST, now, effects, closed=True)

    def _handle_bytes(self, connection: AgentConnection, data: bytes, now: Now, effects: Effects) -> None:
        """Handle the messages that these bytes complete, until one of them ends the connection."""
        report = self._reports.report
        for message in connection.parser.feed(data):
            if type(message) is Report and connection.reports:
                report(connection, message, now, effects)
            elif type(message) is ParseFault:
                self.state.refuse(connection, message.reason, now, effects)
            else:
                self._handle_message(connection, message, now, effects)  # type: ignore[arg-type]  # its parser knows no others
            if connection.stage is ENDED:
                return
        if connection.stage is not ACTIVE and connection.parser.buffered_bytes > MAX_HANDSHAKE_BYTES:
            reason = f"more than {MAX_HANDSHAKE_BYTES} bytes of one message while {connection.stage}"
            self.state.refuse(connection, reason, now, effects)

    def _handle_message(self, connection: AgentConnection, message: ToHelen, now: Now, effects: Effects) -> None:
        if reason := connection.refuses(message):
            self.state.refuse(connection, reason, now, effects)
            return
        if connection.stage is RELOADING:
            return
        match message:
            case messages.Result():
                self._reports.answer(connection, message, now, effects)
            case messages.Ping():
                effects.send(connection, [b"pong %d\n" % message.message_id])
            case messages.Hello():
                self._handshake.hello(connection, message, now, effects)
            case messages.Enrol():
                self._handshake.enrol(connection, message, now, effects)
            case messages.Fetch() if "\r" in message.name or len(message.name.encode()) > MAX_FILE_NAME_BYTES:
                reason = f"a file name must have at most {MAX_FILE_NAME_BYTES} bytes and no carriage return"
                self.state.refuse(connection, reason, now, effects)
            case messages.Fetch():
                connection.send(messages.File(message.message_id, message.name, b""), effects)
            case _:
                # A pong proves what each message proves; terminals are not implemented.
                pass

    def _receive_from_network(
        self, requester: Requester, event: events.NetworkEvent, now: Now, effects: Effects
    ) -> None:
        match event:
            case events.NetworkRequest():
                self._services.request(requester, event, now, effects)
            case events.NetworkTask():
                self._services.task(requester, event, now, effects)
            case events.ConfigReceived():
                self.config_error = ""
                self.state.count("configs_taken")
                self.state.evaluation.configure(event.config, now, effects)
                self._schedules.change_all()
            case events.ConfigRejected():
                self.state.count("configs_refused")
                self.config_error = event.error

    def _decides(self, identity: str, now: Now) -> bool:
        """True if the agent is connected here, or certainly to no other Helen: she alone closes its incidents and
        sends its notifications. A Helen who does not answer for SEPARATED_SECONDS counts as dead."""
        agent = self.state.agents.get(identity)
        if agent is None or agent.connection is not None:
            return True
        return now.mono >= agent.elsewhere_until and self._replicas.have_answered(agent.left_mono, now)

    def expect_replicas(self, now: Now) -> None:
        """After a start: `learn_replicas` will soon be called, and agents that connect before that wait a little."""
        self._migration.expect(now)

    def learn_replicas(self, names: Iterable[str], now: Now, effects: Effects) -> None:
        """The other Helens of the network; called every few seconds."""
        self._replicas.set_names(names, now, effects)
        self._migration.replicas_known(now, effects)
        self._migration.find_migrated(effects)

    def revoke(self, revoked: Revoked, now: Now, effects: Effects) -> int:
        """Refuse these certificates from now on, and close the connections that use one; returns how many."""
        return self._handshake.revoke(revoked, now, effects)

    def answer(self, ask: Any, value: Any, now: Now, effects: Effects) -> None:
        ask.then(value, now, effects)

    def undelivered(self, connection: Any, messages: Sequence[Message], now: Now, effects: Effects) -> None:
        """The connection is gone. The answer to a request whose client is gone is dropped."""
        if isinstance(connection, AgentConnection):
            self.state.drop(connection, LOST, now, effects)

    def overflow(self, connection: Any, now: Now, effects: Effects) -> None:
        """An agent does not read: disconnect it."""
        if isinstance(connection, AgentConnection):
            self.state.count("connections_overflowed")
            self.state.refuse(connection, "the agent does not read", now, effects)
        else:
            effects.close(connection)

    def settle(self, now: Now, effects: Effects) -> None:
        """Write what this turn changed, and acknowledge reports."""
        state = self.state
        self._reports.settle_descriptions(now, effects)
        state.evaluation.settle(effects)
        state.spools.settle(now, effects)
        state.agents.settle(effects)
        self._reports.settle(effects)

    def receive_subscription(self, frames: list[bytes], now: Now, effects: Effects) -> None:
        """Helen publishes nothing."""

    def tick(self, now: Now, effects: Effects) -> None:
        ring(self.state.timers, now, effects)
        self.state.requests.tick(now, effects)
        self._schedules.tick(now, effects)
        self._keepalive.tick(now, effects)
        self.state.evaluation.tick(now, effects)

    def deadline(self) -> float | None:
        if self._schedules.has_waiting:
            return 0.0
        state = self.state
        found = (
            state.timers.deadline(),
            state.requests.deadline(),
            self._keepalive.deadline(),
            state.evaluation.deadline(),
        )
        return min((when for when in found if when is not None), default=None)

    def view(self) -> dict[str, Any]:
        """Helen's status, including her counters."""
        return status(self.state, self._replicas)

    def _check_liveness(self, connection: AgentConnection, now: Now, effects: Effects) -> None:
        """The timer of a connection: check its handshake, or its heartbeat."""
        if connection.stage is ENDED:
            return
        if connection.stage is not ACTIVE:
            self.state.refuse(connection, f"too slow while {connection.stage}", now, effects)
            return
        heartbeat = float(self.state.settings.heartbeat_seconds)
        lost_at = connection.last_seen + LIVENESS * heartbeat
        if now.mono >= lost_at:
            if connection.suspected_at is None or connection.suspected_at < connection.last_seen:
                connection.suspected_at = now.mono
                self.state.arm(connection, now.mono + LIVENESS_GRACE_SECONDS)
            else:
                self.state.count("agents_lost")
                # The agent may only have been suspended: then this is the first message that it reads.
                connection.send(
                    messages.Error(f"no message was received for {now.mono - connection.last_seen:.0f} seconds"),
                    effects,
                )
                self.state.drop(connection, LOST, now, effects)
            return
        ping_at = connection.last_seen + PING_FACTOR * heartbeat
        if now.mono >= ping_at:
            self._ping(connection, now, effects)
            ping_at = now.mono + heartbeat
        self.state.arm(connection, min(lost_at, ping_at))

    def _ping(self, connection: AgentConnection, now: Now, effects: Effects) -> None:
        number = connection.issue()
        if number is not None:
            effects.send(connection, [b"ping %d\n" % number])

    def _record_alive(self, _: None, now: Now, effects: Effects) -> None:
        effects.record(SourceAlive(self.state.settings.identity))
        self.state.timers.add((self._record_alive, None), now.mono + ALIVE_SECONDS)

    def _prune(self, _: None, now: Now, effects: Effects) -> None:
        self.state.count("spools_forgotten", self.state.spools.prune(now))
        self.state.timers.add((self._prune, None), now.mono + PRUNE_SECONDS)
