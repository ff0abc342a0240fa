"""The structure of a report: frozen data between the queries and the renderers.

Times are whole microseconds, durations are seconds, shares are between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from scale0.pipeline.reports.period import Period
from scale0.pipeline.time_ranges import to_time

Unit = Literal[
    "text", "count", "share", "availability", "seconds", "time", "number", "bytes", "change", "points", "yes"
]
"""`change` is a ratio minus one, `points` a difference of two shares. Availability is rounded down, never up."""


class ReportColumn(msgspec.Struct, frozen=True):
    name: str
    """In JSON and CSV; a unit is its last part."""
    head: str
    """For people."""
    unit: Unit = "text"
    detail: bool = False
    """Omitted where there is little space: on a terminal."""


class ReportTable(msgspec.Struct, frozen=True):
    """The most important row comes first."""

    name: str
    title: str
    columns: tuple[ReportColumn, ...]
    rows: tuple[tuple[Any, ...], ...]
    empty: str = "nothing"
    """Shown if there are no rows."""


class PlotLine(msgspec.Struct, frozen=True):
    """A value over time; None if it is unknown."""

    name: str
    points: tuple[tuple[int, float | None], ...]


class LinePlot(msgspec.Struct, frozen=True, tag_field="plot", tag="lines"):
    title: str
    about: str
    """A description for screen readers."""
    unit: Unit
    lines: tuple[PlotLine, ...]


class Stacks(msgspec.Struct, frozen=True, tag_field="plot", tag="stacks"):
    title: str
    about: str
    names: tuple[str, ...]
    unit_us: int
    stacks: tuple[tuple[int, tuple[int, ...]], ...]


def stacked(
    title: str, about: str, names: tuple[str, ...], period: Period, counts: Iterable[tuple[int, Sequence[int]]]
) -> Stacks:
    """Counts at steps of the period, summed by step; others are left out."""
    sums = {step: [0] * len(names) for step in period.steps()}
    for step, values in counts:
        if step in sums:
            sums[step] = [total + value for total, value in zip(sums[step], values, strict=True)]
    return Stacks(title, about, names, period.unit_us, tuple((step, tuple(total)) for step, total in sums.items()))


class Cell(msgspec.Struct, frozen=True):
    """Seconds by class of a subject in one unit of time."""

    start_us: int
    up_seconds: float
    down_seconds: float
    downtime_seconds: float
    unobserved_seconds: float
    absent_seconds: float


class Strip(msgspec.Struct, frozen=True):
    name: str
    cells: tuple[Cell, ...]
    low: float | None
    high: float | None


class Strips(msgspec.Struct, frozen=True, tag_field="plot", tag="strips"):
    """Availability over time, a strip for each subject."""

    title: str
    about: str
    unit_us: int
    strips: tuple[Strip, ...]


class Bars(msgspec.Struct, frozen=True, tag_field="plot", tag="bars"):
    """The distribution of durations: (from, to, count), on a logarithmic scale, with percentiles."""

    title: str
    about: str
    bars: tuple[tuple[float, float, int], ...]
    marks: tuple[tuple[str, float], ...] = ()


class Cone(msgspec.Struct, frozen=True, tag_field="plot", tag="cone"):
    """The history of a metric, and when it reaches its limit."""

    title: str
    about: str
    history: tuple[tuple[int, float], ...]
    at_us: int
    """The end of the history."""
    value: float
    limit: float
    meets_us: int
    low_us: int
    high_us: int | None
    """None: not within ten years."""


Plot = LinePlot | Stacks | Strips | Bars | Cone


class ReportDocument(msgspec.Struct, frozen=True):
    name: str
    title: str
    period: Period
    summary: str
    """One sentence."""
    tables: tuple[ReportTable, ...]
    plots: tuple[Plot, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes on data quality, and what to type next."""
    matched: bool = True
    """False if a filter was given and matches nothing."""
    known: tuple[str, ...] = ()
    """If nothing matched: all names."""


def shared_notes(reports: Sequence[ReportDocument]) -> tuple[str, ...]:
    """The notes that all of several reports have: they are shown once."""
    if len(reports) < 2:
        return ()
    return tuple(note for note in reports[0].notes if all(note in other.notes for other in reports))


def as_data(report: ReportDocument, limit: int | None = None) -> dict[str, Any]:
    """The JSON of `scale0 report NAME --format json` and of the HTTP API, with at most `limit` rows of each table.

    Times are text in UTC; those of plots are whole microseconds.
    """
    period = report.period
    return {
        "report": report.name,
        "title": report.title,
        "from": time_of(period.from_us),
        "to": time_of(period.to_us),
        "horizon": time_of(period.horizon_us),
        "unit": period.unit,
        "summary": report.summary,
        "notes": list(report.notes),
        "tables": [_table(table, limit) for table in report.tables],
        "plots": [msgspec.to_builtins(plot) for plot in report.plots],
    }


def value_of(value: Any, column: ReportColumn) -> Any:
    return time_of(value) if column.unit == "time" and value is not None else value


def time_of(us: int) -> str:
    return to_time(us).isoformat().replace("+00:00", "Z")


def _table(table: ReportTable, limit: int | None) -> dict[str, Any]:
    return {
        "name": table.name,
        "title": table.title,
        "columns": [{"name": column.name, "head": column.head, "unit": column.unit} for column in table.columns],
        "rows": [
            {column.name: value_of(value, column) for column, value in zip(table.columns, row, strict=True)}
            for row in table.rows[:limit]
        ],
    }
