// uPlot, dressed in the colours of the page. It is drawn anew when the theme changes, and fed when numbers come.

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useEffect, useRef } from "preact/hooks";
import { isDark } from "../theme";

export type Value = (value: number) => string;
export interface SeriesOf {
  name: string;
  colour: string;
  values: readonly (number | null)[];
  /** What the legend says instead: a bar of a stack is drawn up to a sum, and means its own count. */
  told?: readonly (number | null)[];
  dash?: boolean;
  /** Filled down to nothing. */
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
  /** Areas between two series, by their numbers (from 1), such as an interval of confidence. */
  bands?: { between: [number, number]; colour: string }[];
  /** The whole of the axis, if the numbers alone do not say it. */
  range?: [number, number];
  /** The axis starts where the numbers do, not at nothing. */
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

/** A time below the plot, as fine as the steps between them. */
function timeMark(seconds: number, step: number): string {
  const at = new Date(seconds * 1000);
  if (step >= 86_400) return `${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const said = `${two(at.getHours())}:${two(at.getMinutes())}`;
  if (step >= 60) return step >= 14_400 && at.getHours() === 0 ? `${two(at.getMonth() + 1)}-${two(at.getDate())}` : said;
  return `${said}:${two(at.getSeconds())}`;
}

const fromNothing = (_plot: uPlot, low: number | null, high: number | null): [number, number] =>
  [Math.min(0, low ?? 0), (high ?? 0) > 0 ? (high as number) * 1.08 : 1];

function near(_plot: uPlot, low: number | null, high: number | null): [number, number] {
  if (low === null || high === null) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * 0.1;
  return [low - room, high + room];
}

/** While nobody points at it, the legend says the last numbers. */
function tellLast(plot: uPlot): void {
  // Later in this turn: uPlot itself clears the legend after it has drawn.
  queueMicrotask(() => {
    if (plot.root.isConnected && (plot.cursor.left ?? -1) < 0) plot.setLegend({ idx: lastKnown(plot.data) }, false);
  });
}

/** Where any of the lines has a number, from the right: a forecast ends after what was measured. */
function lastKnown(data: uPlot.AlignedData): number {
  const [times, ...lines] = data;
  for (let at = times.length - 1; at > 0; at -= 1) if (lines.some((line) => line[at] !== null && line[at] !== undefined)) return at;
  return 0;
}

function optionsOf(props: Props, width: number): uPlot.Options {
  const { series, say, height = 180, bands, range } = props;
  const axis = { stroke: colourOf("faint"), grid: { stroke: colourOf("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  const bars = uPlot.paths.bars?.({ size: [0.9, 40], gap: 1 });
  return {
    width,
    height,
    legend: { show: true, live: true },
    cursor: { y: false, points: { size: 6 } },
    padding: [8, 8, 0, 0],
    hooks: { draw: [tellLast], setCursor: [tellLast] },
    scales: {
      x: { time: true },
      y: { range: range ?? (props.close ? near : fromNothing) },
    },
    axes: [{ ...axis, size: 28, values: (_plot, splits, _axis, _space, step) => splits.map((at) => timeMark(at, step)) }, { ...axis, size: 62, values: (_plot, splits) => splits.map((split) => say(split)) }],
    series: [
      { value: (_plot, at) => (at === null || at === undefined ? "–" : new Date(at * 1000).toLocaleString("sv")) },
      ...series.map((each): uPlot.Series => ({
        label: each.name,
        stroke: colourOf(each.colour),
        width: each.width ?? 1.5,
        dash: each.dash ? [6, 4] : undefined,
        fill: each.fill ? paint(each.colour, 0.14) : each.bars ? paint(each.colour, 0.75) : undefined,
        paths: each.bars ? bars : undefined,
        points: { show: false },
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
