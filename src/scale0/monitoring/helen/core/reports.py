"""Reports and results: what agents found, on its way to Watch. The busiest part of Helen.

Lives here: `Reports`: what counts, under which name and time, and what is acknowledged. Never here: what follows from
a result (Watch), or which word may come (`helen_line`). Invariants: a report counts once; it is acknowledged by a
promise of the turn that stored it, or after it; what happened never lies in the future.
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
from scale0.monitoring.helen.core.schedules import Schedules
from scale0.monitoring.helen.core.state import AGENT, HelenState
from scale0.monitoring.protocol.messages import Report, Result
from scale0.monitoring.protocol.results import AGENT_REPORT, ReportedResult, read_result, write_result

MAX_AGE_SECONDS: Final = 30 * 86_400.0
"""No agent keeps a result for longer: a time before that is a wrong clock's, and then it counts as of now."""


class Reports:
    """Takes what agents found."""

    __slots__ = ("_counts", "_described", "_schedules", "_state")

    def __init__(self, state: HelenState, schedules: Schedules) -> None:
        self._state = state
        self._schedules = schedules
        self._counts = state.counts
        self._described: dict[AgentConnection, tuple[ReportedResult, float] | None] = {}
        """Who spoke of itself in this turn; and what it said last, if that was more than once."""
        for name in ("reports", "reports_repeated", "results", "results_late"):
            self._counts[name] = 0

    def report(self, connection: AgentConnection, message: Report, now: Now, effects: Effects) -> None:
        """A report of an agent that was taken in and speaks version 2."""
        state, agent, name = self._state, connection.agent, message.name
        if agent is None:
            return
        if reason := connection.count_report(message):
            state.refuse(connection, reason, now, effects)
            return
        if not is_check_name(name):
            state.refuse(connection, "a check's name is too long or cannot be printed", now, effects)
            return
        # Should anything below fail by our own mistake, this report is not offered again and again: it counts as seen.
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
                # Other labels are other checks, and to choose these takes time: once now, and once at the end.
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
        """An agent says what it is labelled and which checks it can run."""
        if reported.labels is None:
            return
        checks = agent.checks
        if agent.describe(reported.labels, reported.checks, at, now):
            self._state.agents.change(agent)
            if agent.checks != checks:
                effects.record(ClientChanged(agent.identity, AGENT, agent.checks))
            self._schedules.push(connection, now, effects)

    def answer(self, connection: AgentConnection, message: Result, now: Now, effects: Effects) -> None:
        """The result of a check that Helen asked for."""
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
        """The turn ends: what agents said of themselves last counts."""
        if self._described:
            described, self._described = self._described, {}
            for connection, last in described.items():
                if last is not None and connection.agent is not None:
                    self._describe(connection.agent, connection, *last, now, effects)

    def settle(self, effects: Effects) -> None:
        """The turn ends: acknowledge what it stored, once for each connection."""
        acks = self._state.acks
        if acks:
            for connection in acks:
                effects.promise(connection, [b"ack %d\n" % connection.sequence])
            acks.clear()


def happened_at(reported: ReportedResult, now: Now) -> float:
    """When a reported check ended, by our wall clock, as well as it can be known."""
    wall = now.wall
    if reported.age is not None:
        at = wall - reported.age
    else:
        finding = reported.finding
        if reported.sent is None or finding.started is None or finding.seconds is None:
            return wall
        # Both by the agent's clock: only their difference is believed.
        at = wall - (reported.sent - finding.started - finding.seconds)
    return at if wall - MAX_AGE_SECONDS <= at <= wall else wall
