// uPlot in the colours of the theme. It is created again when the theme changes, and updated with new data.

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useEffect, useRef } from "preact/hooks";
import { bytes, count, figures } from "../logic/format";
import { isDark } from "../theme";

export type Value = (value: number) => string;
export interface SeriesOf {
  name: string;
  colour: string;
  values: readonly (number | null)[];
  /** Values for the legend: a bar of a stack is drawn up to a sum, and the legend shows its own count. */
  told?: readonly (number | null)[];
  dash?: boolean;
  /** Filled down to zero. */
  fill?: boolean;
  width?: number;
  bars?: boolean;
}
interface Props {
  label: string;
  times: readonly number[];
  series: SeriesOf[];
  say: Value;
  height?: number;
  /** Areas between two series, by their numbers (from 1), such as a confidence interval. */
  bands?: { between: [number, number]; colour: string }[];
  /** The range of the axis, if it does not follow from the values. */
  range?: [number, number];
  /** The axis starts near the smallest value and not at zero. */
  close?: boolean;
}

function colourOf(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || "#888";
}

function paint(name: string, alpha: number): string {
  const colour = colourOf(name);
  const found = /^#([0-9a-f]{6})$/i.exec(colour);
  return found ? `${colour}${Math.round(alpha * 255).toString(16).padStart(2, "0")}` : colour;
}

const two = (value: number): string => String(value).padStart(2, "0");

/** A label of the time axis, as precise as its steps. */
function timeMark(seconds: number, step: number): string {
  const at = new Date(seconds * 1000);
  if (step >= 86_400) return `${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const said = `${two(at.getHours())}:${two(at.getMinutes())}`;
  if (step >= 60) return step >= 14_400 && at.getHours() === 0 ? `${two(at.getMonth() + 1)}-${two(at.getDate())}` : said;
  return `${said}:${two(at.getSeconds())}`;
}

const fromZero = (_plot: uPlot, low: number | null, high: number | null): [number, number] =>
  [Math.min(0, low ?? 0), (high ?? 0) > 0 ? (high as number) * 1.08 : 1];

function near(_plot: uPlot, low: number | null, high: number | null): [number, number] {
  if (low === null || high === null) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * 0.1;
  return [low - room, high + room];
}

/** Without a cursor, the legend shows the last values. */
function showLast(plot: uPlot): void {
  // In a microtask, because uPlot clears the legend after drawing.
  queueMicrotask(() => {
    if (plot.root.isConnected && (plot.cursor.left ?? -1) < 0) plot.setLegend({ idx: lastKnown(plot.data) }, false);
  });
}

/** The last index at which any series has a value: a forecast ends after the measured values. */
function lastKnown(data: uPlot.AlignedData): number {
  const [times, ...lines] = data;
  for (let at = times.length - 1; at > 0; at -= 1) if (lines.some((line) => line[at] !== null && line[at] !== undefined)) return at;
  return 0;
}

/** A value without neighbours is drawn as a point. */
function alone(plot: uPlot, number: number): number[] {
  const line = plot.data[number] ?? [];
  const isKnown = (at: number): boolean => line[at] !== null && line[at] !== undefined;
  return [...line.keys()].filter((at) => isKnown(at) && !isKnown(at - 1) && !isKnown(at + 1));
}

/** Distinct labels of an axis: more digits where needed, otherwise each label once. */
function marks(splits: number[], say: Value, step: number): string[] {
  const said = splits.map((split) => say(split));
  if (new Set(said).size === said.length) return said;
  if (say === bytes) return bytesApart(splits, step);
  if (say === figures) return splits.map((split) => split.toFixed(Math.min(8, Math.max(0, Math.ceil(-Math.log10(step))))));
  return said.map((mark, at) => (said.indexOf(mark) === at ? mark : ""));
}

function bytesApart(splits: number[], step: number): string[] {
  const power = Math.min(4, Math.floor(Math.log(Math.max(1, ...splits.map(Math.abs))) / Math.log(1024)));
  const size = 1024 ** power;
  const digits = Math.min(6, Math.max(0, Math.ceil(-Math.log10(step / size))));
  return splits.map((split) => `${(split / size).toFixed(digits)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`);
}

const LETTER_PX = 6.6;
const WHOLE_STEPS = Array.from({ length: 13 }, (_none, power) => [1, 2, 5].map((step) => step * 10 ** power)).flat();

function optionsOf(props: Props, width: number): uPlot.Options {
  const { series, say, height = 180, bands, range } = props;
  const axis = { stroke: colourOf("faint"), grid: { stroke: colourOf("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  const bars = uPlot.paths.bars?.({ size: [0.9, 40], gap: 1 });
  return {
    width,
    height,
    legend: { show: true, live: true },
    cursor: { y: false, points: { size: 6 } },
    padding: [8, 18, 0, 0],
    hooks: { draw: [showLast], setCursor: [showLast] },
    scales: {
      x: { time: true },
      y: { range: range ?? (props.close ? near : fromZero) },
    },
    axes: [
      { ...axis, size: 28, space: 68, values: (_plot, splits, _axis, _space, step) => splits.map((at) => timeMark(at, step)) },
      {
        ...axis,
        size: (_plot, shown) => Math.max(62, 14 + LETTER_PX * Math.max(0, ...(shown ?? []).map((mark) => mark.length))),
        incrs: say === count ? WHOLE_STEPS : undefined,
        values: (_plot, splits, _axis, _space, step) => marks(splits, say, step),
      },
    ],
    series: [
      { value: (_plot, at) => (at === null || at === undefined ? "–" : new Date(at * 1000).toLocaleString("sv")) },
      ...series.map((each): uPlot.Series => ({
        label: each.name,
        stroke: colourOf(each.colour),
        width: each.width ?? 1.5,
        dash: each.dash ? [6, 4] : undefined,
        fill: each.fill ? paint(each.colour, 0.14) : each.bars ? paint(each.colour, 0.75) : undefined,
        paths: each.bars ? bars : undefined,
        points: { show: false, size: 5, fill: colourOf(each.colour), filter: each.bars ? undefined : alone },
        spanGaps: false,
        value: (_plot, value, _number, at) => {
          const said = each.told && at !== null ? each.told[at] : value;
          return said === null || said === undefined ? "–" : say(said);
        },
      })),
    ],
    bands: bands?.map(({ between, colour }) => ({ series: between, fill: paint(colour, 0.18) })),
  };
}

const dataOf = (props: Props): uPlot.AlignedData =>
  [props.times as number[], ...props.series.map((each) => each.values as (number | null)[])] as uPlot.AlignedData;

export function Plot(props: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const dark = isDark.value;
  const shape = `${props.series.map((each) => each.name).join("|")} ${dark} ${props.height}`;
  useEffect(() => {
    const at = box.current;
    if (!at) return;
    plot.current = new uPlot(optionsOf(props, Math.max(200, at.clientWidth)), dataOf(props), at);

    const sized = new ResizeObserver(() => {
      plot.current?.setSize({ width: Math.max(200, at.clientWidth), height: props.height ?? 180 });
    });
    sized.observe(at);
    return () => {
      sized.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => plot.current?.setData(dataOf(props)), [props.times, shape]);
  return <div class="plot" ref={box} role="img" aria-label={props.label} />;
}
