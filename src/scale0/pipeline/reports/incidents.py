"""The incidents report: what went down when, for how long, and what failed with it.

An incident is listed if it overlaps the period; an open one lasts until the horizon.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from scale0.pipeline.reports.availability import interval_tables
from scale0.pipeline.reports.data_quality import document
from scale0.pipeline.reports.formatting import counted, duration
from scale0.pipeline.reports.model import ReportColumn, ReportDocument, ReportTable, Stacks, stacked
from scale0.pipeline.reports.period import Period
from scale0.pipeline.reports.query import ReportReader, Row, known_subjects, subject_condition

TABLES: Final = ("incidents", "timeline")
MAX_NAMED: Final = 3
"""Correlated subjects named in a cell."""

COLUMNS: Final = (
    ReportColumn("subject", "Subject"),
    ReportColumn("subject_kind", "Kind"),
    ReportColumn("opened", "Opened", "time"),
    ReportColumn("closed", "Closed", "time"),
    ReportColumn("seconds", "For", "seconds"),
    ReportColumn("down_seconds", "Down", "seconds"),
    ReportColumn("worst_state", "Worst", detail=True),
    ReportColumn("flapping", "Flapping", "yes", detail=True),
    ReportColumn("also_failing", "Also failing", "count"),
    ReportColumn("also_failing_first", "Which", detail=True),
)


class IncidentLine(NamedTuple):
    subject_kind: str
    subject: str
    opened_us: int
    closed_us: int | None
    worst_state: str | None
    down_seconds: float
    flapping: bool | None
    also_failing: int
    also_failing_first: list[Any]


def incidents_of(reader: ReportReader) -> list[IncidentLine]:
    """All incidents that overlap the period, the newest first."""
    condition, names = subject_condition(reader.filters)
    rows = reader.rows(
        "SELECT subject_kind, subject, epoch_us(opened), epoch_us(closed), worst_state, down_seconds, flapping,"  # noqa: S608
        " also_failing, also_failing_first FROM incidents"
        f" WHERE opened < $until AND (closed IS NULL OR closed >= $since) AND {condition}"
        " ORDER BY opened DESC, subject_kind, subject",
        ("incidents",),
        # A row is in the hour of its end, which may be after the period.
        until_us=reader.period.horizon_us,
        **reader.period.bounds,
        **names,
    )
    return [IncidentLine(*row) for row in rows]


def report(reader: ReportReader) -> ReportDocument:
    found = incidents_of(reader)
    known: tuple[str, ...] = ()
    if not found and reader.filters.any:
        condition, names = subject_condition(reader.filters)
        is_there = reader.rows(
            f"SELECT 1 FROM availability WHERE {condition} LIMIT 1",  # noqa: S608
            ("availability",),
            **names,
        )
        known = () if is_there else known_subjects(reader)
    rows = tuple(_row(one, reader.period) for one in found)
    table = ReportTable("incidents", "Incidents, newest first", COLUMNS, rows, "nothing went down")
    return document(
        reader,
        "incidents",
        _summary(found, reader.period),
        (table, *interval_tables(reader)),
        reads=TABLES,
        plots=(_stacks(reader.period, found),) if found else (),
        found=bool(found),
        known=known,
    )


def lasted(one: IncidentLine, period: Period) -> float:
    """From its opening to its end, or to the horizon."""
    return ((period.horizon_us if one.closed_us is None else one.closed_us) - one.opened_us) / 1e6


def _row(one: IncidentLine, period: Period) -> Row:
    names = [_name(other) for other in one.also_failing_first or ()]
    shown = ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")
    return (
        *(one.subject, one.subject_kind, one.opened_us, one.closed_us, lasted(one, period), one.down_seconds),
        *(one.worst_state, bool(one.flapping), one.also_failing, shown),
    )


def _name(other: Any) -> str:
    return str(other["subject"]) if isinstance(other, dict) and "subject" in other else str(other)


def _stacks(period: Period, incidents: list[IncidentLine]) -> Stacks:
    kinds = tuple(sorted({one.subject_kind for one in incidents}))
    opened = [one for one in incidents if one.opened_us >= period.from_us]
    return stacked(
        f"Incidents opened by {period.unit}",
        f"The number of incidents of each kind of subject that opened in each {period.unit}.",
        kinds,
        period,
        (
            (one.opened_us // period.unit_us * period.unit_us, [int(one.subject_kind == kind) for kind in kinds])
            for one in opened
        ),
    )


def _summary(incidents: list[IncidentLine], period: Period) -> str:
    if not incidents:
        return "Nothing went down."
    still = sum(one.closed_us is None for one in incidents)
    longest = max(incidents, key=lambda one: lasted(one, period))
    return (
        f"{counted(len(incidents), 'incident')}, {still or 'none'} still open; the longest was"
        f" {longest.subject_kind} {longest.subject} for {duration(lasted(longest, period))}."
    )
