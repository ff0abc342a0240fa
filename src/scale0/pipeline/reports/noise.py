"""The noise report: which checks alert most for the least reason. A report has all months that its period overlaps."""

from __future__ import annotations

from typing import Final

from scale0.pipeline.reports.data_quality import DataQuality, data_quality_of, notes_of, why_tables
from scale0.pipeline.reports.formatting import counted, share
from scale0.pipeline.reports.model import ReportColumn, ReportDocument, ReportTable
from scale0.pipeline.reports.period import Period
from scale0.pipeline.reports.query import ReportReader, Row

TABLES: Final = ("noise",)

COLUMNS: Final = (
    ReportColumn("month", "Month", "time"),
    ReportColumn("rank", "Rank", "count"),
    ReportColumn("check", "Check"),
    ReportColumn("alerts", "Alerts", "count"),
    ReportColumn("closed_quickly_share", "Closed within 5 min", "share"),
    ReportColumn("flapping_seconds", "Flapping", "seconds"),
)


def report(reader: ReportReader) -> ReportDocument:
    rows = reader.rows(
        'SELECT epoch_us("month"), rank, "check", alerts, closed_quickly_share, flapping_seconds FROM noise'
        ' WHERE ($check = \'\' OR "check" GLOB $check) ORDER BY "month" DESC, rank, "check"',
        TABLES,
        check=reader.filters.check,
    )
    known: tuple[str, ...] = ()
    if not rows and reader.filters.check:
        known = tuple(name for (name,) in reader.rows('SELECT DISTINCT "check" FROM noise ORDER BY ALL', TABLES))
    return build(reader.period, rows, data_quality_of(reader, TABLES), reader.question.why, known)


def build(
    period: Period, rows: list[Row], quality: DataQuality, why: bool = False, known: tuple[str, ...] = ()
) -> ReportDocument:
    table = ReportTable("noise", "Checks by noise, noisiest first", COLUMNS, tuple(rows), "no check alerted or flapped")
    return ReportDocument(
        name="noise",
        title="Noise",
        period=period,
        summary=_summary(rows),
        tables=(table, *(why_tables(quality) if why else ())),
        notes=(*notes_of(quality, period), "Months are complete, even if the period has only a part of one."),
        matched=bool(rows) or not known,
        known=known,
    )


def _summary(rows: list[Row]) -> str:
    if not rows:
        return "No check alerted or flapped."
    _, _, check, alerts, quick, _ = rows[0]
    hint = f", {share(quick)} of them closed within five minutes" if quick is not None else ""
    return (
        f"{counted(len({row[2] for row in rows}), 'check')}; the noisiest is {check}: {counted(alerts, 'alert')}{hint}."
    )
