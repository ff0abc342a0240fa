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
from scale0.monitoring.helen.core.agent_bundles import AgentBundles, Received
from scale0.monitoring.helen.core.agent_connection import ENDED, HOLDING, AgentConnection
from scale0.monitoring.helen.core.agents import Agent
from scale0.monitoring.helen.core.migrated_agents import AgentBundle
from scale0.monitoring.helen.core.migration_messages import (
    PAGE,
    UNREADABLE,
    HasBody,
    Held,
    ReleaseBody,
    Released,
    decode_released,
    held_of,
    to_json,
)
from scale0.monitoring.helen.core.pending_requests import ForwardRequest, Requester
from scale0.monitoring.helen.core.replicas import Replicas
from scale0.monitoring.helen.core.state import LEFT, HelenState
from scale0.monitoring.protocol.messages import VERSION_1, Error
from scale0.storage.check_rows import ReadAgents

HANDOVER_SECONDS: Final = 2.0
"""How long an agent waits for what other Helens know of it."""
EARLY_SECONDS: Final = 5.0
"""How long after her start a Helen waits to hear who else is there."""
VERIFY_SECONDS: Final = 1.0
"""How long a Helen who wants an agent may take to say that it is there."""
HAS_SECONDS: Final = 5.0
ELSEWHERE_SECONDS: Final = 60.0
"""How long it is believed that another Helen has an agent: several times as long as it takes to ask again."""
WINDOW: Final = 100
"""Agents that one other Helen is asked for at once; the rest wait for her answers."""
MAX_VERIFIED: Final = 1_000
"""Requests of other Helens that wait for such an answer."""
MAX_PAGES: Final = 20
"""Of these questions at once; the rest come next time."""

Admit = Callable[[AgentConnection, Agent, int, str, Now, Effects], None]


class _Joining:
    """An agent whose hello was good and who is not accepted yet."""

    __slots__ = ("agent", "line", "received", "software", "version", "waiting")

    def __init__(self, line: AgentConnection, agent: Agent, version: int, software: str) -> None:
        self.line = line
        self.agent = agent
        self.version = version
        self.software = software
        self.waiting = 0
        """Other Helens that have not answered."""
        self.received: list[Received] = []
        """What they answered: it counts once all of it is there, and is stored before the agent is accepted."""


class _Window:
    """What one other Helen is asked for."""

    __slots__ = ("busy", "idle", "waiting")

    def __init__(self) -> None:
        self.busy: set[str] = set()
        self.waiting: deque[tuple[str, _Joining | None]] = deque()
        self.idle: set[str] = set()
        """Of those who wait, the ones for whom nobody is held back: once each, however often somebody names them."""


