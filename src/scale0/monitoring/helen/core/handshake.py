"""The begin of a connection: hello and enrol, the version check, and certificates.

There is one connection per identity: the newest. The number of agents is limited, and clients without a certificate get
few resources for a short time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from scale0.history.events.clients import ClientJoined
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.kernel.names import is_identity
from scale0.monitoring.helen.core.agent_connection import ENDED, RELOADING, SIGNING, AgentConnection, SignCertificate
from scale0.monitoring.helen.core.agents import MAX_SOFTWARE_CHARS, Agent, is_older
from scale0.monitoring.helen.core.migration import Migration
from scale0.monitoring.helen.core.replicas import Replicas
from scale0.monitoring.helen.core.schedule_push import Schedules
from scale0.monitoring.helen.core.socket_events import ConnectionOpened
from scale0.monitoring.helen.core.state import AGENT, LEFT, REPLACED, HelenState
from scale0.monitoring.protocol.encoder import in_one_line
from scale0.monitoring.protocol.messages import VERSION_1, Accepted, Enrol, Enrolled, Error, Hello, Redirect, Reload

HELLO_SECONDS: Final = 5.0
"""How long a client may take to send its first message."""
SIGN_SECONDS: Final = 30.0
"""How long signing may take."""
RELOAD_SECONDS: Final = 60.0
"""How long an agent that is too old may stay after `reload`."""
MAX_AWAITING_HELLO: Final = 5_000
"""Connections before their hello: after a restart all agents may connect at once."""
MAX_ANONYMOUS: Final = 256
"""Connections without a certificate before their enrol; beyond it, one of the address with the most is ended."""
MAX_CONNECTIONS_PER_NAME: Final = 8
"""Connections of one certificate name, in any stage: one certificate must not use up the limits of all."""
MAX_SIGNING: Final = 64
"""Certificates being signed."""

Revoked = Callable[[str, str, float], bool]
"""True for a revoked certificate, given its name, its serial in hexadecimal, and when it was issued."""


class Handshake:
    def __init__(self, state: HelenState, schedules: Schedules, replicas: Replicas, migration: Migration) -> None:
        self._state = state
        self._schedules = schedules
        self._replicas = replicas
        self._migration = migration
        migration.on_admit = self._admit
        self._signing = 0
        self.draining = False
        """Helen is about to stop: new agents are redirected to another Helen."""
        self.revoked: Revoked = lambda *_: False

    def open(self, routing_id: bytes, opened: ConnectionOpened, now: Now, effects: Effects) -> None:
        state, name = self._state, opened.name
        old = state.connections.get(routing_id)
        if old is not None:
            state.drop(old, LEFT, now, effects, closed=True)
        connection = AgentConnection(routing_id, opened, now)
        crowd = state.enter(connection)
        if name:
            if crowd > MAX_CONNECTIONS_PER_NAME:
                state.refuse(connection, "too many connections with this name: try again later", now, effects)
                return
            if not is_identity(name):
                state.refuse(connection, "the certificate's name is not a valid identity", now, effects)
                return
            if self.revoked(name, opened.serial, opened.issued):
                state.count("connections_revoked")
                state.refuse(connection, "the certificate is revoked", now, effects)
                return
        if len(state.awaiting_hello) >= MAX_AWAITING_HELLO:
            state.refuse(connection, "too many connections: try again later", now, effects)
            return
        state.awaiting_hello.add(connection)
        state.arm(connection, now.mono + HELLO_SECONDS)
        if not name:
            self._limit_anonymous(connection, now, effects)

    def hello(self, connection: AgentConnection, message: Hello, now: Now, effects: Effects) -> None:
        state = self._state
        identity = connection.name
        software = in_one_line(message.software[:MAX_SOFTWARE_CHARS])
        agent = state.agents.enter(identity)
        if agent is None:
            state.refuse(connection, "too many agents are known", now, effects)
            return
        if self._is_too_old(message.version, software):
            self._reload(connection, agent, message.version, software, now, effects)
            return
        old = agent.connection or self._migration.connection_of(identity)
        taken = state.agents.connected + self._migration.joining
        if (old is None and taken >= state.settings.max_agents) or self.draining:
            self._turn_away(connection, message.version, now, effects)
            return
        if old is not None:
            self._take_over(agent, old, connection, now, effects)
        state.awaiting_hello.discard(connection)
        self._migration.join(connection, agent, message.version, software, now, effects)

    def _admit(
        self, connection: AgentConnection, agent: Agent, version: int, software: str, now: Now, effects: Effects
    ) -> None:
        """The agent is accepted, with everything that is known of it."""
        state = self._state
        connection.accept(agent, version)
        state.agents.connect(agent, connection, connection.protocol, software, now)
        state.count("agents_accepted")
        effects.record(ClientJoined(agent.identity, AGENT, agent.checks))
        if connection.reports:
            heartbeat_seconds = state.settings.heartbeat_seconds
            connection.send(Accepted(heartbeat_seconds), effects)
            state.on_timer(connection, now, effects)
            self._schedules.push(connection, now, effects)
        else:
            state.disarm(connection)

    def _is_too_old(self, version: int, software: str) -> bool:
        least = self._state.settings.min_equus_version
        return version < VERSION_1 or (bool(least) and is_older(software, least))

    def _reload(
        self, connection: AgentConnection, agent: Agent, version: int, software: str, now: Now, effects: Effects
    ) -> None:
        state = self._state
        if agent.reloaded == (version, software):
            state.refuse(connection, f"version {version} {software} is too old, also after a reload", now, effects)
            return
        agent.reloaded = (version, software)
        state.count("agents_told_to_reload")
        state.awaiting_hello.discard(connection)
        connection.stage = RELOADING
        connection.send(Reload(), effects)
        state.arm(connection, now.mono + RELOAD_SECONDS)

    def _turn_away(self, connection: AgentConnection, version: int, now: Now, effects: Effects) -> None:
        """No room: redirect the agent to another Helen, if there is one and the agent's version has redirects."""
        state = self._state
        endpoint = self._replicas.redirect_endpoint() if version > VERSION_1 else None
        if endpoint is None:
            full = f"{state.settings.max_agents} agents are connected: the limit is reached"
            state.refuse(connection, "this Helen is stopping" if self.draining else full, now, effects)
            return
        state.count("agents_redirected")
        connection.send(Redirect(endpoint), effects)
        state.drop(connection, LEFT, now, effects)

    def _take_over(
        self, agent: Agent, old: AgentConnection, newcomer: AgentConnection, now: Now, effects: Effects
    ) -> None:
        self._state.count("agents_replaced")
        if agent.take_over(newcomer.address, now, effects):
            self._state.count("agents_doubled")
        old.send(Error(f"{agent.identity} has connected again: this connection is replaced"), effects)
        self._state.drop(old, REPLACED, now, effects)

    def enrol(self, connection: AgentConnection, message: Enrol, now: Now, effects: Effects) -> None:
        """Sign a certificate, authorized by a token or by the client's current certificate."""
        state = self._state
        if self._signing >= MAX_SIGNING:
            state.refuse(connection, "too many certificates are being signed: try again later", now, effects)
            return
        self._signing += 1
        state.awaiting_hello.discard(connection)
        state.anonymous.remove(connection)
        connection.stage = SIGNING
        state.arm(connection, now.mono + SIGN_SECONDS)
        effects.ask(
            SignCertificate(message.body, connection.identity, connection.serial, partial(self._signed, connection))
        )

    def _signed(self, connection: AgentConnection, value: Any, now: Now, effects: Effects) -> None:
        self._signing -= 1
        state = self._state
        if connection.stage is ENDED:
            return
        if isinstance(value, bytes):
            state.count("certificates_signed")
            connection.send(Enrolled(value), effects)
            state.drop(connection, LEFT, now, effects)
            return
        state.count("enrolments_refused")
        message = value.message if isinstance(value, Refusal) else "the certificate could not be signed"
        state.refuse(connection, message, now, effects)

    def revoke(self, revoked: Revoked, now: Now, effects: Effects) -> int:
        """Refuse these certificates from now on, and close the connections that use one; returns how many."""
        self.revoked = revoked
        state = self._state
        for agent in state.agents.by_identity.values():
            agent.revoked = bool(agent.serial) and revoked(agent.identity, agent.serial, agent.issued)
        ended = [
            connection
            for connection in state.connections.values()
            if connection.identity and revoked(connection.identity, connection.serial, connection.issued)
        ]
        for connection in ended:
            state.count("connections_revoked")
            # Removed on purpose: it is not reported as missing.
            state.refuse(connection, "the certificate is revoked", now, effects, LEFT)
        return len(ended)

    def _limit_anonymous(self, newcomer: AgentConnection, now: Now, effects: Effects) -> None:
        """Silent clients must not keep others from enrolling: beyond the limit, the oldest of one address is ended."""
        anonymous = self._state.anonymous
        anonymous.add(newcomer, newcomer.address)
        excess = anonymous.excess() if len(anonymous) > MAX_ANONYMOUS else None
        if excess is not None:
            self._state.refuse(excess, "too many connections without a certificate: try again later", now, effects)
