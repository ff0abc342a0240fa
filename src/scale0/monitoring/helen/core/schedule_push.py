"""The schedules of agents: sent after hello and after each change.

A connected version 2 agent has its current schedule a few turns after a change. An equal schedule is not sent again on
the same connection.
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
"""Schedules that are sent in one turn after a change of the configuration."""


class Schedules:
    def __init__(self, state: HelenState) -> None:
        self._state = state
        self._waiting: deque[AgentConnection] = deque()

    def push(self, connection: AgentConnection, now: Now, effects: Effects) -> None:
        agent, state = connection.agent, self._state
        if agent is None or not connection.reports or not state.evaluation.configured:
            # Without a configuration, agents keep the schedules that they have.
            return
        body = state.evaluation.schedule_for(agent.identity, agent.labels)
        if body == connection.schedule:
            return
        if len(body) > MAX_BLOB_BYTES:
            state.count("schedules_too_long")
            return
        number = connection.issue()
        if number is None:
            state.refuse(connection, "this connection has used all its message ids", now, effects)
            return
        connection.schedule = body
        state.count("schedules_sent")
        connection.send(Schedule(number, body), effects)

    def change_all(self) -> None:
        """The configuration changed: check the schedule of each agent, some in each turn."""
        self._waiting = deque(connection for connection in self._state.connections.values() if connection.reports)

    def tick(self, now: Now, effects: Effects) -> None:
        for _ in range(min(MAX_PUSHES, self._state.evaluation.slice, len(self._waiting))):
            self.push(self._waiting.popleft(), now, effects)

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)
