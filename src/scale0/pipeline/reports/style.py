"""The style sheet of a report page, for light, dark and print."""

from __future__ import annotations

from typing import Final

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
