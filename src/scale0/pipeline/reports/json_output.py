"""Reports as JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from scale0.pipeline.reports.model import Plot, ReportColumn, ReportDocument, ReportTable
from scale0.pipeline.time_ranges import to_time


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
        "plots": [_plot(plot) for plot in report.plots],
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


def _plot(plot: Plot) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(plot)
    return found
