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
from scale0.pipeline.reports.period import utc_text
from scale0.pipeline.reports.plots import draw

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
    heading = f"{title}, {utc_text(period.from_us)} to {utc_text(period.to_us)}"
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
        f'<p class="period">{utc_text(period.from_us)} to {utc_text(period.to_us)}</p>{_notes(shared)}{nav}</header>\n'
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
    columns = [at for at, column in enumerate(table.columns) if _has_values(column, at, table)]
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


def _has_values(column: ReportColumn, at: int, table: ReportTable) -> bool:
    """Hide detail columns without values."""
    return not column.detail or any(row[at] not in (None, "", False) for row in table.rows)


def _kind(column: ReportColumn) -> str:
    if column.unit in NUMERIC:
        return ' class="number"'
    return ' class="time"' if column.unit == "time" else ""


def _cell(column: ReportColumn, value: Any, first: bool) -> str:
    label = escape(text(value, column.unit))
    if column.unit in NUMERIC:
        label = _UNIT.sub("\u00a0", label)
    return f'<th scope="row">{label}</th>' if first else f"<td{_kind(column)}>{label}</td>"


STYLE: Final = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --soft: #57606a; --rule: #d0d7de; --band: #f6f8fa;
  --up: #2da44e; --down: #cf222e; --downtime: #6e9fd8; --unobserved: #d4d9df; --hatch: #6b747e; --absent: #eceff2;
  --k0: #0969da; --k1: #bc4c00; --k2: #8250df; --k3: #1b7c83; --cone: #0969da33; --link: #0550ae; }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #0d1117; --ink: #e6edf3; --soft: #9aa4af; --rule: #30363d; --band: #161b22;
    --up: #3fb950; --down: #f85149; --downtime: #4f7fb8; --unobserved: #2b323b; --hatch: #8b949e; --absent: #1c222b;
    --k0: #58a6ff; --k1: #f0883e; --k2: #bc8cff; --k3: #56d4dd; --cone: #58a6ff44; --link: #79c0ff; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 24px 20px 48px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 21px; margin: 40px 0 4px; padding-top: 14px; border-top: 2px solid var(--rule); }
h3 { font-size: 16px; margin: 26px 0 6px; }
p { margin: 4px 0 10px; }
a { color: var(--link); }
.period, .notes, .more { color: var(--soft); }
.notes { font-size: 13.5px; padding-left: 18px; margin: 6px 0 14px; overflow-wrap: anywhere; }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 18px; padding: 0; margin: 12px 0; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(440px, 100%), 1fr)); gap: 10px 36px; }
figure { margin: 8px 0; min-width: 0; }
figure.wide { grid-column: 1 / -1; }
figcaption { font-weight: 600; margin-bottom: 2px; overflow-wrap: anywhere; }
figure > svg { width: 100%; height: auto; display: block; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 16px; padding: 0; margin: 2px 0 4px; }
.legend li { font-size: 13px; color: var(--soft); }
.legend svg { width: 14px; height: 10px; margin-right: 6px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { padding: 4px 6px; text-align: left; border-bottom: 1px solid var(--rule); vertical-align: top; }
thead th { color: var(--soft); font-weight: 600; border-bottom-width: 2px; vertical-align: bottom; }
tbody tr:nth-child(even) { background: var(--band); }
tbody th { font-weight: 500; overflow-wrap: anywhere; min-width: 11em; }
td { overflow-wrap: break-word; }
@media screen {
  .many { font-size: 12px; }
  .many th, .many td { padding: 4px; }
  .many tbody th { min-width: 9em; }
}
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number, td.time { white-space: nowrap; }
td.time, th.time { padding-left: 16px; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: var(--ink); }
svg text.tick { fill: var(--soft); font-size: 11px; }
.grid { stroke: var(--rule); stroke-width: .7; }
.axis { stroke: var(--soft); }
.mark { stroke: var(--soft); stroke-dasharray: 3 3; }
.limit { stroke: var(--down); stroke-width: 1.5; }
.cone { fill: var(--cone); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.dashed { stroke-dasharray: 6 5; }
.line.k0 { stroke: var(--k0); }
.line.k1 { stroke: var(--k1); }
.line.k2 { stroke: var(--k2); }
.line.k3 { stroke: var(--k3); }
.fill.k0, .dot.k0 { fill: var(--k0); }
.fill.k1, .dot.k1 { fill: var(--k1); }
.fill.k2, .dot.k2 { fill: var(--k2); }
.fill.k3, .dot.k3 { fill: var(--k3); }
.fill.kbad { fill: var(--down); }
.c-up { fill: var(--up); }
.c-down { fill: var(--down); }
.c-downtime { fill: var(--downtime); }
.c-unobserved { fill: url(#hatch); }
.c-absent { fill: var(--absent); }
.hatch-ground { fill: var(--unobserved); }
.hatch-line { stroke: var(--hatch); stroke-width: 1.6; }
.defs { position: absolute; width: 0; height: 0; }
@media print {
  @page { size: A4; margin: 13mm 11mm; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav { display: none; }
  section + section { break-before: page; }
  h2 { border: 0; margin-top: 0; }
  h2, h3 { break-after: avoid; }
  figure, tr { break-inside: avoid; }
  thead { display: table-header-group; }
  .plots { grid-template-columns: 1fr 1fr; gap: 6px 18px; }
  .scroll { overflow: visible; }
  table { font-size: 6.5pt; }
  th, td { padding: 2px; }
  tbody th { min-width: 8.5em; }
  .legend li, .notes { font-size: 8.5pt; }
  td.number, td.time { white-space: normal; }
}
"""