class Migration:
    """Agents on their way."""

    __slots__ = (
        *("_cursor", "_drained", "_early", "_early_until", "_joining", "_keeping", "_siblings", "_state", "_verified"),
        *("_windows", "admit"),
    )

    def __init__(self, state: HelenState, siblings: Replicas, keeping: AgentBundles) -> None:
        self._state = state
        self._siblings = siblings
        self._keeping = keeping
        self._joining: dict[str, _Joining] = {}
        self._early: list[_Joining] = []
        """Agents that came before it was known who else is a Helen here."""
        self._early_until = -math.inf
        self._windows: dict[str, _Window] = {}
        self._verified = 0
        self._cursor = 0
        self._drained: set[str] | None = None
        self.admit: Admit = lambda *_: None
        """Takes in an agent for good."""

    @property
    def joining(self) -> int:
        """Agents that are not accepted yet."""
        return len(self._joining)

    def line_of(self, identity: str) -> AgentConnection | None:
        """The connection on which this agent waits to be accepted."""
        joining = self._joining.get(identity)
        return None if joining is None or joining.line.stage is ENDED else joining.line

    # A hello.

    def join(self, line: AgentConnection, agent: Agent, version: int, software: str, now: Now, step: Effects) -> None:
        """An agent comes: ask who else knows it, then take it in."""
        joining = _Joining(line, agent, version, software)
        before = self._joining.get(agent.identity)
        if before is not None:
            joining.received = before.received
        self._joining[agent.identity] = joining
        line.stage = HOLDING
        self._state.disarm(line)
        if version > VERSION_1 and now.mono < self._early_until:
            joining.waiting = 1
            self._early.append(joining)
            self._state.timers.add((self._overdue, joining), now.mono + HANDOVER_SECONDS)
            return
        names = self._siblings.live
        if version <= VERSION_1 or not names:
            # Version 1 reports nothing: it need not wait.
            self._finish(joining, now, step)
        else:
            self._state.timers.add((self._overdue, joining), now.mono + HANDOVER_SECONDS)
        self._ask_all(joining, names, step)

    def _ask_all(self, joining: _Joining, names: Sequence[str], step: Effects) -> None:
        if joining.version > VERSION_1:
            joining.waiting = len(names)
        for name in names:
            self._want(name, joining.agent.identity, joining if joining.waiting else None, step)

    def expect(self, now: Now) -> None:
        """She has just started, and will soon be told who else is there: who comes before waits for that."""
        self._early_until = now.mono + EARLY_SECONDS

    def learnt(self, now: Now, step: Effects) -> None:
        """It is known who else is there."""
        self._early_until = -math.inf
        early, self._early = self._early, []
        for joining in early:
            if joining.waiting and self._joining.get(joining.agent.identity) is joining:
                names = self._siblings.live
                self._ask_all(joining, names, step)
                if not names:
                    self._finish(joining, now, step)

    def _overdue(self, joining: _Joining, now: Now, step: Effects) -> None:
        if joining.waiting > 0 and self._joining.get(joining.agent.identity) is joining:
            self._state.count("handovers_overdue")
            joining.waiting = 0
            self._finish(joining, now, step)

    def _finish(self, joining: _Joining, now: Now, step: Effects) -> None:
        """Whoever would answer has. What went from here itself and is nowhere else comes back, too."""
        if joining.line.stage is ENDED and not joining.received:
            # It did not stay, and nobody let it go to us: what went from here is still elsewhere.
            self._let_in(joining, now, step)
        elif self._keeping.take_all(joining.agent.identity, joining.received, now, step):
            # The answer comes behind this turn's writes: then they are on disk, and only then reports may come.
            step.ask(StoreQuery(ReadAgents("", 1), lambda _rows, later, out: self._let_in(joining, later, out)))
        else:
            self._let_in(joining, now, step)

    def _let_in(self, joining: _Joining, now: Now, step: Effects) -> None:
        if self._joining.get(joining.agent.identity) is joining:
            del self._joining[joining.agent.identity]
        agents = self._state.agents
        agent = agents.enter(joining.agent.identity)
        if joining.line.stage is not HOLDING:
            if agent is not None and not agent.protocol and agent.identity not in self._joining:
                agents.release(agent)  # it went before anything was known of it
        elif agent is None:
            self._state.refuse(joining.line, "too many agents are known here", now, step)
        else:
            self.admit(joining.line, agent, joining.version, joining.software, now, step)

    # What others know.

    def _want(self, name: str, identity: str, joining: _Joining | None, step: Effects) -> None:
        """Ask another Helen for an agent."""
        window = self._windows.setdefault(name, _Window())
        if joining is None and (identity in window.busy or identity in window.idle):
            return
        if len(window.busy) >= WINDOW or identity in window.busy:
            window.waiting.append((identity, joining))
            if joining is None:
                window.idle.add(identity)
        else:
            self._ask(name, window, identity, joining, step)

    def _ask(self, name: str, window: _Window, identity: str, joining: _Joining | None, step: Effects) -> None:
        window.busy.add(identity)
        agent = self._state.agents.get(identity)
        body = ReleaseBody(identity, self._state.settings.identity, () if agent is None else agent.merged)

        def then(value: Any, now: Now, out: Effects) -> None:
            self._hear_released(name, window, identity, joining, value, now, out)

        self._state.count("handovers_asked")
        step.ask(ForwardRequest(f"helen.{name}.release", to_json(body), HANDOVER_SECONDS, then))

    def _hear_released(
        self, name: str, window: _Window, identity: str, joining: _Joining | None, value: Any, now: Now, step: Effects
    ) -> None:
        window.busy.discard(identity)
        self._siblings.hear_of(name, not isinstance(value, Refusal) or value.code != codes.NO_ANSWER)
        rows = self._read_released(value)
        waits = joining is not None and joining.waiting > 0 and self._joining.get(identity) is joining
        if rows is not None and not waits:
            # It comes late: what was counted twice until now stays so, and from here on nothing is.
            self._keeping.take_all(identity, [(name, rows)], now, step)
        if joining is not None and waits:
            if rows is not None:
                joining.received.append((name, rows))
            joining.waiting -= 1
            if not joining.waiting:
                self._finish(joining, now, step)
        self._go_on(name, window, step)

    def _read_released(self, value: Any) -> AgentBundle | None:
        if not isinstance(value, bytes):
            return None
        try:
            return decode_released(value).rows
        except UNREADABLE:
            self._state.count("handovers_not_understood")
            return None

    def _go_on(self, name: str, window: _Window, step: Effects) -> None:
        """Ask for those who wait for her answers."""
        while window.waiting and len(window.busy) < WINDOW:
            identity, joining = window.waiting.popleft()
            if joining is None:
                window.idle.discard(identity)
            if identity not in window.busy:
                self._ask(name, window, identity, joining, step)
            elif joining is not None:
                window.waiting.append((identity, joining))
                break
        if not window.busy and not window.waiting:
            self._windows.pop(name, None)

    # What others want.

    def has(self, asker: Requester, body: HasBody, step: Effects) -> None:
        """Which of these are here; whoever has something of theirs is asked for it."""
        held = [name for name in body.agents if self._is_here(name)]
        asker.reply(to_json(Held(held)), step)
        if body.sender in self._siblings.live:
            for name in held:
                if name not in self._joining:
                    self._want(body.sender, name, None, step)

    def _is_here(self, identity: str) -> bool:
        agent = self._state.agents.get(identity)
        return (agent is not None and agent.line is not None) or self.line_of(identity) is not None

    def release(self, asker: Requester, body: ReleaseBody, step: Effects) -> None:
        """Another Helen says that an agent is with her now."""
        if not is_identity(body.to) or body.to == self._state.settings.identity:
            raise Refusal(codes.MALFORMED, "to is the identity of another Helen")
        kept = self._keeping.moved
        moved = kept.get(body.agent)
        if moved is not None and moved.bundle.id in body.merged:
            kept.confirm(body.agent, step)
            moved = None
        if moved is None and not self._knows(body.agent):
            asker.reply(to_json(Released()), step)
            return
        if self._verified >= MAX_VERIFIED:
            raise Refusal(codes.TOO_MANY, "too many agents go at once")
        # Anybody on the network can send this request, and name anybody: so the one who is named is asked.
        self._verified += 1

        def then(value: Any, now: Now, out: Effects) -> None:
            self._verified -= 1
            self._hear_verified(asker, body, value, now, out)

        question = to_json(HasBody([body.agent]))
        step.ask(ForwardRequest(f"helen.{body.to}.has", question, VERIFY_SECONDS, then))

    def _knows(self, identity: str) -> bool:
        agent = self._state.agents.get(identity)
        return (agent is not None and agent.protocol > 0) or identity in self._joining

    def _hear_verified(self, asker: Requester, body: ReleaseBody, value: Any, now: Now, step: Effects) -> None:
        if body.agent not in held_of(value):
            self._state.count("handovers_refused")
            asker.refuse(codes.NOT_ALLOWED, f"{body.to} does not say that {body.agent} is there", step)
            return
        asker.promise(to_json(Released(self._let_go(body.agent, body.to, now, step))), step)

    def _let_go(self, identity: str, to: str, now: Now, step: Effects) -> AgentBundle | None:
        """It is another Helen's from here on; the answer is all that is known of it."""
        state = self._state
        joining = self._joining.pop(identity, None)
        if joining is not None:
            self._end(joining.line, identity, to, now, step)
            self._keeping.take_all(identity, joining.received, now, step)
        agent = state.agents.get(identity)
        if agent is not None and agent.line is not None:
            self._keeping.doubt(agent, to, now, step)
            self._end(agent.line, identity, to, now, step)
        if self._drained is not None:
            self._drained.discard(identity)
        return self._keeping.give(identity, to, now, step)

    def _end(self, line: AgentConnection, identity: str, to: str, now: Now, step: Effects) -> None:
        if line.stage is not ENDED:
            line.say(Error(f"{identity} is with {to} now"), step)
            self._state.drop(line, LEFT, now, step)

    # Those who went unnoticed.

    def look_around(self, step: Effects) -> None:
        """Ask the others for those who are away, and for what nobody has confirmed."""
        state = self._state
        names = self._siblings.live
        away = [agent.identity for agent in state.agents.by_identity.values() if agent.line is None and agent.protocol]
        away += self._keeping.moved.offered()
        if not names or not away:
            return
        start = self._cursor if self._cursor < len(away) else 0
        pages = [away[at : at + PAGE] for at in range(start, len(away), PAGE)][:MAX_PAGES]
        self._cursor = start + len(pages) * PAGE
        for page in pages:
            body = to_json(HasBody(page, state.settings.identity))
            asked = frozenset(page)

            def then(value: Any, now: Now, _step: Effects, asked: frozenset[str] = asked) -> None:
                self._hear_held(asked, value, now)

            for name in names:
                step.ask(ForwardRequest(f"helen.{name}.has", body, HAS_SECONDS, then))

    def _hear_held(self, asked: frozenset[str], value: Any, now: Now) -> None:
        """She will ask for these; until then they are not missed."""
        for identity in held_of(value):
            agent = self._state.agents.get(identity) if identity in asked else None
            if agent is not None and agent.line is None:
                agent.elsewhere_until = now.mono + ELSEWHERE_SECONDS

    # The end.

    def drain(self, identities: set[str]) -> None:
        """These were told to go: who of them has not arrived is `undrained`."""
        self._drained = identities

    @property
    def undrained(self) -> int:
        """Agents that were told to go and that no other Helen has asked for."""
        return len(self._drained or ())
