"""Agents, checks, incidents and notices in memory, for tests and the simulator; answers equal those of SQLite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec.structs import astuple

from scale0.storage.check_rows import CHECK_TABLES, TABLE_OF, CheckWrite, IncidentRow, ReadIncidents, SweepIncidents
from scale0.storage.interface import Handlers
from scale0.storage.rows import bounded

Tables = Mapping[str, dict[tuple[str, ...], Any]]
"""By the name of a table: its rows by key."""


class MemoryChecks:
    """The rows that one MemoryStore keeps for a Helen."""

    def __init__(self, start: Tables) -> None:
        self._tables = {table.name: dict(start.get(table.name, {})) for table in CHECK_TABLES}

    def snapshot(self) -> Tables:
        """A copy; later writes do not change it."""
        return {name: dict(rows) for name, rows in self._tables.items()}

    def apply(self, writes: Iterable[CheckWrite]) -> None:
        """Apply all writes in their order; none can fail."""
        for write in writes:
            if isinstance(write, SweepIncidents):
                self._sweep(write)
                continue
            table = TABLE_OF[type(write)]
            rows, key = self._tables[table.name], astuple(write)[: len(table.key)]
            if type(write) is table.row:
                rows[key] = write
            else:
                rows.pop(key, None)

    def _sweep(self, write: SweepIncidents) -> None:
        incidents = self._tables["incidents"]
        closed = [
            (row.closed_us, row.id)
            for row in incidents.values()
            if row.closed_us is not None and row.closed_us <= write.before_us
        ]
        for _, id_ in sorted(closed)[: bounded(write.limit)]:
            del incidents[(id_,)]

    def read_page(self, query: Any) -> tuple[Any, ...]:
        rows = self._tables[TABLE_OF[type(query)].name]
        *after, limit = astuple(query)
        first = tuple(after)
        return tuple(rows[key] for key in sorted(key for key in rows if key > first)[: bounded(limit)])

    def newest_incidents(self, query: ReadIncidents) -> tuple[IncidentRow, ...]:
        rows = [
            row
            for row in self._tables["incidents"].values()
            if (not query.open_only or row.closed_us is None)
            and (query.before_us is None or (row.opened_us, row.id) < (query.before_us, query.before_id))
        ]
        rows.sort(key=lambda row: (row.opened_us, row.id), reverse=True)
        return tuple(rows[: bounded(query.limit)])


CHECK_ANSWERS: Final[Handlers] = {
    **{table.page: MemoryChecks.read_page for table in CHECK_TABLES if table.page},
    ReadIncidents: MemoryChecks.newest_incidents,
}
