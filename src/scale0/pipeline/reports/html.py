"""Reports as one self-contained HTML page: no script, no external resources, inline plots and style.

Every text is escaped: names come from the network.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any, Final

from scale0.pipeline.reports.formatting import NUMERIC, text
from scale0.pipeline.reports.model import ReportColumn, ReportDocument, ReportTable, shared_notes
from scale0.pipeline.reports.period import said
from scale0.pipeline.reports.plots import draw
from scale0.pipeline.reports.style import STYLE

_UNIT: Final = re.compile(r"(?<=[0-9]) (?=[^0-9])", re.ASCII)
"""No line break between a number and its unit."""
MANY_COLUMNS: Final = 12
"""Wider tables are drawn smaller, to fit a screen."""
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""Defence in depth: markup that gets through cannot run or fetch anything."""
HATCH: Final = (
    '<svg class="defs" aria-hidden="true"><defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse"'
    ' patternTransform="rotate(45)"><rect class="hatch-ground" width="5" height="5"/>'
    '<line class="hatch-line" x1="0" y1="0" x2="0" y2="5"/></pattern></defs></svg>'
)


def page(reports: Sequence[ReportDocument], limit: int | None) -> str:
    """The whole page, with at most `limit` rows of each table."""
    title = reports[0].title if len(reports) == 1 else "Report"
    period = reports[0].period
    heading = f"{title}, {said(period.from_us)} to {said(period.to_us)}"
    links = "".join(f'<li><a href="#{one.name}">{escape(one.title)}</a></li>' for one in reports)
    nav = f'<nav aria-label="Reports"><ul>{links}</ul></nav>' if len(reports) > 1 else ""
    shared = shared_notes(reports)
    sections = "\n".join(_section(one, limit, shared) for one in reports)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(heading)}</title><style>{STYLE}</style></head>\n<body>{HATCH}"
        f"<header><h1>Scale0 {escape(title.lower() if title == 'Report' else title)}</h1>"
        f'<p class="period">{said(period.from_us)} to {said(period.to_us)}</p>{_notes(shared)}{nav}</header>\n'
        f"<main>{sections}</main></body></html>\n"
    )


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<ul class="notes">{items}</ul>' if items else ""


def _section(report: ReportDocument, limit: int | None, shared: Sequence[str]) -> str:
    notes = _notes([note for note in report.notes if note not in shared])
    plots = "".join(draw(plot, f"{report.name}-{at}") for at, plot in enumerate(report.plots))
    tables = "\n".join(_table(table, f"{report.name}-{table.name}", limit) for table in report.tables)
    return (
        f'<section id="{report.name}" aria-labelledby="{report.name}-h">'
        f'<h2 id="{report.name}-h">{escape(report.title)}</h2>'
        f"<p>{escape(report.summary)}</p>{notes}"
        f"{f'<div class=plots>{plots}</div>' if plots else ''}{tables}</section>"
    )


def _table(table: ReportTable, key: str, limit: int | None) -> str:
    title = f'<h3 id="{key}">{escape(table.title)}</h3>'
    if not table.rows:
        return f"{title}<p>{escape(table.empty.capitalize())}.</p>"
    shown = table.rows if limit is None else table.rows[:limit]
    columns = [at for at, column in enumerate(table.columns) if _is_told(column, at, table)]
    heads = "".join(
        f'<th scope="col"{_kind(table.columns[at])}>{escape(table.columns[at].head)}</th>' for at in columns
    )
    rows = "\n".join(
        f"<tr>{''.join(_cell(table.columns[at], row[at], at == 0) for at in columns)}</tr>" for row in shown
    )
    many = ' class="many"' if len(columns) > MANY_COLUMNS else ""
    left = len(table.rows) - len(shown)
    more = f'<p class="more">The first {len(shown):,} of {len(table.rows):,}; --limit shows more.</p>' if left else ""
    return (
        f'{title}<div class="scroll"><table{many} aria-labelledby="{key}"><thead><tr>{heads}</tr></thead>\n'
        f"<tbody>{rows}</tbody></table></div>{more}"
    )


def _is_told(column: ReportColumn, at: int, table: ReportTable) -> bool:
    """Hide detail columns without values."""
    return not column.detail or any(row[at] not in (None, "", False) for row in table.rows)


def _kind(column: ReportColumn) -> str:
    if column.unit in NUMERIC:
        return ' class="number"'
    return ' class="time"' if column.unit == "time" else ""


def _cell(column: ReportColumn, value: Any, first: bool) -> str:
    words = escape(text(value, column.unit))
    if column.unit in NUMERIC:
        words = _UNIT.sub("\u00a0", words)
    return f'<th scope="row">{words}</th>' if first else f"<td{_kind(column)}>{words}</td>"
