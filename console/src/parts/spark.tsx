// Sparklines of values, and strips of states, as SVG with a text for screen readers.

import { figures } from "../logic/format";
import { toneOf } from "./common";

const WIDTH = 84;
const HEIGHT = 22;

/** The points of the line; missing values interrupt it. */
export function pathOf(values: readonly (number | null)[], width: number, height: number): string {
  const known = values.filter((value): value is number => value !== null);
  if (known.length < 2) return "";
  const low = Math.min(...known);
  const high = Math.max(...known);
  const step = width / (values.length - 1);
  let pen = "M";
  let out = "";
  values.forEach((value, at) => {
    if (value === null) {
      pen = "M";
      return;
    }
    const y = high === low ? height / 2 : 1 + (height - 2) * (1 - (value - low) / (high - low));
    out += `${pen}${(at * step).toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
  });
  return out;
}

export function Spark({ values, label }: { values: readonly (number | null)[]; label: string }) {
  const path = pathOf(values, WIDTH, HEIGHT);
  const last = values.findLast((value) => value !== null);
  if (!path) return <span class="faint">–</span>;
  return (
    <svg class="spark" width={WIDTH} height={HEIGHT} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img"
      aria-label={`${label}, last ${last === null || last === undefined ? "unknown" : figures(last)}`}>
      <path d={path} />
    </svg>
  );
}

/** States over time: one bar each, with height and colour by severity. */
export function StateStrip({ states, label }: { states: readonly string[]; label: string }) {
  if (!states.length) return <span class="faint">–</span>;
  const shown = states.slice(-40);
  const step = WIDTH / Math.max(shown.length, 20);
  const heights: Record<string, number> = { ok: 0.35, warning: 0.65, unknown: 0.8, critical: 1 };
  return (
    <svg class="spark strip" width={WIDTH} height={HEIGHT} viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img"
      aria-label={`${label}, last ${shown.at(-1)}`}>
      {shown.map((state, at) => {
        const height = HEIGHT * (heights[state] ?? 0.5);
        return <rect key={at} class={toneOf(state)} x={at * step} y={HEIGHT - height} width={Math.max(1, step - 1)} height={height} />;
      })}
    </svg>
  );
}
