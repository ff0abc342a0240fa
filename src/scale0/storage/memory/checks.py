"""Agents, checks, incidents and notices in memory, for tests and the simulator; answers equal those of SQLite."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from scale0.storage.check_rows import (
    AgentRow,
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
from scale0.storage.interface import Handlers, dispatch
from scale0.storage.rows import bounded


class ChecksSnapshot(msgspec.Struct, frozen=True):
    """All rows, at one moment."""

    agents: dict[str, AgentRow] = {}
    states: dict[tuple[str, str], CheckStateRow] = {}
    spools: dict[tuple[str, str], SpoolRow] = {}
    incidents: dict[str, IncidentRow] = {}
    notices: dict[str, NoticeRow] = {}


class MemoryChecks:
    """The rows that one MemoryStore keeps for a Helen."""

    __slots__ = ("agents", "incidents", "notices", "spools", "states")

    def __init__(self, start: ChecksSnapshot) -> None:
        self.agents = dict(start.agents)
        self.states = dict(start.states)
        self.spools = dict(start.spools)
        self.incidents = dict(start.incidents)
        self.notices = dict(start.notices)

    def snapshot(self) -> ChecksSnapshot:
        """A copy; later writes do not change it."""
        return ChecksSnapshot(
            **{name: dict(getattr(self, name)) for name in ChecksSnapshot.__struct_fields__},
        )

    def apply(self, writes: Iterable[CheckWrite]) -> None:
        """Apply all writes in their order; none can fail."""
        for write in writes:
            dispatch(_WRITES, self, write)

    def sweep(self, write: SweepIncidents) -> None:
        closed = [
            (row.closed_us, row.id)
            for row in self.incidents.values()
            if row.closed_us is not None and row.closed_us <= write.before_us
        ]
        for _, id_ in sorted(closed)[: bounded(write.limit)]:
            del self.incidents[id_]

    def newest_incidents(self, query: ReadIncidents) -> tuple[IncidentRow, ...]:
        rows = [
            row
            for row in self.incidents.values()
            if (not query.open_only or row.closed_us is None)
            and (query.before_us is None or (row.opened_us, row.id) < (query.before_us, query.before_id))
        ]
        rows.sort(key=lambda row: (row.opened_us, row.id), reverse=True)
        return tuple(rows[: bounded(query.limit)])


def _put(table: str, row: Any, *key: str) -> Callable[[MemoryChecks, Any], None]:
    def put(checks: MemoryChecks, write: Any) -> None:
        getattr(checks, table)[_key(write, key)] = row(*msgspec.structs.astuple(write))

    return put


def _drop(table: str, *key: str) -> Callable[[MemoryChecks, Any], None]:
    def drop(checks: MemoryChecks, write: Any) -> None:
        getattr(checks, table).pop(_key(write, key), None)

    return drop


def _page(table: str, *after: str) -> Callable[[MemoryChecks, Any], tuple[Any, ...]]:
    def page(checks: MemoryChecks, query: Any) -> tuple[Any, ...]:
        rows = getattr(checks, table)
        first = _key(query, after)
        return tuple(rows[key] for key in sorted(key for key in rows if key > first)[: bounded(query.limit)])

    return page


def _key(item: Any, names: tuple[str, ...]) -> Any:
    values = tuple(getattr(item, name) for name in names)
    return values if len(values) > 1 else values[0]


_WRITES: Final[Handlers] = {
    PutAgent: _put("agents", AgentRow, "identity"),
    DropAgent: _drop("agents", "identity"),
    PutCheckState: _put("states", CheckStateRow, "agent", "check"),
    DropCheckState: _drop("states", "agent", "check"),
    PutSpool: _put("spools", SpoolRow, "agent", "spool"),
    DropSpool: _drop("spools", "agent", "spool"),
    PutIncident: _put("incidents", IncidentRow, "id"),
    SweepIncidents: MemoryChecks.sweep,
    PutNotice: _put("notices", NoticeRow, "id"),
    DropNotice: _drop("notices", "id"),
}

CHECK_ANSWERS: Final[Handlers] = {
    ReadAgents: _page("agents", "after"),
    ReadCheckStates: _page("states", "after_agent", "after_check"),
    ReadSpools: _page("spools", "after_agent", "after_spool"),
    ReadNotices: _page("notices", "after"),
    ReadIncidents: MemoryChecks.newest_incidents,
}
