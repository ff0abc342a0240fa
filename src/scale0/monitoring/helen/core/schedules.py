"""Schedules: what each agent runs by itself, sent when it comes and when it changes.

Lives here: `Schedules`. Never here: which checks an agent gets (Watch knows). Invariants: an agent of version 2
that stays connected has, a few turns after any change, the schedule that Watch has for it, be it empty; an equal one is
not sent again on the same connection.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.monitoring.helen.core.agent_connection import AgentConnection
from scale0.monitoring.helen.core.state import HelenState
from scale0.monitoring.protocol.messages import MAX_BLOB_BYTES, Schedule

MAX_PUSHES: Final = 500
"""Schedules that are sent in one turn after a change: all agents share one change, and others wait for the turn."""


class Schedules:
    """Keeps agents' schedules as they should be."""

    __slots__ = ("_state", "_waiting")

    def __init__(self, state: HelenState) -> None:
        self._state = state
        self._waiting: deque[AgentConnection] = deque()

    def push(self, line: AgentConnection, now: Now, step: Effects) -> None:
        """Send this agent its schedule, unless it has it."""
        agent, state = line.agent, self._state
        if agent is None or not line.reports or not state.watch.configured:
            # Until somebody says what there is to run, an agent goes on with what it knows.
            return
        body = state.watch.schedule_for(agent.identity, agent.labels)
        if body == line.schedule:
            return
        if len(body) > MAX_BLOB_BYTES:
            state.count("schedules_too_long")
            return
        number = line.issue()
        if number is None:
            state.refuse(line, "this connection has used up its message ids", now, step)
            return
        line.schedule = body
        state.count("schedules_sent")
        line.say(Schedule(number, body), step)

    def change_all(self) -> None:
        """The configuration changed: look at every agent, some in each turn."""
        self._waiting = deque(line for line in self._state.lines.values() if line.reports)

    def tick(self, now: Now, step: Effects) -> None:
        """Some of those who wait."""
        for _ in range(min(MAX_PUSHES, self._state.watch.slice, len(self._waiting))):
            self.push(self._waiting.popleft(), now, step)

    @property
    def waits(self) -> bool:
        """There are some left for the next turn."""
        return bool(self._waiting)
