"""The noise report: which checks alert most for the least reason. A report has all months that its period overlaps."""

from __future__ import annotations

from typing import Final

from scale0.pipeline.reports.data_quality import document
from scale0.pipeline.reports.formatting import counted, share
from scale0.pipeline.reports.model import ReportColumn, ReportDocument, ReportTable
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
    table = ReportTable("noise", "Checks by noise, noisiest first", COLUMNS, tuple(rows), "no check alerted or flapped")
    note = "Months are complete, even if the period has only a part of one."
    return document(
        reader, "noise", _summary(rows), (table,), reads=TABLES, notes=(note,), found=bool(rows), known=known
    )


def _summary(rows: list[Row]) -> str:
    if not rows:
        return "No check alerted or flapped."
    _, _, check, alerts, quick, _ = rows[0]
    hint = f", {share(quick)} of them closed within five minutes" if quick is not None else ""
    return (
        f"{counted(len({row[2] for row in rows}), 'check')}; the noisiest is {check}: {counted(alerts, 'alert')}{hint}."
    )
