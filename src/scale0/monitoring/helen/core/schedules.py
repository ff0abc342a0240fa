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

    def push(self, connection: AgentConnection, now: Now, effects: Effects) -> None:
        """Send this agent its schedule, unless it has it."""
        agent, state = connection.agent, self._state
        if agent is None or not connection.reports or not state.evaluation.configured:
            # Until somebody says what there is to run, an agent goes on with what it knows.
            return
        body = state.evaluation.schedule_for(agent.identity, agent.labels)
        if body == connection.schedule:
            return
        if len(body) > MAX_BLOB_BYTES:
            state.count("schedules_too_long")
            return
        number = connection.issue()
        if number is None:
            state.refuse(connection, "this connection has used up its message ids", now, effects)
            return
        connection.schedule = body
        state.count("schedules_sent")
        connection.send(Schedule(number, body), effects)

    def change_all(self) -> None:
        """The configuration changed: look at every agent, some in each turn."""
        self._waiting = deque(connection for connection in self._state.connections.values() if connection.reports)

    def tick(self, now: Now, effects: Effects) -> None:
        """Some of those who wait."""
        for _ in range(min(MAX_PUSHES, self._state.evaluation.slice, len(self._waiting))):
            self.push(self._waiting.popleft(), now, effects)

    @property
    def has_waiting(self) -> bool:
        """There are some left for the next turn."""
        return bool(self._waiting)
