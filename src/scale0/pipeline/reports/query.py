"""Queries of reports: one manifest, one period, results as plain rows.

Foreign text is always a query parameter, never part of a query. A table that the warehouse does not have has no rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from scale0.pipeline import reading
from scale0.pipeline.reports.period import Period, period_of
from scale0.pipeline.time_ranges import DAY_US, to_time
from scale0.pipeline.warehouse.records import RESTATEMENTS, WarehouseDamaged, WarehouseError
from scale0.pipeline.warehouse.selection import has_grains
from scale0.pipeline.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from datetime import datetime

    import duckdb

    from scale0.pipeline.warehouse.records import Manifest

MAX_TRIES: Final = 5
"""How often all tables are opened again because a writer committed meanwhile."""
MONTH_US: Final = 30 * DAY_US
ALWAYS: Final = ("availability", "audit", RESTATEMENTS)
"""Tables that every report queries for its data quality."""

_NAMED: Final = re.compile(r"\$([a-z_]+)", re.ASCII)
"""The parameters of a query."""

Row = tuple[Any, ...]
Result = TypeVar("Result")


class Filters(msgspec.Struct, frozen=True):
    """Glob patterns; empty matches everything."""

    subject: str = ""
    service: str = ""
    method: str = ""
    agent: str = ""
    check: str = ""

    @property
    def any(self) -> bool:
        return any(msgspec.structs.astuple(self))


class ReportQuery(msgspec.Struct, frozen=True):
    from_us: int | None = None
    to_us: int | None = None
    last_us: int = MONTH_US
    """How far back from the end, if `from_us` is None."""
    filters: Filters = Filters()
    why: bool = False


class _Views(NamedTuple):
    tables: tuple[str, ...]
    since: datetime
    until: datetime
    covered: bool
    """Tables with grains show only the rows that make up the period."""


class ReportReader:
    def __init__(
        self, warehouse: Warehouse, manifest: Manifest, question: ReportQuery, tables: tuple[str, ...] = ()
    ) -> None:
        self.question = question
        """The current question: the period is fixed, the filters change from report to report."""
        self.manifest = manifest
        self.warehouse = warehouse
        first_us = min(manifest.chapters, default=manifest.horizon_us // DAY_US) * DAY_US
        self.first_us = first_us
        self.period: Period = period_of(
            question.from_us, question.to_us, question.last_us, first_us, manifest.horizon_us
        )
        self._shared = tuple(sorted(table for table in {*tables, *ALWAYS} if self.has(table)))
        """Opened together: a connection costs more than most queries. Tables with grains show the period's cover."""
        self._open: dict[_Views, duckdb.DuckDBPyConnection] = {}

    @property
    def filters(self) -> Filters:
        return self.question.filters

    def has(self, *tables: str) -> bool:
        return all(table in self.manifest.tables or table == "events" for table in tables)

    def rows(
        self,
        sql: str,
        tables: tuple[str, ...],
        since_us: int | None = None,
        until_us: int | None = None,
        **parameters: Any,
    ) -> list[Row]:
        """Query the parts that overlap [since, until), in all their grains; by default the period."""
        if not self.has(*tables):
            return []
        since, until = self._bounds(since_us, until_us)
        if set(tables) <= set(self._shared) and not any(self._has_grains(table) for table in tables):
            tables = self._shared
        return self._asked(sql, _Views(tables, since, until, tables is self._shared), parameters)

    def covered(self, sql: str, table: str, **parameters: Any) -> list[Row]:
        """Query the rows of a table with grains that make up the period, each second in one row."""
        if not self.has(table):
            return []
        tables = self._shared if table in self._shared else (table,)
        return self._asked(sql, _Views(tables, *self._bounds(), True), parameters)

    def _bounds(self, since_us: int | None = None, until_us: int | None = None) -> tuple[datetime, datetime]:
        end_us = self.period.to_us if until_us is None else until_us
        # Events at the horizon itself count, even at the start of an hour.
        until_us = end_us if end_us < self.period.horizon_us else self.period.horizon_us + 1
        return to_time(self.period.from_us if since_us is None else since_us), to_time(until_us)

    def _has_grains(self, table: str) -> bool:
        return table in self.manifest.tables and has_grains(self.manifest.tables[table])

    def _asked(self, sql: str, views: _Views, parameters: dict[str, Any]) -> list[Row]:
        connection = self._connected(views)
        wanted = set(_NAMED.findall(sql))
        used = {name: value for name, value in parameters.items() if name in wanted}
        import duckdb  # noqa: PLC0415  # it is an extra; who has no warehouse needs none

        try:
            found: list[Row] = connection.execute(sql, used).fetchall()
        except duckdb.IOException as error:
            raise OSError(str(error)) from error
        return found

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def _connected(self, views: _Views) -> duckdb.DuckDBPyConnection:
        if views not in self._open:
            self._open[views] = reading.open_duckdb(
                self.warehouse,
                tables=views.tables,
                since=views.since,
                until=views.until,
                cover=self.period.cover if views.covered else None,
                beside=next(iter(self._open.values()), None),
            )
            if self.warehouse.numbers()[-1] != self.manifest.number:
                raise Overtaken("the tables change too often; try again")
        return self._open[views]


class Overtaken(Exception):
    """A writer committed the next manifest while tables were opened."""


class NoTables(WarehouseError):
    """There is no warehouse, or it is empty."""


def with_reader(
    root: Path, question: ReportQuery, work: Callable[[ReportReader], Result], tables: tuple[str, ...] = ()
) -> Result:
    """Run `work`, which mostly queries these tables; again if they changed meanwhile, or an old file was deleted."""
    warehouse = Warehouse(root)
    for last_try in (*[False] * (MAX_TRIES - 1), True):
        manifest = warehouse.latest()
        if manifest is None or not manifest.chapters:
            raise NoTables(f"there are no tables in {root} yet")
        reader = ReportReader(warehouse, manifest, question, tables)
        try:
            return work(reader)
        except (Overtaken, OSError, WarehouseDamaged) as error:
            newest = warehouse.latest()
            if last_try or newest is None or newest.number == manifest.number:
                raise WarehouseDamaged(f"the tables of {root} cannot be read: {error}") from error
        finally:
            reader.close()
    raise AssertionError("the last attempt returns or raises")


CHECK_NAME: Final = "substr(subject, position('/' IN subject) + 1)"
"""A check's subject is `agent/check`: an agent's name has no slash, a check's may."""
AGENT_NAME: Final = "split_part(subject, '/', 1)"


def subject_condition(filters: Filters) -> tuple[str, dict[str, Any]]:
    """A SQL condition on (subject_kind, subject), and its parameters."""
    found: list[str] = ["true"]
    if filters.subject:
        found.append("subject GLOB $subject")
    if filters.service:
        found.append("subject_kind = 'service' AND subject GLOB $service")
    if filters.agent:
        found.append(f"subject_kind IN ('agent', 'check') AND {AGENT_NAME} GLOB $agent")
    if filters.check:
        found.append(f"subject_kind = 'check' AND (subject GLOB $check OR {CHECK_NAME} GLOB $check)")
    names = ("subject", "service", "agent", "check")
    return " AND ".join(f"({one})" for one in found), {name: getattr(filters, name) for name in names}


def known_subjects(reader: ReportReader, kinds: tuple[str, ...] = ()) -> tuple[str, ...]:
    rows = reader.rows(
        "SELECT DISTINCT subject FROM availability WHERE (len($kinds) = 0 OR subject_kind IN $kinds) ORDER BY subject",
        ("availability",),
        kinds=list(kinds),
    )
    return tuple(subject for (subject,) in rows)
