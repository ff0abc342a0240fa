"""Agents, checks, incidents and notices in memory: for tests and the simulated world.

Lives here: `MemoryChecks`. Never here: a file. Invariant: it answers as the SQLite twin does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from scale0.storage.check_rows import (
    AgentRow,
    CheckAnswer,
    CheckQuery,
    CheckStateRow,
    CheckWrite,
    DropAgent,
    DropCheckState,
    DropNotice,
    DropSpool,
    IncidentRow,
    NoticeRow,
    PutAgent,
    PutCheckState,
    PutIncident,
    PutNotice,
    PutSpool,
    ReadAgents,
    ReadCheckStates,
    ReadIncidents,
    ReadNotices,
    ReadSpools,
    SpoolRow,
    SweepIncidents,
)
from scale0.storage.rows import bounded

if TYPE_CHECKING:
    from collections.abc import Iterable


class ChecksSnapshot(msgspec.Struct, frozen=True):
    """All of it, at one moment."""

    agents: dict[str, AgentRow] = {}
    states: dict[tuple[str, str], CheckStateRow] = {}
    spools: dict[tuple[str, str], SpoolRow] = {}
    incidents: dict[str, IncidentRow] = {}
    notices: dict[str, NoticeRow] = {}


class MemoryChecks:
    """What one MemoryStore keeps for a Helen."""

    __slots__ = ("_agents", "_incidents", "_notices", "_spools", "_states")

    def __init__(self, start: ChecksSnapshot) -> None:
        self._agents = dict(start.agents)
        self._states = dict(start.states)
        self._spools = dict(start.spools)
        self._incidents = dict(start.incidents)
        self._notices = dict(start.notices)

    def snapshot(self) -> ChecksSnapshot:
        """All of it; later writes do not change it."""
        return ChecksSnapshot(
            agents=dict(self._agents),
            states=dict(self._states),
            spools=dict(self._spools),
            incidents=dict(self._incidents),
            notices=dict(self._notices),
        )

    def apply(self, writes: Iterable[CheckWrite]) -> None:
        """All of them in their order; none can fail."""
        for write in writes:
            self._apply(write)

    def _apply(self, write: CheckWrite) -> None:
        match write:
            case PutCheckState(agent, check, body):
                self._states[agent, check] = CheckStateRow(agent, check, body)
            case DropCheckState(agent, check):
                self._states.pop((agent, check), None)
            case PutSpool(agent, spool, seen, heard_us):
                self._spools[agent, spool] = SpoolRow(agent, spool, seen, heard_us)
            case DropSpool(agent, spool):
                self._spools.pop((agent, spool), None)
            case PutAgent(identity, body):
                self._agents[identity] = AgentRow(identity, body)
            case DropAgent(identity):
                self._agents.pop(identity, None)
            case PutIncident():
                self._incidents[write.id] = IncidentRow(*msgspec.structs.astuple(write))
            case SweepIncidents(before_us, limit):
                self._sweep(before_us, limit)
            case PutNotice(id_, body):
                self._notices[id_] = NoticeRow(id_, body)
            case DropNotice(id_):
                self._notices.pop(id_, None)

    def _sweep(self, before_us: int, limit: int) -> None:
        closed = [
            (row.closed_us, row.id)
            for row in self._incidents.values()
            if row.closed_us is not None and row.closed_us <= before_us
        ]
        for _, id_ in sorted(closed)[: bounded(limit)]:
            del self._incidents[id_]

    def answer(self, ask: CheckQuery) -> CheckAnswer:
        """As the SQLite twin says it."""
        match ask:
            case ReadAgents(after, limit):
                return _page(self._agents, after, limit)
            case ReadCheckStates(agent, check, limit):
                return _page(self._states, (agent, check), limit)
            case ReadSpools(agent, spool, limit):
                return _page(self._spools, (agent, spool), limit)
            case ReadNotices(after, limit):
                return _page(self._notices, after, limit)
            case ReadIncidents():
                return self._newest(ask)

    def _newest(self, ask: ReadIncidents) -> tuple[IncidentRow, ...]:
        rows = [
            row
            for row in self._incidents.values()
            if (not ask.open_only or row.closed_us is None)
            and (ask.before_us is None or (row.opened_us, row.id) < (ask.before_us, ask.before_id))
        ]
        rows.sort(key=lambda row: (row.opened_us, row.id), reverse=True)
        return tuple(rows[: bounded(ask.limit)])


def _page(table: dict[Any, Any], after: Any, limit: int) -> tuple[Any, ...]:
    keys = sorted(key for key in table if key > after)
    return tuple(table[key] for key in keys[: bounded(limit)])
