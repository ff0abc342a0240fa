// The JSON of a report, as `scale0 report NAME --format json` prints it. Times in plots are microseconds.

export interface Column { name: string; head: string; unit: string; detail?: boolean }
export type Cell = string | number | boolean | null;
export interface ReportTable { name: string; title?: string; columns: Column[]; rows: Record<string, Cell>[]; empty?: string }
export interface LinesPlot {
  plot: "lines"; title: string; about: string; unit: string; lines: { name: string; points: [number, number | null][] }[];
}
export interface StacksPlot {
  plot: "stacks"; title: string; about: string; names: string[]; unit_us: number; stacks: [number, number[]][];
}
export interface StripCell {
  start_us: number; up_seconds: number; down_seconds: number; downtime_seconds: number; unobserved_seconds: number;
  absent_seconds: number;
}
export interface Strip { name: string; cells: StripCell[]; low: number | null; high: number | null }
export interface StripsPlot { plot: "strips"; title: string; about: string; unit_us: number; strips: Strip[] }
export interface BarsPlot {
  plot: "bars"; title: string; about: string; bars: [number, number, number][]; marks: [string, number][];
}
export interface ConePlot {
  plot: "cone"; title: string; about: string; history: [number, number][]; at_us: number; value: number; limit: number;
  meets_us: number; low_us: number; high_us: number | null;
}
export type Plot = LinesPlot | StacksPlot | StripsPlot | BarsPlot | ConePlot;
export interface Report {
  report: string; title?: string; from: string; to: string; horizon: string; unit: string; summary: string;
  notes: string[]; tables: ReportTable[]; plots: Plot[]; known?: string[];
}
