// A report: its summary, plots, tables, and notes on the data.

import { availability, bytes, count, figures, moment, share, span } from "../logic/format";
import type { Cell, Column, Report, ReportTable } from "../types_report";
import { Table, type ColumnOf } from "./table";
import { ReportPlot } from "./report_plots";

function said(value: Cell | undefined, unit: string): string {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "string") return unit === "time" ? moment(value).slice(0, 16) : value;
  if (typeof value === "boolean") return value ? "yes" : "no";
  switch (unit) {
    case "seconds": return span(value);
    case "share": return share(value);
    case "availability": return availability(value);
    case "bytes": return bytes(value);
    case "count": return count(value);
    case "change": return `${value > 0 ? "+" : ""}${figures(value * 100)} %`;
    case "points": return `${value > 0 ? "+" : ""}${figures(value * 100)} pp`;
    case "time": return moment(value > 1e12 ? value / 1e6 : value).slice(0, 16);
    default: return figures(value);
  }
}

type Row = Record<string, Cell>;

function columnOf(column: Column): ColumnOf<Row> {
  return {
    head: column.head || column.name,
    cell: (row) => said(row[column.name], column.unit),
    by: (row) => row[column.name],
    number: !["text", "yes"].includes(column.unit),
  };
}

function ReportRows({ table }: { table: ReportTable }) {
  const numbered = table.rows.map((row, at) => ({ ...row, "#": at }) as Row);
  return (
    <section class="report-table">
      <h2>{table.title ?? table.name}</h2>
      <Table label={table.title ?? table.name} rows={numbered} columns={table.columns.map(columnOf)} id={(row) => String(row["#"])} empty={<p class="calm">{table.empty ?? "nothing"}</p>} />
    </section>
  );
}

export function ReportView({ report, bare }: { report: Report; bare?: boolean }) {
  return (
    <div class="report">
      {!bare && <p class="summary">{report.summary}</p>}
      <p class="faint">{moment(report.from).slice(0, 16)} to {moment(report.to).slice(0, 16)}; the tables end at {moment(report.horizon).slice(0, 16)}</p>
      <div class="report-plots">{report.plots.map((plot) => <ReportPlot key={plot.title} plot={plot} />)}</div>
      {report.tables.map((table) => <ReportRows key={table.name} table={table} />)}
      {report.notes.length > 0 && <section class="notes"><h2>Notes on the data</h2><ul>{report.notes.map((note) => <li key={note}>{note}</li>)}</ul></section>}
    </div>
  );
}
