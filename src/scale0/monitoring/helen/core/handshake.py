"""The first word of a connection: who may come in, in which version, and who gets a certificate.

Lives here: `Handshake`: opened, hello and enrol. Never here: anything that comes after. Invariants: one connection per
identity, and the newest is it; no more agents than there is room for; a stranger costs little, and for a short time.
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
from scale0.monitoring.helen.core.schedules import Schedules
from scale0.monitoring.helen.core.state import AGENT, LEFT, REPLACED, HelenState
from scale0.monitoring.protocol.encoder import in_one_line
from scale0.monitoring.protocol.messages import VERSION_1, Accepted, Enrol, Enrolled, Error, Hello, Redirect, Reload

HELLO_SECONDS: Final = 5.0
"""How long a connection may say nothing at first."""
SIGN_SECONDS: Final = 30.0
"""How long a certificate may take."""
RELOAD_SECONDS: Final = 60.0
"""How long an agent that is too old may stay after `reload`."""
MAX_NEWCOMERS: Final = 5_000
"""Connections that have not said hello: all agents may come at once after a restart."""
MAX_STRANGERS: Final = 256
"""Connections without a certificate."""
MAX_CROWD: Final = 8
"""Connections of one name, in whatever stage: one certificate must not take the room of all others."""
MAX_SIGNING: Final = 64
"""Certificates in the making."""

Revoked = Callable[[str, str, float], bool]
"""True for a certificate (name, serial in hexadecimal, when it was issued) that counts no more."""


class Handshake:
    """Who comes in."""

    __slots__ = ("_handover", "_schedules", "_siblings", "_signing", "_state", "draining", "revoked")

    def __init__(self, state: HelenState, schedules: Schedules, siblings: Replicas, handover: Migration) -> None:
        self._state = state
        self._schedules = schedules
        self._siblings = siblings
        self._handover = handover
        handover.admit = self._admit
        self._signing = 0
        self.draining = False
        """She is about to stop: whoever comes is sent to another Helen."""
        self.revoked: Revoked = lambda *_: False

    def open(
        self, routing_id: bytes, name: str, serial: str, issued: int, address: str, now: Now, step: Effects
    ) -> None:
        """A connection is up; `name` is blank where it showed no certificate."""
        state = self._state
        old = state.lines.get(routing_id)
        if old is not None:
            state.drop(old, LEFT, now, step, closed=True)
        line = AgentConnection(routing_id, name or None, serial, issued, address, now)
        crowd = state.enter(line)
        if name:
            if crowd > MAX_CROWD:
                state.refuse(line, "too many connections of one name: come again later", now, step)
                return
            if not is_identity(name):
                state.refuse(line, "the certificate's name is no identity", now, step)
                return
            if self.revoked(name, serial, issued):
                state.count("connections_revoked")
                state.refuse(line, "the certificate is revoked", now, step)
                return
        full = len(state.newcomers) >= MAX_NEWCOMERS or (not name and len(state.strangers) >= MAX_STRANGERS)
        if full:
            state.refuse(line, "too many connections at once: come again later", now, step)
            return
        state.newcomers.add(line)
        if not name:
            state.strangers.add(line)
        state.arm(line, now.mono + HELLO_SECONDS)

    def hello(self, line: AgentConnection, word: Hello, now: Now, step: Effects) -> None:
        """An agent says what it is."""
        state = self._state
        identity = line.name
        software = in_one_line(word.software[:MAX_SOFTWARE_CHARS])
        agent = state.agents.enter(identity)
        if agent is None:
            state.refuse(line, "too many agents are known here", now, step)
            return
        if self._is_too_old(word.version, software):
            self._reload(line, agent, word.version, software, now, step)
            return
        old = agent.line or self._handover.line_of(identity)
        taken = state.agents.connected + self._handover.joining
        if (old is None and taken >= state.settings.max_agents) or self.draining:
            self._turn_away(line, word.version, now, step)
            return
        if old is not None:
            self._take_over(agent, old, line, now, step)
        state.newcomers.discard(line)
        self._handover.join(line, agent, word.version, software, now, step)

    def _admit(self, line: AgentConnection, agent: Agent, version: int, software: str, now: Now, step: Effects) -> None:
        """It is here, and all that is known of it."""
        state = self._state
        line.accept(agent, version)
        state.agents.connect(agent, line, line.protocol, software, now)
        state.count("agents_accepted")
        step.record(ClientJoined(agent.identity, AGENT, agent.checks))
        if line.reports:
            heartbeat_seconds = state.settings.heartbeat_seconds
            line.say(Accepted(heartbeat_seconds), step)
            state.look(line, now, step)
            self._schedules.push(line, now, step)
        else:
            state.disarm(line)

    def _is_too_old(self, version: int, software: str) -> bool:
        least = self._state.settings.min_equus_version
        return version < VERSION_1 or (bool(least) and is_older(software, least))

    def _reload(
        self, line: AgentConnection, agent: Agent, version: int, software: str, now: Now, step: Effects
    ) -> None:
        state = self._state
        if agent.reloaded == (version, software):
            state.refuse(line, f"version {version} {software} is too old, and came back unchanged", now, step)
            return
        agent.reloaded = (version, software)
        state.count("agents_told_to_reload")
        state.newcomers.discard(line)
        line.stage = RELOADING
        line.say(Reload(), step)
        state.arm(line, now.mono + RELOAD_SECONDS)

    def _turn_away(self, line: AgentConnection, version: int, now: Now, step: Effects) -> None:
        """There is no room: to another Helen, if one is known and the agent knows the word."""
        state = self._state
        place = self._siblings.place() if version > VERSION_1 else None
        if place is None:
            full = f"{state.settings.max_agents} agents are connected: there is no room"
            state.refuse(line, "this Helen is about to stop" if self.draining else full, now, step)
            return
        state.count("agents_redirected")
        line.say(Redirect(place), step)
        state.drop(line, LEFT, now, step)

    def _take_over(
        self, agent: Agent, old: AgentConnection, newcomer: AgentConnection, now: Now, step: Effects
    ) -> None:
        self._state.count("agents_replaced")
        if agent.take_over(newcomer.address, now, step):
            self._state.count("agents_doubled")
        old.say(Error(f"{agent.identity} came from another connection"), step)
        self._state.drop(old, REPLACED, now, step)

    def enrol(self, line: AgentConnection, word: Enrol, now: Now, step: Effects) -> None:
        """Somebody wants a certificate: with a token, or with the one that it has."""
        state = self._state
        if self._signing >= MAX_SIGNING:
            state.refuse(line, "too many certificates are being made: come again later", now, step)
            return
        self._signing += 1
        state.newcomers.discard(line)
        line.stage = SIGNING
        state.arm(line, now.mono + SIGN_SECONDS)
        step.ask(SignCertificate(word.body, line.identity, line.serial, partial(self._signed, line)))

    def _signed(self, line: AgentConnection, value: Any, now: Now, step: Effects) -> None:
        self._signing -= 1
        state = self._state
        if line.stage is ENDED:
            return
        if isinstance(value, bytes):
            state.count("certificates_signed")
            line.say(Enrolled(value), step)
            state.drop(line, LEFT, now, step)
            return
        state.count("enrolments_refused")
        message = value.message if isinstance(value, Refusal) else "the certificate could not be made"
        state.refuse(line, message, now, step)

    def revoke(self, revoked: Revoked, now: Now, step: Effects) -> int:
        """From here on these certificates do not count; connections that use one end at once."""
        self.revoked = revoked
        state = self._state
        for agent in state.agents.by_identity.values():
            agent.revoked = bool(agent.serial) and revoked(agent.identity, agent.serial, agent.issued)
        ended = [
            line for line in state.lines.values() if line.identity and revoked(line.identity, line.serial, line.issued)
        ]
        for line in ended:
            state.count("connections_revoked")
            # It is taken out on purpose: from here on it is not missed.
            state.refuse(line, "the certificate is revoked", now, step, LEFT)
        return len(ended)
