"""Agents that move between Helens: what is known of one goes where it is.

Lives here: `Migration`: asking the others at a hello, answering them, and finding those who went unnoticed. Never here:
what travels (`moved`, `watch_moves`, `handover_bodies`), or who may come in (`helen_greeting`). Invariants: an agent's
reports are taken by one Helen, unless the one who had it does not answer; she lets it go only to who says that it is
there; nothing is forgotten before somebody else has it, and what is handed over twice counts once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, StoreQuery
from scale0.kernel.errors import Refusal
from scale0.kernel.names import is_identity
from scale0.monitoring.helen.core.agent_bundles import (
    PAGE,
    UNREADABLE,
    AgentBundle,
    HasBody,
    Held,
    ReleaseBody,
    Released,
    decode_released,
    held_of,
    to_json,
)
from scale0.monitoring.helen.core.agent_connection import ENDED, JOINING, AgentConnection
from scale0.monitoring.helen.core.agents import Agent
from scale0.monitoring.helen.core.migrated_agents import AgentBundles, Received
from scale0.monitoring.helen.core.pending_requests import ForwardRequest, Requester
from scale0.monitoring.helen.core.replicas import Replicas
from scale0.monitoring.helen.core.state import LEFT, HelenState
from scale0.monitoring.protocol.messages import VERSION_1, Error
from scale0.storage.check_rows import ReadAgents

MIGRATION_SECONDS: Final = 2.0
"""How long an agent waits for what other Helens know of it."""
REPLICAS_EXPECTED_SECONDS: Final = 5.0
"""How long after her start a Helen waits to hear who else is there."""
VERIFY_SECONDS: Final = 1.0
"""How long a Helen who wants an agent may take to say that it is there."""
HAS_SECONDS: Final = 5.0
ELSEWHERE_SECONDS: Final = 60.0
"""How long it is believed that another Helen has an agent: several times as long as it takes to ask again."""
WINDOW: Final = 100
"""Agents that one other Helen is asked for at once; the rest wait for her answers."""
MAX_VERIFYING: Final = 1_000
"""Requests of other Helens that wait for such an answer."""
MAX_PAGES: Final = 20
"""Of these questions at once; the rest come next time."""

Admit = Callable[[AgentConnection, Agent, int, str, Now, Effects], None]


class _Joining:
    """An agent whose hello was good and who is not accepted yet."""

    __slots__ = ("agent", "connection", "received", "software", "version", "waiting")

    def __init__(self, connection: AgentConnection, agent: Agent, version: int, software: str) -> None:
        self.connection = connection
        self.agent = agent
        self.version = version
        self.software = software
        self.waiting = 0
        """Other Helens that have not answered."""
        self.received: list[Received] = []
        """What they answered: it counts once all of it is there, and is stored before the agent is accepted."""


class _Window:
    """What one other Helen is asked for."""

    __slots__ = ("idle", "in_flight", "waiting")

    def __init__(self) -> None:
        self.in_flight: set[str] = set()
        self.waiting: deque[tuple[str, _Joining | None]] = deque()
        self.idle: set[str] = set()
        """Of those who wait, the ones for whom nobody is held back: once each, however often somebody names them."""


class Migration:
    """Agents on their way."""

    __slots__ = (
        *(
            "_cursor",
            "_drained",
            "_waiting_for_replicas",
            "_replicas_expected_until",
            "_joining",
            "_bundles",
            "_replicas",
            "_state",
            "_verifying",
        ),
        *("_windows", "on_admit"),
    )

    def __init__(self, state: HelenState, replicas: Replicas, bundles: AgentBundles) -> None:
        self._state = state
        self._replicas = replicas
        self._bundles = bundles
        self._joining: dict[str, _Joining] = {}
        self._waiting_for_replicas: list[_Joining] = []
        """Agents that came before it was known who else is a Helen here."""
        self._replicas_expected_until = -math.inf
        self._windows: dict[str, _Window] = {}
        self._verifying = 0
        self._cursor = 0
        self._drained: set[str] | None = None
        self.on_admit: Admit = lambda *_: None
        """Takes in an agent for good."""

    @property
    def joining(self) -> int:
        """Agents that are not accepted yet."""
        return len(self._joining)

    def line_of(self, identity: str) -> AgentConnection | None:
        """The connection on which this agent waits to be accepted."""
        joining = self._joining.get(identity)
        return None if joining is None or joining.connection.stage is ENDED else joining.connection

    # A hello.

    def join(
        self, connection: AgentConnection, agent: Agent, version: int, software: str, now: Now, effects: Effects
    ) -> None:
        """An agent comes: ask who else knows it, then take it in."""
        joining = _Joining(connection, agent, version, software)
        before = self._joining.get(agent.identity)
        if before is not None:
            joining.received = before.received
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
            # Version 1 reports nothing: it need not wait.
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
        """She has just started, and will soon be told who else is there: who comes before waits for that."""
        self._replicas_expected_until = now.mono + REPLICAS_EXPECTED_SECONDS

    def replicas_known(self, now: Now, effects: Effects) -> None:
        """It is known who else is there."""
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
        """Whoever would answer has. What went from here itself and is nowhere else comes back, too."""
        if joining.connection.stage is ENDED and not joining.received:
            # It did not stay, and nobody let it go to us: what went from here is still elsewhere.
            self._admit(joining, now, effects)
        elif self._bundles.import_all(joining.agent.identity, joining.received, now, effects):
            # The answer comes behind this turn's writes: then they are on disk, and only then reports may come.
            effects.ask(StoreQuery(ReadAgents("", 1), lambda _rows, later, out: self._admit(joining, later, out)))
        else:
            self._admit(joining, now, effects)

    def _admit(self, joining: _Joining, now: Now, effects: Effects) -> None:
        if self._joining.get(joining.agent.identity) is joining:
            del self._joining[joining.agent.identity]
        agents = self._state.agents
        agent = agents.enter(joining.agent.identity)
        if joining.connection.stage is not JOINING:
            if agent is not None and not agent.protocol and agent.identity not in self._joining:
                agents.release(agent)  # it went before anything was known of it
        elif agent is None:
            self._state.refuse(joining.connection, "too many agents are known here", now, effects)
        else:
            self.on_admit(joining.connection, agent, joining.version, joining.software, now, effects)

    # What others know.

    def _request_agent(self, name: str, identity: str, joining: _Joining | None, effects: Effects) -> None:
        """Ask another Helen for an agent."""
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
        body = ReleaseBody(identity, self._state.settings.identity, () if agent is None else agent.merged)

        def then(value: Any, now: Now, out: Effects) -> None:
            self._on_released(name, window, identity, joining, value, now, out)

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
        if rows is not None and not still_waiting:
            # It comes late: what was counted twice until now stays so, and from here on nothing is.
            self._bundles.import_all(identity, [(name, rows)], now, effects)
        if joining is not None and still_waiting:
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
            return decode_released(value).rows
        except UNREADABLE:
            self._state.count("handovers_not_understood")
            return None

    def _continue(self, name: str, window: _Window, effects: Effects) -> None:
        """Ask for those who wait for her answers."""
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

    # What others want.

    def has(self, requester: Requester, body: HasBody, effects: Effects) -> None:
        """Which of these are here; whoever has something of theirs is asked for it."""
        held = [name for name in body.agents if self._is_here(name)]
        requester.reply(to_json(Held(held)), effects)
        if body.sender in self._replicas.live:
            for name in held:
                if name not in self._joining:
                    self._request_agent(body.sender, name, None, effects)

    def _is_here(self, identity: str) -> bool:
        agent = self._state.agents.get(identity)
        return (agent is not None and agent.connection is not None) or self.line_of(identity) is not None

    def release(self, requester: Requester, body: ReleaseBody, effects: Effects) -> None:
        """Another Helen says that an agent is with her now."""
        if not is_identity(body.to) or body.to == self._state.settings.identity:
            raise Refusal(codes.MALFORMED, "to is the identity of another Helen")
        stored = self._bundles.moved
        moved = stored.get(body.agent)
        if moved is not None and moved.bundle.id in body.merged:
            stored.confirm(body.agent, effects)
            moved = None
        if moved is None and not self._knows(body.agent):
            requester.reply(to_json(Released()), effects)
            return
        if self._verifying >= MAX_VERIFYING:
            raise Refusal(codes.TOO_MANY, "too many agents go at once")
        # Anybody on the network can send this request, and name anybody: so the one who is named is asked.
        self._verifying += 1

        def then(value: Any, now: Now, out: Effects) -> None:
            self._verifying -= 1
            self._on_verified(requester, body, value, now, out)

        question = to_json(HasBody([body.agent]))
        effects.ask(ForwardRequest(f"helen.{body.to}.has", question, VERIFY_SECONDS, then))

    def _knows(self, identity: str) -> bool:
        agent = self._state.agents.get(identity)
        return (agent is not None and agent.protocol > 0) or identity in self._joining

    def _on_verified(self, requester: Requester, body: ReleaseBody, value: Any, now: Now, effects: Effects) -> None:
        if body.agent not in held_of(value):
            self._state.count("handovers_refused")
            requester.refuse(codes.NOT_ALLOWED, f"{body.to} does not say that {body.agent} is there", effects)
            return
        requester.promise(to_json(Released(self._release_agent(body.agent, body.to, now, effects))), effects)

    def _release_agent(self, identity: str, to: str, now: Now, effects: Effects) -> AgentBundle | None:
        """It is another Helen's from here on; the answer is all that is known of it."""
        state = self._state
        joining = self._joining.pop(identity, None)
        if joining is not None:
            self._end(joining.connection, identity, to, now, effects)
            self._bundles.import_all(identity, joining.received, now, effects)
        agent = state.agents.get(identity)
        if agent is not None and agent.connection is not None:
            self._bundles.note_possible_duplicate(agent, to, now, effects)
            self._end(agent.connection, identity, to, now, effects)
        if self._drained is not None:
            self._drained.discard(identity)
        return self._bundles.export(identity, to, now, effects)

    def _end(self, connection: AgentConnection, identity: str, to: str, now: Now, effects: Effects) -> None:
        if connection.stage is not ENDED:
            connection.send(Error(f"{identity} is with {to} now"), effects)
            self._state.drop(connection, LEFT, now, effects)

    # Those who went unnoticed.

    def find_migrated(self, effects: Effects) -> None:
        """Ask the others for those who are away, and for what nobody has confirmed."""
        state = self._state
        names = self._replicas.live
        away = [
            agent.identity for agent in state.agents.by_identity.values() if agent.connection is None and agent.protocol
        ]
        away += self._bundles.moved.offered()
        if not names or not away:
            return
        start = self._cursor if self._cursor < len(away) else 0
        pages = [away[at : at + PAGE] for at in range(start, len(away), PAGE)][:MAX_PAGES]
        self._cursor = start + len(pages) * PAGE
        for page in pages:
            body = to_json(HasBody(page, state.settings.identity))
            pending = frozenset(page)

            def then(value: Any, now: Now, _step: Effects, pending: frozenset[str] = pending) -> None:
                self._on_held(pending, value, now)

            for name in names:
                effects.ask(ForwardRequest(f"helen.{name}.has", body, HAS_SECONDS, then))

    def _on_held(self, pending: frozenset[str], value: Any, now: Now) -> None:
        """She will ask for these; until then they are not missed."""
        for identity in held_of(value):
            agent = self._state.agents.get(identity) if identity in pending else None
            if agent is not None and agent.connection is None:
                agent.elsewhere_until = now.mono + ELSEWHERE_SECONDS

    # The end.

    def drain(self, identities: set[str]) -> None:
        """These were told to go: who of them has not arrived is `undrained`."""
        self._drained = identities

    @property
    def undrained(self) -> int:
        """Agents that were told to go and that no other Helen has asked for."""
        return len(self._drained or ())
