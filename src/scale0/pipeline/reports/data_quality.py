"""Data quality of a report: how recent its tables are, what is missing, and what was restated."""

from __future__ import annotations

from typing import Final, NamedTuple

from scale0.pipeline.reports.formatting import counted, share
from scale0.pipeline.reports.model import Plot, ReportColumn, ReportDocument, ReportTable
from scale0.pipeline.reports.period import Period, utc_text
from scale0.pipeline.reports.query import ReportReader
from scale0.pipeline.time_ranges import DAY_US
from scale0.pipeline.warehouse.records import RESTATEMENTS

MAX_RESTATEMENTS: Final = 200
"""Rows that `--why` lists; the note has the total."""


class CoverageGap(NamedTuple):
    """A day of a source with missing, duplicate or rejected events."""

    source: str
    day_us: int
    holes: int
    rewinds: int
    duplicates: int
    rejected: int


class Restatement(NamedTuple):
    run: int
    table: str
    part_us: int
    rows_before: int
    rows_after: int
    cause: str


class DataQuality(NamedTuple):
    unobserved: float | None
    """The share of the period in which brokers were unobserved; None without a broker."""
    holes: tuple[CoverageGap, ...]
    restatements: tuple[Restatement, ...]


def document(
    reader: ReportReader,
    name: str,
    summary: str,
    tables: tuple[ReportTable, ...],
    *,
    reads: tuple[str, ...],
    found: bool,
    known: tuple[str, ...],
    plots: tuple[Plot, ...] = (),
    notes: tuple[str, ...] = (),
) -> ReportDocument:
    """A report from the tables `reads`, with notes on their quality; with `--why`, also what the notes count."""
    quality = data_quality_of(reader, reads)
    return ReportDocument(
        name=name,
        title=name.capitalize(),
        period=reader.period,
        summary=summary,
        tables=(*tables, *(why_tables(quality) if reader.question.why else ())),
        plots=plots,
        notes=(*notes_of(quality, reader.period), *notes),
        matched=found or not known,
        known=known,
    )


def data_quality_of(reader: ReportReader, tables: tuple[str, ...]) -> DataQuality:
    seen = reader.covered(
        # Whole microseconds: sums of doubles differ from run to run.
        "SELECT sum(round(unobserved_seconds * 1e6)::BIGINT), sum(round("
        "(up_seconds + down_seconds + downtime_seconds + unobserved_seconds) * 1e6)::BIGINT)"
        " FROM availability WHERE subject_kind = 'broker'",
        "availability",
    )
    unobserved, whole = seen[0] if seen else (None, None)
    return DataQuality(unobserved / whole if whole else None, holes_of(reader), restatements_of(reader, tables))


def holes_of(reader: ReportReader) -> tuple[CoverageGap, ...]:
    rows = reader.rows(
        "SELECT source, epoch_us(day::TIMESTAMP), holes, rewinds, duplicates, rejected FROM audit"
        " WHERE holes > 0 OR rewinds > 0 OR rejected > 0 ORDER BY day, source",
        ("audit",),
    )
    first, last = reader.period.from_us // DAY_US * DAY_US, reader.period.to_us
    return tuple(CoverageGap(*row[:2], *(count or 0 for count in row[2:])) for row in rows if first <= row[1] < last)


def restatements_of(reader: ReportReader, tables: tuple[str, ...]) -> tuple[Restatement, ...]:
    """Changes to parts of these tables in the period."""
    if not reader.has(RESTATEMENTS):
        return ()
    columns = reader.manifest.tables[RESTATEMENTS].columns
    part = next((name for name, kind in columns.items() if kind == "timestamp"), None)
    if part is None:
        return ()
    rows = reader.rows(
        f'SELECT run, "table", epoch_us("{part}"), rows_before, rows_after, cause FROM restatements'  # noqa: S608
        f' WHERE "{part}" >= $first AND "{part}" < $until AND split_part("table", \'.\', 1) IN $ours'
        f' ORDER BY run DESC, "table", "{part}"',
        (RESTATEMENTS,),
        # A day or month that the period only touches begins before it; a month's row says nothing about its days.
        first=reader.period.bounds["since"].replace(hour=0),
        until=reader.period.bounds["until"],
        ours=list(tables),
    )
    return tuple(Restatement(*row) for row in rows)


def notes_of(quality: DataQuality, period: Period) -> tuple[str, ...]:
    found = [f"The tables end at {utc_text(period.horizon_us)}."]
    if period.clipped:
        found.append(f"They begin at {utc_text(period.from_us)}: the period is shorter than requested.")
    if quality.unobserved:
        found.append(
            f"{share(quality.unobserved)} of the brokers' time was not observed: events of that time are missing."
        )
    if quality.holes:
        found.append(_of_holes(quality.holes))
    if quality.restatements:
        runs = {one.run for one in quality.restatements}
        causes = ", ".join(sorted({one.cause for one in quality.restatements if one.cause}))
        parts = counted(len(quality.restatements), "part")
        found.append(
            f"{parts} of these tables changed later, in {counted(len(runs), 'run')}"
            f"{f' ({causes})' if causes else ''}: --why lists them."
        )
    return tuple(found)


def _of_holes(holes: tuple[CoverageGap, ...]) -> str:
    sources = sorted({one.source for one in holes})
    names = ", ".join(sources[:3]) + (f" and {len(sources) - 3} more" if len(sources) > 3 else "")
    totals = (
        (sum(one.holes for one in holes), "hole"),
        (sum(one.rewinds for one in holes), "rewind"),
        (sum(one.rejected for one in holes), "rejected event"),
    )
    what = ", ".join(counted(number, word) for number, word in totals if number)
    return f"The history of {names} has {what}: --why lists them."


def why_tables(quality: DataQuality) -> tuple[ReportTable, ...]:
    holes = ReportTable(
        "holes",
        "Holes in the recorded history",
        (
            ReportColumn("source", "Source"),
            ReportColumn("day", "Day", "time"),
            ReportColumn("holes", "Holes", "count"),
            ReportColumn("rewinds", "Rewinds", "count"),
            ReportColumn("duplicates", "Duplicates", "count"),
            ReportColumn("rejected", "Refused", "count"),
        ),
        tuple(quality.holes),
        "no event is missing",
    )
    restatements = ReportTable(
        "restatements",
        "Restatements",
        (
            ReportColumn("run", "Run", "count"),
            ReportColumn("table", "Table"),
            ReportColumn("part", "Part", "time"),
            ReportColumn("rows_before", "Rows before", "count"),
            ReportColumn("rows_after", "Rows after", "count"),
            ReportColumn("cause", "Cause"),
        ),
        tuple(quality.restatements[:MAX_RESTATEMENTS]),
        "no run changed these tables later",
    )
    return holes, restatements
