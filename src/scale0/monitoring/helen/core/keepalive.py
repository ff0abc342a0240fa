"""`equus.alive`, the check that Helen runs herself: is the agent connected?

Each definition goes through all known agents once per interval, evenly. Helen's own absence never counts against an
agent: after a start or a suspension, agents get the time to reconnect. Agents that are forgotten, revoked or with
another Helen get no result.
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
"""After a start or a suspension, no agent is missing for this long: an agent waits at most MAX_BACKOFF_SECONDS between
two attempts, and the first may fail."""
SLEEP_SECONDS: Final = 5.0
"""If a tick is this late, or the clocks differ by this much more than before, Helen's process was suspended."""
SETTLE_SECONDS: Final = 5.0
"""An agent that is away for a shorter time may be moving to another Helen: it is checked again later."""
BATCH_SECONDS: Final = 0.1
"""Agents that are due within this time are checked together."""
SLICE: Final = 500
"""Agents that are checked in one turn."""


class _Round:
    """One definition, and its progress through the agents."""

    __slots__ = ("agents", "definition", "next_at", "position", "started_at")

    def __init__(self, definition: CompiledCheck, mono: float) -> None:
        self.definition = definition
        self.agents: list[Agent] = []
        """The agents that were known when the round began; new agents are in the next round."""
        self.position = 0
        self.started_at = self.next_at = mono

    def due(self, mono: float) -> list[Agent]:
        """Take the agents that are due, and set when the round continues."""
        count = len(self.agents)
        found: list[Agent] = []
        if self.position < count:
            stride = self.definition.interval / count
            upto = min(count, self.position + SLICE, int((mono - self.started_at) / stride) + 1)
            found = self.agents[self.position : upto]
            self.position = max(self.position, upto)
        if len(found) == SLICE:
            self.next_at = mono  # it is behind and continues in the next turn
        else:
            part = self.position / count if self.position < count else 1.0
            self.next_at = max(mono + BATCH_SECONDS, self.started_at + part * self.definition.interval)
        return found

    def shift(self, mono: float) -> None:
        """Continue from now on, without catching up on lost time."""
        self.started_at += mono - self.next_at
        self.next_at = mono


class Keepalive:
    def __init__(self, state: HelenState) -> None:
        self._state = state
        self._definitions: tuple[CompiledCheck, ...] = ()
        self._rounds: list[_Round] = []
        self._recheck_later: deque[tuple[float, str, str]] = deque()
        """When to check which agent for which check again; the delay is constant, so the entries are in order."""
        self._judges_from = 0.0
        self._clock_offset: float | None = None
        """By how much the wall clock is ahead of the monotonic clock."""
        self._started = 0.0

    def start(self, now: Now) -> None:
        self._started = now.wall
        self._judges_from = now.mono + GRACE_SECONDS

    def tick(self, now: Now, effects: Effects) -> None:
        if self._state.evaluation.alive_checks is not self._definitions:
            self._configure(now)
        if not self._rounds:
            return
        self._detect_sleep(now)
        for one in self._rounds:
            if now.mono >= one.next_at:
                self._continue(one, now, effects)
        while self._recheck_later and self._recheck_later[0][0] <= now.mono:
            _, identity, check = self._recheck_later.popleft()
            agent = self._state.agents.get(identity)
            if agent is not None and any(one.definition.name == check for one in self._rounds):
                self._check(agent, check, now, effects)

    def deadline(self) -> float | None:
        if self._state.evaluation.alive_checks is not self._definitions:
            return 0.0
        when = min((one.next_at for one in self._rounds), default=None)
        return when if when is None or not self._recheck_later else min(when, self._recheck_later[0][0])

    def check_now(self, agent: Agent, check: str, ref: str, now: Now, effects: Effects) -> CheckFinding | None:
        """Check an agent on request; None: the check is not of this kind, or there is no result."""
        definition = self._state.evaluation.selects(agent.identity, agent.labels, check)
        if definition is None or not definition.alive:
            return None
        finding = self._finding(agent, now)
        if finding is not None:
            self._process(agent, check, finding, ref, now, effects)
        return finding

    def _configure(self, now: Now) -> None:
        """Use new definitions; rounds of unchanged ones continue."""
        self._definitions = self._state.evaluation.alive_checks
        stored = {(one.definition.name, one.definition.interval): one for one in self._rounds}
        rounds = []
        for definition in self._definitions:
            one = stored.get((definition.name, definition.interval)) or _Round(definition, now.mono)
            one.definition = definition
            rounds.append(one)
        self._rounds = rounds

    def _detect_sleep(self, now: Now) -> None:
        lead = now.wall - now.mono
        late = now.mono - min(one.next_at for one in self._rounds)
        if late > SLEEP_SECONDS or (self._clock_offset is not None and abs(lead - self._clock_offset) > SLEEP_SECONDS):
            self._judges_from = max(self._judges_from, now.mono + GRACE_SECONDS)
            self._state.count("sleeps_noticed")
        self._clock_offset = lead

    def _continue(self, one: _Round, now: Now, effects: Effects) -> None:
        if now.mono - one.next_at > SLEEP_SECONDS:
            one.shift(now.mono)
        if one.position >= len(one.agents):
            one.agents, one.position, one.started_at = list(self._state.agents.by_identity.values()), 0, now.mono
        known = self._state.agents.by_identity
        for agent in one.due(now.mono):
            if known.get(agent.identity) is agent:
                self._check(agent, one.definition.name, now, effects)

    def _check(self, agent: Agent, check: str, now: Now, effects: Effects) -> None:
        if self._state.evaluation.selects(agent.identity, agent.labels, check) is None:
            return
        if agent.connection is None and agent.left is not None and 0.0 <= now.wall - agent.left < SETTLE_SECONDS:
            self._recheck_later.append((now.mono + SETTLE_SECONDS, agent.identity, check))
            return
        finding = self._finding(agent, now)
        if finding is not None:
            ref = f"alive:{agent.identity}:{round(now.wall * 1_000)}"
            self._process(agent, check, finding, ref, now, effects)

    def _finding(self, agent: Agent, now: Now) -> CheckFinding | None:
        """The result for an agent; None: there is none."""
        if agent.connection is not None:
            return CheckFinding(OK, f"connected since {_utc(agent.since)}")
        never = not agent.protocol
        if never or agent.revoked or now.mono < max(self._judges_from, agent.elsewhere_until):
            return None
        if not self._state.evaluation.decides(agent.identity, now):
            return None  # another Helen may have it
        since = _utc(agent.left) if agent.left is not None else f"before {_utc(self._started)}"
        return CheckFinding(CRITICAL, f"not connected since {since}")

    def _process(self, agent: Agent, check: str, finding: CheckFinding, ref: str, now: Now, effects: Effects) -> None:
        answered = IncomingResult(check, finding, ref, now.wall, True)
        self._state.evaluation.process_result(agent.identity, agent.labels, answered, now, effects)


def _utc(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
