// The availability of every broker, client, service, agent and check. Unobserved time never counts as up.

import { useLive } from "../live";
import { availability, share, span } from "../logic/format";
import { chosenPeriod, NoReport, ReportBar, reportPath } from "../parts/report_bar";
import { fillOf, Legend, ReportPlot } from "../parts/report_plots";
import { Table, type ColumnOf } from "../parts/table";
import type { Cell, Report } from "../types_report";

const REPORT_MS = 60_000;
type Row = Record<string, Cell>;
const PARTS = ["down", "downtime", "unobserved", "absent", "up"] as const;

const number = (value: Cell | undefined): number => (typeof value === "number" ? value : 0);

/** Seconds of each part; rows name them with their unit. */
function partsOf(row: Row): Record<(typeof PARTS)[number], number> {
  return Object.fromEntries(PARTS.map((part) => [part, number(row[`${part}_seconds`])])) as Record<(typeof PARTS)[number], number>;
}

function Share({ row }: { row: Row }) {
  const parts = partsOf(row);
  const whole = PARTS.reduce((sum, part) => sum + parts[part], 0);
  if (!whole) return <span class="faint">–</span>;
  const words = PARTS.filter((part) => parts[part] > 0).map((part) => `${part} ${share(parts[part] / whole)}`).join(", ");
  let x = 0;
  return (
    <svg class="share" viewBox="0 0 200 14" preserveAspectRatio="none" role="img" aria-label={words}>
      <title>{words}</title>
      {PARTS.map((part) => {
        if (parts[part] <= 0) return null;
        const width = Math.max(part === "up" ? 0 : 1.5, (parts[part] / whole) * 200);
        const left = x;
        x = Math.min(200, x + width);
        return <rect key={part} class={`part-${part}`} fill={fillOf(part)} x={left} y="0" width={Math.max(0, Math.min(width, 200 - left))} height="14" />;
      })}
    </svg>
  );
}

function unobserved(row: Row): number {
  const parts = partsOf(row);
  const whole = parts.up + parts.down + parts.downtime + parts.unobserved;
  return whole ? parts.unobserved / whole : 0;
}

const lowOf = (row: Row): Cell | undefined => row["availability_low"];
const highOf = (row: Row): Cell | undefined => row["availability_high"];
const known = (value: Cell | undefined): number | null => (typeof value === "number" ? value : null);

const COLUMNS: ColumnOf<Row>[] = [
  { head: "Subject", cell: (row) => String(row["subject"] ?? "–"), by: (row) => String(row["subject"] ?? "") },
  { head: "Kind", cell: (row) => String(row["subject_kind"] ?? "–"), by: (row) => String(row["subject_kind"] ?? "") },
  { head: "At least", number: true, cell: (row) => availability(known(lowOf(row))), by: (row) => known(lowOf(row)) },
  { head: "At most", number: true, cell: (row) => availability(known(highOf(row))), by: (row) => known(highOf(row)) },
  { head: "Share", cell: (row) => <Share row={row} /> },
  { head: "Down", number: true, cell: (row) => span(partsOf(row).down), by: (row) => partsOf(row).down },
  { head: "Downtime", number: true, cell: (row) => span(partsOf(row).downtime), by: (row) => partsOf(row).downtime },
  { head: "Not observed", number: true, cell: (row) => <>{span(partsOf(row).unobserved)} <span class="faint">({share(unobserved(row))})</span></>, by: unobserved },
  { head: "Incidents", number: true, cell: (row) => number(row["incidents"]), by: (row) => number(row["incidents"]) },
  { head: "MTTR", number: true, cell: (row) => span(known(row["mttr_seconds"])), by: (row) => known(row["mttr_seconds"]) },
];

export function Availability() {
  const period = chosenPeriod();
  const live = useLive<Report>(reportPath("availability", period), REPORT_MS);
  return (
    <>
      <ReportBar period={period} takesSubject command="scale0 report availability" />
      {live.error ? <NoReport error={live.error} /> : live.data === undefined ? <p class="loading" role="status">Loading…</p> : <Whole report={live.data} />}
    </>
  );
}

function Whole({ report }: { report: Report }) {
  const table = report.tables.find((each) => each.name === "availability") ?? report.tables[0];
  const numbered = (table?.rows ?? []).map((row, at) => ({ ...row, "#": at }) as Row);
  return (
    <div class="report">
      <p class="summary">{report.summary}</p>
      {report.plots.map((plot) => <ReportPlot key={plot.title} plot={plot} />)}
      {report.plots.length === 0 && <Legend />}
      <Table label="Availability" rows={numbered} columns={COLUMNS} id={(row) => String(row["#"])} empty={<p class="calm">{table?.empty ?? "There is no data for this period."}</p>} />
      {report.notes.length > 0 && <section class="notes"><h2>Notes on the data</h2><ul>{report.notes.map((note) => <li key={note}>{note}</li>)}</ul></section>}
    </div>
  );
}
