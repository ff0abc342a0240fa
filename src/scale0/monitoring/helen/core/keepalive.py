"""Is an agent there? The one check that Helen runs herself: `equus.alive`.

Lives here: `Keepalive`, which goes round all known agents once in each interval. Never here: what follows from a result
(Watch). Invariants: a round costs the same at any time, and one place in a list per agent; nobody is judged by Helen's
own absence: after a start or a sleep agents get the time that they need to come back; who is forgotten, revoked or with
another Helen is not judged.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from typing import Final

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.monitoring.agent.core.session import MAX_BACKOFF_SECONDS
from scale0.monitoring.helen.core.agents import Agent
from scale0.monitoring.helen.core.check_rules import CompiledCheck
from scale0.monitoring.helen.core.evaluation import IncomingResult
from scale0.monitoring.helen.core.state import HelenState
from scale0.monitoring.protocol.results import CRITICAL, OK, CheckFinding

GRACE_SECONDS: Final = 2 * MAX_BACKOFF_SECONDS + 30.0
"""So long nobody is missed after Helen started or slept: an agent waits for at most MAX_BACKOFF_SECONDS between two
attempts, and the first may fail."""
SLEPT_SECONDS: Final = 5.0
"""A look that comes this much too late, or clocks that went apart this much: Helen slept."""
SETTLE_SECONDS: Final = 5.0
"""Who is away for less may be on its way to another Helen: it is looked at again after that."""
STRIDE_SECONDS: Final = 0.1
"""Agents whose time comes within it are looked at together."""
SLICE: Final = 500
"""Agents that are looked at in one turn: others wait for it."""


class _Round:
    """One definition, and how far its round has come."""

    __slots__ = ("at", "began", "definition", "next_at", "order")

    def __init__(self, definition: CompiledCheck, mono: float) -> None:
        self.definition = definition
        self.order: list[Agent] = []
        """Those who were known when the round began; whoever came since has its turn in the next one."""
        self.at = 0
        self.began = self.next_at = mono

    def due(self, mono: float) -> list[Agent]:
        """Whose time has come, some at a time; and when it goes on."""
        count = len(self.order)
        found: list[Agent] = []
        if self.at < count:
            stride = self.definition.interval / count
            upto = min(count, self.at + SLICE, int((mono - self.began) / stride) + 1)
            found = self.order[self.at : upto]
            self.at = max(self.at, upto)
        if len(found) == SLICE:
            self.next_at = mono  # it is behind: it goes on in the next turn
        else:
            part = self.at / count if self.at < count else 1.0
            self.next_at = max(mono + STRIDE_SECONDS, self.began + part * self.definition.interval)
        return found

    def shift(self, mono: float) -> None:
        """Time was lost: go on from here, and make up for nothing."""
        self.began += mono - self.next_at
        self.next_at = mono


class Keepalive:
    """Goes round."""

    __slots__ = ("_again", "_definitions", "_judges_from", "_lead", "_rounds", "_started", "_state")

    def __init__(self, state: HelenState) -> None:
        self._state = state
        self._definitions: tuple[CompiledCheck, ...] = ()
        self._rounds: list[_Round] = []
        self._again: deque[tuple[float, str, str]] = deque()
        """When to look again at whom for which check: always the same time later, so in order."""
        self._judges_from = 0.0
        self._lead: float | None = None
        """By how much the wall clock is ahead of the other one."""
        self._started = 0.0

    def start(self, now: Now) -> None:
        """Nobody is missed yet."""
        self._started = now.wall
        self._judges_from = now.mono + GRACE_SECONDS

    def tick(self, now: Now, step: Effects) -> None:
        """Look at those whose time has come."""
        if self._state.watch.alive_checks is not self._definitions:
            self._configure(now)
        if not self._rounds:
            return
        self._notice_sleep(now)
        for one in self._rounds:
            if now.mono >= one.next_at:
                self._go_on(one, now, step)
        while self._again and self._again[0][0] <= now.mono:
            _, identity, check = self._again.popleft()
            agent = self._state.agents.get(identity)
            if agent is not None and any(one.definition.name == check for one in self._rounds):
                self._look(agent, check, now, step)

    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        if self._state.watch.alive_checks is not self._definitions:
            return 0.0
        when = min((one.next_at for one in self._rounds), default=None)
        return when if when is None or not self._again else min(when, self._again[0][0])

    def look_at(self, agent: Agent, check: str, ref: str, now: Now, step: Effects) -> CheckFinding | None:
        """Look at an agent because somebody asks; None: the check is none of these, or there is nothing to say."""
        definition = self._state.watch.selects(agent.identity, agent.labels, check)
        if definition is None or not definition.alive:
            return None
        finding = self._find(agent, now)
        if finding is not None:
            self._take(agent, check, finding, ref, now, step)
        return finding

    def _configure(self, now: Now) -> None:
        """Other definitions: those that stay as they are go on where they were."""
        self._definitions = self._state.watch.alive_checks
        kept = {(one.definition.name, one.definition.interval): one for one in self._rounds}
        rounds = []
        for definition in self._definitions:
            one = kept.get((definition.name, definition.interval)) or _Round(definition, now.mono)
            one.definition = definition
            rounds.append(one)
        self._rounds = rounds

    def _notice_sleep(self, now: Now) -> None:
        lead = now.wall - now.mono
        late = now.mono - min(one.next_at for one in self._rounds)
        if late > SLEPT_SECONDS or (self._lead is not None and abs(lead - self._lead) > SLEPT_SECONDS):
            self._judges_from = max(self._judges_from, now.mono + GRACE_SECONDS)
            self._state.count("sleeps_noticed")
        self._lead = lead

    def _go_on(self, one: _Round, now: Now, step: Effects) -> None:
        if now.mono - one.next_at > SLEPT_SECONDS:
            one.shift(now.mono)
        if one.at >= len(one.order):
            one.order, one.at, one.began = list(self._state.agents.by_identity.values()), 0, now.mono
        known = self._state.agents.by_identity
        for agent in one.due(now.mono):
            if known.get(agent.identity) is agent:
                self._look(agent, one.definition.name, now, step)

    def _look(self, agent: Agent, check: str, now: Now, step: Effects) -> None:
        if self._state.watch.selects(agent.identity, agent.labels, check) is None:
            return
        if agent.line is None and agent.left is not None and 0.0 <= now.wall - agent.left < SETTLE_SECONDS:
            self._again.append((now.mono + SETTLE_SECONDS, agent.identity, check))
            return
        finding = self._find(agent, now)
        if finding is not None:
            ref = f"alive:{agent.identity}:{round(now.wall * 1_000)}"
            self._take(agent, check, finding, ref, now, step)

    def _find(self, agent: Agent, now: Now) -> CheckFinding | None:
        """What can be said of it; None: nothing."""
        if agent.line is not None:
            return CheckFinding(OK, f"connected since {_utc(agent.since)}")
        never = not agent.protocol
        if never or agent.revoked or now.mono < max(self._judges_from, agent.elsewhere_until):
            return None
        since = _utc(agent.left) if agent.left is not None else f"before {_utc(self._started)}"
        return CheckFinding(CRITICAL, f"not connected since {since}")

    def _take(self, agent: Agent, check: str, finding: CheckFinding, ref: str, now: Now, step: Effects) -> None:
        answered = IncomingResult(check, finding, ref, now.wall, True)
        self._state.watch.take(agent.identity, agent.labels, answered, now, step)


def _utc(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
