"""Reports and results of agents, on their way to the evaluation. This is the busiest part of Helen.

A report counts once. It is acknowledged after the turn that stored it. No result is dated in the future.
"""

from __future__ import annotations

from typing import Final

from scale0.history.events.checks import AgentLate
from scale0.history.events.clients import ClientChanged
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.monitoring.helen.core.agent_connection import AgentConnection
from scale0.monitoring.helen.core.agents import Agent, is_check_name
from scale0.monitoring.helen.core.deduplication import is_spool
from scale0.monitoring.helen.core.evaluation import IncomingResult
from scale0.monitoring.helen.core.schedule_push import Schedules
from scale0.monitoring.helen.core.state import AGENT, HelenState
from scale0.monitoring.protocol.messages import Report, Result
from scale0.monitoring.protocol.results import AGENT_REPORT, ReportedResult, read_result, write_result

MAX_AGE_SECONDS: Final = 30 * 86_400.0
"""No agent keeps a result for longer: an older time comes from a wrong clock, and the current time is used."""


class Reports:
    def __init__(self, state: HelenState, schedules: Schedules) -> None:
        self._state = state
        self._schedules = schedules
        self._counts = state.counts
        self._described: dict[AgentConnection, tuple[ReportedResult, float] | None] = {}
        """Agents that described themselves in this turn, with the last description if there was more than one."""
        for name in ("reports", "reports_repeated", "results", "results_late"):
            self._counts[name] = 0

    def report(self, connection: AgentConnection, message: Report, now: Now, effects: Effects) -> None:
        """A report of an accepted version 2 agent."""
        state, agent, name = self._state, connection.agent, message.name
        if agent is None:
            return
        if reason := connection.count_report(message):
            state.refuse(connection, reason, now, effects)
            return
        if not is_check_name(name):
            state.refuse(connection, "a check name must be printable, without spaces and not too long", now, effects)
            return
        # If anything below fails because of a bug, the report counts as seen: otherwise the agent would send it for
        # ever.
        state.acks[connection] = None
        reported = read_result(message.body)
        ref = ""
        if reported.n and is_spool(reported.spool):
            if not state.spools.add(agent.identity, reported.spool, reported.n, now):
                self._counts["reports_repeated"] += 1
                return
            ref = f"{reported.spool}:{reported.n}"
        self._counts["reports"] += 1
        at = happened_at(reported, now)
        if name == AGENT_REPORT:
            if connection in self._described:
                # New labels select new checks, which takes time: do it for the first description and for the last of a
                # turn.
                self._described[connection] = (reported, at)
            else:
                self._described[connection] = None
                self._describe(agent, connection, reported, at, now, effects)
            return
        answered = IncomingResult(name, reported.finding, ref, at, True)
        state.evaluation.process_result(agent.identity, agent.labels, answered, now, effects)

    def _describe(
        self, agent: Agent, connection: AgentConnection, reported: ReportedResult, at: float, now: Now, effects: Effects
    ) -> None:
        """An agent reports its labels and the checks that it can run."""
        if reported.labels is None:
            return
        checks = agent.checks
        agent.described_on = connection
        if agent.describe(reported.labels, reported.checks, at, now):
            self._state.agents.change(agent)
            if agent.checks != checks:
                effects.record(ClientChanged(agent.identity, AGENT, agent.checks))
            self._schedules.push(connection, now, effects)

    def answer(self, connection: AgentConnection, message: Result, now: Now, effects: Effects) -> None:
        """The result of a check that Helen requested."""
        state, agent = self._state, connection.agent
        if agent is None:
            return
        pending = connection.settle_result(message)
        if isinstance(pending, str):
            state.count("results_unknown")
            state.refuse(connection, pending, now, effects)
            return
        if pending.ended:
            self._counts["results_late"] += 1
            effects.record(AgentLate(identity=agent.identity, check=pending.check, ref=pending.ref))
            return
        self._counts["results"] += 1
        state.requests.close(pending)
        finding = read_result(message.body).finding
        answered = IncomingResult(pending.check, finding, pending.ref, now.wall, pending.scheduled)
        state.evaluation.process_result(agent.identity, agent.labels, answered, now, effects)
        pending.requester.promise(write_result(finding), effects)

    def settle_descriptions(self, now: Now, effects: Effects) -> None:
        """Apply the last description of each agent in this turn."""
        if self._described:
            described, self._described = self._described, {}
            for connection, last in described.items():
                if last is not None and connection.agent is not None:
                    self._describe(connection.agent, connection, *last, now, effects)

    def settle(self, effects: Effects) -> None:
        """Acknowledge the reports of this turn, once for each connection."""
        acks = self._state.acks
        if acks:
            for connection in acks:
                effects.promise(connection, [b"ack %d\n" % connection.sequence])
            acks.clear()


def happened_at(reported: ReportedResult, now: Now) -> float:
    """When a reported check ended, wall time here, as accurately as possible."""
    wall = now.wall
    if reported.age is not None:
        at = wall - reported.age
    else:
        finding = reported.finding
        if reported.sent is None or finding.started is None or finding.seconds is None:
            return wall
        # Both are by the agent's clock: only their difference is used.
        at = wall - (reported.sent - finding.started - finding.seconds)
    return at if wall - MAX_AGE_SECONDS <= at <= wall else wall
