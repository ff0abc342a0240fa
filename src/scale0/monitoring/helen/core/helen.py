"""Helen: one machine, joined from its parts.

Lives here: the two ways in (agents' connections, requests of the network), timers and the end of a turn. Never here:
any one part's decisions, a socket, a clock. Invariants: no input raises out of `receive` but by our own mistake, and
then that one connection ends without an acknowledgement; what one agent sends changes nothing for another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from scale0.history.events.sources import SourceAlive
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message, StoreQuery
from scale0.kernel.timers import ring
from scale0.monitoring.helen.core.agent_connection import (
    ACTIVE,
    ENDED,
    RELOADING,
    AgentConnection,
    SignCertificate,
)
from scale0.monitoring.helen.core.evaluation import Evaluation
from scale0.monitoring.helen.core.handshake import Handshake, Revoked
from scale0.monitoring.helen.core.keepalive import Keepalive
from scale0.monitoring.helen.core.migrated_agents import AgentBundles
from scale0.monitoring.helen.core.migration import Migration
from scale0.monitoring.helen.core.pending_requests import ForwardRequest, Requester
from scale0.monitoring.helen.core.replicas import Replicas
from scale0.monitoring.helen.core.reports import Reports
from scale0.monitoring.helen.core.schedules import Schedules
from scale0.monitoring.helen.core.services import CHECK_SECONDS, MAX_CHECK_SECONDS, Services, status
from scale0.monitoring.helen.core.socket_events import (
    NETWORK,
    BytesReceived,
    ConfigReceived,
    ConfigRejected,
    ConnectionClosed,
    ConnectionOpened,
    NetworkEvent,
    NetworkRequest,
    NetworkTask,
)
from scale0.monitoring.helen.core.state import LEFT, LOST, HelenSettings, HelenState
from scale0.monitoring.protocol.messages import (
    Enrol,
    Error,
    Fetch,
    File,
    Hello,
    Ping,
    Redirect,
    Report,
    Result,
    ToHelen,
)
from scale0.monitoring.protocol.parser import ParseFault
from scale0.storage.check_rows import AgentRow, SpoolRow

ALIVE_SECONDS: Final = 60.0
"""How often a source says that it was watching."""
PRUNE_SECONDS: Final = 3_600.0
"""How often spools that nobody hears of are looked for."""
LIVENESS: Final = 3
"""So many heartbeats without a word, and an agent is lost."""
PING_FACTOR: Final = 1.5
"""An agent that keeps to its heartbeat is never asked for one: only who is half a heartbeat late is."""
MAX_FILE_NAME_BYTES: Final = 1_024
"""Of a file that an agent asks for: its name comes back in a line that must not be too long."""
MAX_HANDSHAKE_BYTES: Final = 65_536
"""Of a word that is not whole, before an agent is taken in: hello and enrol are short, and strangers may send them."""
LIVENESS_GRACE_SECONDS: Final = 1.0
"""Who seems silent for too long gets so much more: it may be Helen who slept, and what it said waits at her door."""

MAX_REQUEST_SECONDS: Final = 1e9
"""A longer timeout of a request is not believed."""
INTERNAL_ERROR: Final = "internal error; see the log of this Helen"


class Helen:
    """Helen without sockets."""

    __slots__ = (
        *("_keepalive", "_handshake", "_migration", "_bundles", "_reports", "_schedules", "_services", "_replicas"),
        *("config_error", "state"),
    )

    def __init__(self, settings: HelenSettings, evaluation: Evaluation) -> None:
        self.state = state = HelenState(settings, evaluation)
        state.on_timer = self._check_liveness
        self._replicas = Replicas(state)
        self._schedules = Schedules(state)
        self._bundles = AgentBundles(state, self._schedules)
        self._migration = Migration(state, self._replicas, self._bundles)
        self._handshake = Handshake(state, self._schedules, self._replicas, self._migration)
        self._reports = Reports(state, self._schedules)
        self._keepalive = Keepalive(state)
        self._services = Services(state, self._replicas, self._migration, self._bundles, self._keepalive)
        self.config_error = ""
        """Why the newest part of the configuration is not used; blank: it is."""

    def start(self, agents: Iterable[AgentRow], spools: Iterable[SpoolRow], now: Now, effects: Effects) -> None:
        """The first turn, with what the store remembers."""
        self._bundles.start(self.state.agents.load(agents), now)
        self.state.spools.load(spools, now)
        self._keepalive.start(now)
        self._record_alive(None, now, effects)
        self.state.timers.add((self._prune, None), now.mono + PRUNE_SECONDS)

    def stop(self, now: Now, effects: Effects) -> None:
        """The last turn: nobody waits in vain. Sessions end with their source, so nobody is recorded as gone."""
        effects.record(SourceAlive(self.state.settings.identity))
        self.state.requests.fail_all(codes.NOT_SERVING, "Helen stops", effects)
        for connection in self.state.connections.values():
            self._send_away(connection, effects)
            effects.close(connection)
        self.settle(now, effects)

    def drain(self, now: Now, effects: Effects) -> None:
        """She will stop soon: agents are sent to other Helens, who ask for what is known of them while she can answer.

        Whoever calls this goes on with turns until `undrained` is 0, or patience is over, and then calls `stop`.
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
        """Agents that `drain` sent away and that have not arrived elsewhere."""
        return self._migration.undrained

    def _send_away(self, connection: AgentConnection, effects: Effects) -> bool:
        """To the Helen who has most room, if there is one and the agent knows the word."""
        endpoint = self._replicas.redirect_endpoint() if connection.reports else None
        if endpoint is None:
            return False
        self.state.count("agents_redirected")
        connection.send(Redirect(endpoint), effects)
        return True

    def receive(self, socket: str, routing_id: bytes, frames: list[Any], now: Now, effects: Effects) -> None:
        """Handle a message of a socket: it has one frame, an event of `socket_events`."""
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
            case ConnectionOpened():
                self._handshake.open(routing_id, event, now, effects)
            case ConnectionClosed() if connection is not None:
                self.state.drop(connection, LEFT if event.orderly else LOST, now, effects, closed=True)

    def _handle_bytes(self, connection: AgentConnection, data: bytes, now: Now, effects: Effects) -> None:
        """Bytes of an agent: the words that they complete, in order, until one ends the connection."""
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
        if connection.stage is not ACTIVE and connection.parser.held_bytes > MAX_HANDSHAKE_BYTES:
            self.state.refuse(
                connection, f"more than {MAX_HANDSHAKE_BYTES} bytes of one word while {connection.stage}", now, effects
            )

    def _handle_message(self, connection: AgentConnection, message: ToHelen, now: Now, effects: Effects) -> None:
        if reason := connection.refuses(message):
            self.state.refuse(connection, reason, now, effects)
            return
        if connection.stage is RELOADING:
            return
        match message:
            case Result():
                self._reports.answer(connection, message, now, effects)
            case Ping():
                effects.send(connection, [b"pong %d\n" % message.message_id])
            case Hello():
                self._handshake.hello(connection, message, now, effects)
            case Enrol():
                self._handshake.enrol(connection, message, now, effects)
            case Fetch() if "\r" in message.name or len(message.name.encode()) > MAX_FILE_NAME_BYTES:
                reason = f"a file's name has at most {MAX_FILE_NAME_BYTES} bytes, and no end of line"
                self.state.refuse(connection, reason, now, effects)
            case Fetch():
                connection.send(File(message.message_id, message.name, b""), effects)
            case _:
                # A pong proves what every word proves; terminals are nobody's yet.
                pass

    def _receive_from_network(self, requester: Requester, event: NetworkEvent, now: Now, effects: Effects) -> None:
        match event:
            case NetworkRequest():
                self._services.request(requester, event.service, _timeout(event), event.body, now, effects)
            case NetworkTask():
                self._services.task(requester, event.task_id, event.method, event.params, now, effects)
            case ConfigReceived():
                self.config_error = ""
                self.state.count("configs_taken")
                self.state.evaluation.configure(event.config, now, effects)
                self._schedules.change_all()
            case ConfigRejected():
                self.state.count("configs_refused")
                self.config_error = event.error

    def expect_replicas(self, now: Now) -> None:
        """`learn_siblings` will soon be called: who comes before that waits a little."""
        self._migration.expect(now)

    def learn_replicas(self, names: Iterable[str], now: Now, effects: Effects) -> None:
        """The other Helens that the network knows now; to be told every few seconds."""
        self._replicas.set_names(names, effects)
        self._migration.replicas_known(now, effects)
        self._migration.find_migrated(effects)

    def revoke(self, revoked: Revoked, now: Now, effects: Effects) -> int:
        """From here on these certificates do not count: their connections end at once. How many did."""
        return self._handshake.revoke(revoked, now, effects)

    def answer(self, ask: object, value: object, now: Now, effects: Effects) -> None:
        """What an Ask found."""
        if isinstance(ask, StoreQuery | ForwardRequest | SignCertificate):
            ask.then(value, now, effects)
        else:
            self.state.evaluation.answer(ask, value, now, effects)

    def undelivered(self, connection: Any, messages: Sequence[Message], now: Now, effects: Effects) -> None:
        """The door says that it is gone. An asker that is gone costs nothing: its answer is dropped."""
        if isinstance(connection, AgentConnection):
            self.state.drop(connection, LOST, now, effects)

    def overflow(self, connection: Any, now: Now, effects: Effects) -> None:
        """An agent that does not read: it is let go, so that it costs nobody else."""
        if isinstance(connection, AgentConnection):
            self.state.count("connections_overflowed")
            self.state.refuse(connection, "it does not read what it is sent", now, effects)
        else:
            effects.close(connection)

    def settle(self, now: Now, effects: Effects) -> None:
        """The turn ends: write and acknowledge what it adds up to."""
        state = self.state
        self._reports.settle_descriptions(now, effects)
        state.evaluation.settle(effects)
        state.spools.settle(now, effects)
        state.agents.settle(effects)
        self._reports.settle(effects)

    def hear_subscription(self, frames: list[bytes], now: Now, effects: Effects) -> None:
        """Nobody subscribes to a Helen."""

    def tick(self, now: Now, effects: Effects) -> None:
        """Do what its time has come for."""
        ring(self.state.timers, now, effects)
        self.state.requests.tick(now, effects)
        self._schedules.tick(now, effects)
        self._keepalive.tick(now, effects)
        self.state.evaluation.tick(now, effects)

    def deadline(self) -> float | None:
        """When `tick` has something to do."""
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
        """How she is, as plain values; the counts among them."""
        return status(self.state, self._replicas)

    def _check_liveness(self, connection: AgentConnection, now: Now, effects: Effects) -> None:
        """A connection's time has come: to be greeted, or to be heard."""
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
                # It may only have slept: then this is the first thing that it hears.
                connection.send(
                    Error(f"nothing was heard of you for {now.mono - connection.last_seen:.0f} seconds"), effects
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


def _timeout(request: NetworkRequest) -> float:
    """The seconds that a check may take; the default if the client's timeout is out of range."""
    in_range = 0.0 <= request.timeout < MAX_REQUEST_SECONDS
    return min(request.timeout, MAX_CHECK_SECONDS) if in_range else CHECK_SECONDS
