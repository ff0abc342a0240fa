"""Migration of agents between Helens: when an agent connects, its state is requested from the Helen who had it.

One Helen accepts an agent's reports, unless the previous one does not answer. A Helen transfers an agent only to a
Helen who confirms that it is connected to her. Nothing is dropped before another Helen has it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal
from scale0.kernel.names import is_identity
from scale0.monitoring.helen.core import agent_bundles
from scale0.monitoring.helen.core.agent_bundles import AgentBundle, to_json
from scale0.monitoring.helen.core.agent_connection import ENDED, JOINING, AgentConnection
from scale0.monitoring.helen.core.agents import Agent
from scale0.monitoring.helen.core.migrated_agents import AgentBundles, Received
from scale0.monitoring.helen.core.pending_requests import ForwardRequest, Requester
from scale0.monitoring.helen.core.replicas import Replicas
from scale0.monitoring.helen.core.state import LEFT, HelenState
from scale0.monitoring.protocol.messages import VERSION_1, Error

MIGRATION_SECONDS: Final = 2.0
"""How long an agent waits for the answers of other Helens."""
REPLICAS_EXPECTED_SECONDS: Final = 5.0
"""After a start, how long agents wait for the list of other Helens."""
VERIFY_SECONDS: Final = 1.0
"""How long a Helen may take to confirm that an agent is connected to her."""
HAS_SECONDS: Final = 5.0
ELSEWHERE_SECONDS: Final = 60.0
"""How long another Helen is assumed to have an agent: several times the interval of `find_migrated`."""
WINDOW: Final = 100
"""Release requests in flight to one Helen; the rest wait."""
MAX_VERIFYING: Final = 1_000
"""Release requests of other Helens that wait for a confirmation."""
MAX_PAGES: Final = 20
"""`has` requests at once; the rest is sent next time."""

Admit = Callable[[AgentConnection, Agent, int, str, Now, Effects], None]


class _Joining:
    """An agent with a valid hello that is not accepted yet."""

    __slots__ = ("agent", "answered", "connection", "received", "software", "version", "waiting")

    def __init__(self, connection: AgentConnection, agent: Agent, version: int, software: str) -> None:
        self.connection = connection
        self.agent = agent
        self.version = version
        self.software = software
        self.waiting = 0
        """Other Helens that have not answered."""
        self.received: list[Received] = []
        """Their bundles: all are imported together, and stored before the agent is accepted."""
        self.answered: set[str] = set()
        """The Helens that have answered."""


class _Window:
    """The release requests to one other Helen."""

    __slots__ = ("idle", "in_flight", "waiting")

    def __init__(self) -> None:
        self.in_flight: set[str] = set()
        self.waiting: deque[tuple[str, _Joining | None]] = deque()
        self.idle: set[str] = set()
        """Waiting requests that hold back no agent; each agent is in it once."""


class Migration:
    def __init__(self, state: HelenState, replicas: Replicas, bundles: AgentBundles) -> None:
        self._state = state
        self._replicas = replicas
        self._bundles = bundles
        self._joining: dict[str, _Joining] = {}
        self._waiting_for_replicas: list[_Joining] = []
        """Agents that connected before the list of other Helens was known."""
        self._replicas_expected_until = -math.inf
        self._windows: dict[str, _Window] = {}
        self._verifying = 0
        self._cursor = 0
        self._drained: set[str] | None = None
        self.on_admit: Admit = lambda *_: None
        """Called to accept an agent."""

    @property
    def joining(self) -> int:
        return len(self._joining)

    def connection_of(self, identity: str) -> AgentConnection | None:
        """The connection on which this agent waits to be accepted."""
        joining = self._joining.get(identity)
        return None if joining is None or joining.connection.stage is ENDED else joining.connection

    def join(
        self, connection: AgentConnection, agent: Agent, version: int, software: str, now: Now, effects: Effects
    ) -> None:
        """Request an agent's state from all other Helens, then accept it."""
        joining = _Joining(connection, agent, version, software)
        before = self._joining.get(agent.identity)
        if before is not None:
            joining.received, joining.answered = before.received, before.answered
        self._joining[agent.identity] = joining
        connection.stage = JOINING
        self._state.disarm(connection)
        if version > VERSION_1 and now.mono < self._replicas_expected_until:
            joining.waiting = 1
            self._waiting_for_replicas.append(joining)
            self._state.timers.add((self._timed_out, joining), now.mono + MIGRATION_SECONDS)
            return
        names = self._replicas.live
        if version <= VERSION_1 or not names:
            # Version 1 has no reports: the agent need not wait.
            self._finish(joining, now, effects)
        else:
            self._state.timers.add((self._timed_out, joining), now.mono + MIGRATION_SECONDS)
        self._ask_all(joining, names, effects)

    def _ask_all(self, joining: _Joining, names: Sequence[str], effects: Effects) -> None:
        if joining.version > VERSION_1:
            joining.waiting = len(names)
        for name in names:
            self._request_agent(name, joining.agent.identity, joining if joining.waiting else None, effects)

    def expect(self, now: Now) -> None:
        """The list of other Helens will soon be known: agents that connect before wait for it."""
        self._replicas.expect(now)
        self._replicas_expected_until = now.mono + REPLICAS_EXPECTED_SECONDS

    def replicas_known(self, now: Now, effects: Effects) -> None:
        self._replicas_expected_until = -math.inf
        early, self._waiting_for_replicas = self._waiting_for_replicas, []
        for joining in early:
            if joining.waiting and self._joining.get(joining.agent.identity) is joining:
                names = self._replicas.live
                self._ask_all(joining, names, effects)
                if not names:
                    self._finish(joining, now, effects)

    def _timed_out(self, joining: _Joining, now: Now, effects: Effects) -> None:
        if joining.waiting > 0 and self._joining.get(joining.agent.identity) is joining:
            self._state.count("handovers_overdue")
            joining.waiting = 0
            self._finish(joining, now, effects)

    def _finish(self, joining: _Joining, now: Now, effects: Effects) -> None:
        """All Helens have answered, or the time is over. A bundle that was exported from here is imported again."""
        if joining.connection.stage is ENDED and not joining.received:
            # The agent did not stay, and no Helen handed it over: a bundle that was exported from here stays exported.
            self._admit(joining, now, effects)
        elif self._bundles.import_all(joining.agent.identity, joining.received, joining.answered, now, effects):
            # The agent may report only once the bundles are stored.
            effects.after_commit(partial(self._admit, joining))
        else:
            self._admit(joining, now, effects)

    def _admit(self, joining: _Joining, now: Now, effects: Effects) -> None:
        if self._joining.get(joining.agent.identity) is joining:
            del self._joining[joining.agent.identity]
        agents = self._state.agents
        agent = agents.enter(joining.agent.identity)
        if joining.connection.stage is not JOINING:
            if agent is not None and not agent.protocol and agent.identity not in self._joining:
                agents.release(agent)  # it disconnected before anything was known of it
        elif agent is None:
            self._state.refuse(joining.connection, "too many agents are known", now, effects)
        else:
            self.on_admit(joining.connection, agent, joining.version, joining.software, now, effects)

    def _request_agent(self, name: str, identity: str, joining: _Joining | None, effects: Effects) -> None:
        """Request an agent from another Helen, now or when there is room in her window."""
        window = self._windows.setdefault(name, _Window())
        if joining is None and (identity in window.in_flight or identity in window.idle):
            return
        if len(window.in_flight) >= WINDOW or identity in window.in_flight:
            window.waiting.append((identity, joining))
            if joining is None:
                window.idle.add(identity)
        else:
            self._ask(name, window, identity, joining, effects)

    def _ask(self, name: str, window: _Window, identity: str, joining: _Joining | None, effects: Effects) -> None:
        window.in_flight.add(identity)
        agent = self._state.agents.get(identity)
        body = agent_bundles.ReleaseBody(identity, self._state.settings.identity, () if agent is None else agent.merged)
        then = partial(self._on_released, name, window, identity, joining)
        self._state.count("handovers_asked")
        effects.ask(ForwardRequest(f"helen.{name}.release", to_json(body), MIGRATION_SECONDS, then))

    def _on_released(
        self,
        name: str,
        window: _Window,
        identity: str,
        joining: _Joining | None,
        value: Any,
        now: Now,
        effects: Effects,
    ) -> None:
        window.in_flight.discard(identity)
        self._replicas.note_answer(name, not isinstance(value, Refusal) or value.code != codes.NO_ANSWER)
        rows = self._read_released(value)
        still_waiting = joining is not None and joining.waiting > 0 and self._joining.get(identity) is joining
        answered = isinstance(value, bytes)
        if answered and not still_waiting:
            # A late answer: what was counted twice until now stays so.
            received = [] if rows is None else [(name, rows)]
            self._bundles.import_late(identity, received, name, now, effects)
        if joining is not None and still_waiting:
            if answered:
                joining.answered.add(name)
            if rows is not None:
                joining.received.append((name, rows))
            joining.waiting -= 1
            if not joining.waiting:
                self._finish(joining, now, effects)
        self._continue(name, window, effects)

    def _read_released(self, value: Any) -> AgentBundle | None:
        if not isinstance(value, bytes):
            return None
        try:
            return agent_bundles.decode_released(value).rows
        except agent_bundles.UNREADABLE:
            self._state.count("handovers_not_understood")
            return None

    def _continue(self, name: str, window: _Window, effects: Effects) -> None:
        """Send the requests that wait for room in the window."""
        while window.waiting and len(window.in_flight) < WINDOW:
            identity, joining = window.waiting.popleft()
            if joining is None:
                window.idle.discard(identity)
            if identity not in window.in_flight:
                self._ask(name, window, identity, joining, effects)
            elif joining is not None:
                window.waiting.append((identity, joining))
                break
        if not window.in_flight and not window.waiting:
            self._windows.pop(name, None)

    def has(self, requester: Requester, body: agent_bundles.HasBody, effects: Effects) -> None:
        """Answer which of these agents are connected here, and request their state from the Helen who asks."""
        held = [name for name in body.agents if self._is_here(name)]
        requester.reply(to_json(agent_bundles.Held(held)), effects)
        if body.sender in self._replicas.live:
            for name in held:
                if name not in self._joining:
                    self._request_agent(body.sender, name, None, effects)

    def _is_here(self, identity: str) -> bool:
        agent = self._state.agents.get(identity)
        return (agent is not None and agent.connection is not None) or self.connection_of(identity) is not None

    def release(self, requester: Requester, body: agent_bundles.ReleaseBody, effects: Effects) -> None:
        """Another Helen says that an agent is connected to her."""
        if not is_identity(body.to) or body.to == self._state.settings.identity:
            raise Refusal(codes.MALFORMED, "`to` must be the identity of another Helen")
        migrated = self._bundles.moved
        moved = migrated.get(body.agent)
        if moved is not None and moved.bundle.id in body.merged:
            migrated.confirm(body.agent, effects)
            moved = None
        if moved is None and not self._knows(body.agent):
            requester.reply(to_json(agent_bundles.Released()), effects)
            return
        if self._verifying >= MAX_VERIFYING:
            raise Refusal(codes.TOO_MANY, "too many agents are being handed over")
        # Any client of the network can send this request, so the named Helen must confirm it.
        self._verifying += 1
        then, question = partial(self._on_verified, requester, body), to_json(agent_bundles.HasBody([body.agent]))
        effects.ask(ForwardRequest(f"helen.{body.to}.has", question, VERIFY_SECONDS, then))

    def _knows(self, identity: str) -> bool:
        agent = self._state.agents.get(identity)
        return (agent is not None and agent.protocol > 0) or identity in self._joining

    def _on_verified(
        self, requester: Requester, body: agent_bundles.ReleaseBody, value: Any, now: Now, effects: Effects
    ) -> None:
        self._verifying -= 1
        if body.agent not in agent_bundles.held_of(value):
            self._state.count("handovers_refused")
            requester.refuse(codes.NOT_ALLOWED, f"{body.to} does not confirm that it has {body.agent}", effects)
            return
        requester.promise(
            to_json(agent_bundles.Released(self._release_agent(body.agent, body.to, now, effects))), effects
        )

    def _release_agent(self, identity: str, to: str, now: Now, effects: Effects) -> AgentBundle | None:
        """Disconnect an agent and export its bundle."""
        state = self._state
        joining = self._joining.pop(identity, None)
        if joining is not None:
            self._end(joining.connection, identity, to, now, effects)
            self._bundles.import_all(identity, joining.received, joining.answered, now, effects)
        agent = state.agents.get(identity)
        if agent is not None and agent.connection is not None:
            self._bundles.note_possible_duplicate(agent, to, now, effects)
            self._end(agent.connection, identity, to, now, effects)
        if self._drained is not None:
            self._drained.discard(identity)
        return self._bundles.export(identity, to, now, effects)

    def _end(self, connection: AgentConnection, identity: str, to: str, now: Now, effects: Effects) -> None:
        if connection.stage is not ENDED:
            connection.send(Error(f"{identity} is connected to {to} now"), effects)
            self._state.drop(connection, LEFT, now, effects)

    def find_migrated(self, effects: Effects) -> None:
        """Ask other Helens for agents that are away, for bundles without confirmation, and for what is in doubt."""
        state = self._state
        names = self._replicas.live
        for identity, helens in self._bundles.doubts():
            for name in helens.intersection(names) if self._is_here(identity) else ():
                self._request_agent(name, identity, None, effects)
        away = [
            agent.identity for agent in state.agents.by_identity.values() if agent.connection is None and agent.protocol
        ]
        away += self._bundles.moved.offered()
        if not names or not away:
            return
        start = self._cursor if self._cursor < len(away) else 0
        pages = [away[at : at + agent_bundles.PAGE] for at in range(start, len(away), agent_bundles.PAGE)][:MAX_PAGES]
        self._cursor = start + len(pages) * agent_bundles.PAGE
        for page in pages:
            body = to_json(agent_bundles.HasBody(page, state.settings.identity))
            then = partial(self._on_held, frozenset(page))
            for name in names:
                effects.ask(ForwardRequest(f"helen.{name}.has", body, HAS_SECONDS, then))

    def _on_held(self, requested: frozenset[str], value: Any, now: Now, _effects: Effects) -> None:
        """She will request these agents; until then they are not reported as missing."""
        for identity in agent_bundles.held_of(value):
            agent = self._state.agents.get(identity) if identity in requested else None
            if agent is not None and agent.connection is None:
                agent.elsewhere_until = now.mono + ELSEWHERE_SECONDS

    def drain(self, identities: set[str]) -> None:
        """Remember the agents that were redirected for a stop."""
        self._drained = identities

    @property
    def undrained(self) -> int:
        """Redirected agents that no other Helen has requested."""
        return len(self._drained or ())
