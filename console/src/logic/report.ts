// The data of a report's plots in uPlot's columns. Pure. Input is in microseconds, output in seconds.

import type { ConePlot } from "../types_report";

type Points = [number, number | null][];

/** Lines with different times, over the union of all times. */
export function linePoints(lines: readonly { points: Points }[]): { times: number[]; values: (number | null)[][] } {
  const times = [...new Set(lines.flatMap((line) => line.points.map(([at]) => at)))].sort((one, other) => one - other);
  const place = new Map(times.map((at, number) => [at, number]));
  const values = lines.map((line) => {
    const column = new Array<number | null>(times.length).fill(null);
    for (const [at, value] of line.points) column[place.get(at) as number] = value;
    return column;
  });
  return { times: times.map((at) => at / 1e6), values };
}

/** Cumulative counts: the last column is the total. */
export function stackPoints(stacks: readonly [number, number[]][], width: number): { times: number[]; sums: number[][] } {
  const sums = Array.from({ length: width }, () => new Array<number>(stacks.length).fill(0));
  stacks.forEach(([, counts], row) => {
    let sum = 0;
    for (let at = 0; at < width; at += 1) {
      sum += counts[at] ?? 0;
      (sums[at] as number[])[row] = sum;
    }
  });
  return { times: stacks.map(([at]) => at / 1e6), sums };
}

export interface ConePoints {
  times: number[]; history: (number | null)[]; middle: (number | null)[]; low: (number | null)[]; high: (number | null)[]; limit: number[];
}

/** Measured values, then lines to the limit: the forecast, and the earliest and latest end of its interval. */
export function conePoints(plot: ConePlot): ConePoints {
  const first = plot.history[0]?.[0] ?? plot.at_us;
  const ahead = plot.meets_us - first;
  const end = Math.min(Math.max(plot.high_us ?? Infinity, plot.meets_us), plot.meets_us + 2 * ahead);
  const early = Math.max(plot.low_us, plot.at_us);
  const grid = new Set([plot.at_us, early, plot.meets_us, end]);
  for (let step = 1; step < 40; step += 1) grid.add(Math.round(plot.at_us + ((end - plot.at_us) * step) / 40));
  const future = [...grid].filter((at) => at >= plot.at_us).sort((one, other) => one - other);
  const past = plot.history.filter(([at]) => at < plot.at_us);
  const toward = (meets: number | null) => (at: number): number | null => {
    if (meets === null || meets <= plot.at_us) return meets === null ? plot.value : plot.limit;
    const value = plot.value + ((plot.limit - plot.value) * (at - plot.at_us)) / (meets - plot.at_us);
    return plot.limit >= plot.value ? Math.min(value, plot.limit) : Math.max(value, plot.limit);
  };
  const gone = past.map(() => null);
  return {
    times: [...past.map(([at]) => at), ...future].map((at) => at / 1e6),
    history: [...past.map(([, value]) => value), plot.value, ...future.slice(1).map(() => null)],
    middle: [...gone, ...future.map(toward(plot.meets_us))],
    high: [...gone, ...future.map(toward(early))],
    low: [...gone, ...future.map(toward(plot.high_us))],
    limit: [...past.map(() => plot.limit), ...future.map(() => plot.limit)],
  };
}
