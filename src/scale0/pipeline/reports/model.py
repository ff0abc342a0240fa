"""The shape of a report: plain frozen data between the questions and the renderers.

Lives here: tables with units, plots, notes. Never here: a query, or how something looks. Invariants: times are whole
microseconds, durations are seconds, shares are between 0 and 1; a name is a program's word, a head is a person's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from scale0.pipeline.reports.period import Period

Unit = Literal[
    "text", "count", "share", "availability", "seconds", "time", "number", "bytes", "change", "points", "yes"
]
"""`change` is a ratio less one, `points` a difference of two shares. Availability is rounded down, never up."""


class ReportColumn(msgspec.Struct, frozen=True):
    """One column of a table."""

    name: str
    """In JSON and CSV; a unit stands last in it."""
    head: str
    """For people."""
    unit: Unit = "text"
    detail: bool = False
    """Left out where there is little room: on a terminal."""


class ReportTable(msgspec.Struct, frozen=True):
    """Rows under columns, the most important one first."""

    name: str
    title: str
    columns: tuple[ReportColumn, ...]
    rows: tuple[tuple[Any, ...], ...]
    empty: str = "nothing"
    """What it means that there are no rows."""


class PlotLine(msgspec.Struct, frozen=True):
    """A value over time; None where it is not known."""

    name: str
    points: tuple[tuple[int, float | None], ...]


class LinePlot(msgspec.Struct, frozen=True, tag_field="plot", tag="lines"):
    """Values over time, such as percentiles."""

    title: str
    about: str
    """In words, for who does not see it."""
    unit: Unit
    lines: tuple[PlotLine, ...]


class Stacks(msgspec.Struct, frozen=True, tag_field="plot", tag="stacks"):
    """Counts in each unit of time, one upon the other."""

    title: str
    about: str
    names: tuple[str, ...]
    unit_us: int
    stacks: tuple[tuple[int, tuple[int, ...]], ...]


class Cell(msgspec.Struct, frozen=True):
    """What a subject was in one unit of time, in seconds."""

    start_us: int
    up_seconds: float
    down_seconds: float
    downtime_seconds: float
    unobserved_seconds: float
    absent_seconds: float


class Strip(msgspec.Struct, frozen=True):
    """One subject over time."""

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
    """How durations are distributed: (from, to, count), on a logarithmic scale, with some of their ranks."""

    title: str
    about: str
    bars: tuple[tuple[float, float, int], ...]
    marks: tuple[tuple[str, float], ...] = ()


class Cone(msgspec.Struct, frozen=True, tag_field="plot", tag="cone"):
    """Where a metric comes from, and when it meets its limit."""

    title: str
    about: str
    history: tuple[tuple[int, float], ...]
    at_us: int
    """Where the line leaves what is known."""
    value: float
    limit: float
    meets_us: int
    low_us: int
    high_us: int | None
    """None: not within ten years."""


Plot = LinePlot | Stacks | Strips | Bars | Cone


class ReportDocument(msgspec.Struct, frozen=True):
    """The whole of it."""

    name: str
    title: str
    period: Period
    summary: str
    """One sentence."""
    tables: tuple[ReportTable, ...]
    plots: tuple[Plot, ...] = ()
    notes: tuple[str, ...] = ()
    """What one must know to believe the numbers, and what to type next."""
    matched: bool = True
    """False if a filter was given and nothing is called so."""
    known: tuple[str, ...] = ()
    """If nothing matched: what there is."""


def shared_notes(reports: Sequence[ReportDocument]) -> tuple[str, ...]:
    """What is to be said of all of them, if there are several: it is said once."""
    if len(reports) < 2:
        return ()
    return tuple(note for note in reports[0].notes if all(note in other.notes for other in reports))
