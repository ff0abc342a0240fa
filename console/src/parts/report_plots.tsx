// The plots of a report: lines, stacks, availability strips, distributions, and forecasts with their interval.

import { availability, bytes, count, figures, moment, share, span } from "../logic/format";
import { conePoints, linePoints, stackPoints } from "../logic/report";
import type { BarsPlot, ConePlot, LinesPlot, Plot as PlotShape, StacksPlot, Strip, StripCell, StripsPlot } from "../types_report";
import { Plot, type Value } from "./plot";

const KINDS = 5;
const colourAt = (at: number): string => `plot-${(at % KINDS) + 1}`;

export function sayer(unit: string): Value {
  const known: Record<string, Value> = { seconds: span, share, availability, bytes, count };
  return known[unit] ?? figures;
}

export function ReportPlot({ plot }: { plot: PlotShape }) {
  return (
    <figure class={plot.plot === "strips" ? "report-plot whole" : "report-plot"}>
      <figcaption>{plot.title}</figcaption>
      {drawn(plot)}
      <p class="faint about">{plot.about}</p>
    </figure>
  );
}

function drawn(plot: PlotShape) {
  switch (plot.plot) {
    case "lines": return <Lines plot={plot} />;
    case "stacks": return <Stacks plot={plot} />;
    case "strips": return <Strips plot={plot} />;
    case "bars": return <Bars plot={plot} />;
    case "cone": return <Cone plot={plot} />;
  }
}

function Lines({ plot }: { plot: LinesPlot }) {
  const { times, values } = linePoints(plot.lines);
  if (!times.length) return <p class="calm">There is no data for this period.</p>;
  return (
    <Plot label={`${plot.title}. ${plot.about}`} times={times} say={sayer(plot.unit)}
      series={plot.lines.map((line, at) => ({ name: line.name, colour: colourAt(at), values: values[at] ?? [] }))} />
  );
}

function Stacks({ plot }: { plot: StacksPlot }) {
  const { times, sums } = stackPoints(plot.stacks, plot.names.length);
  // The largest sum first, so that smaller bars are drawn over it.
  const order = plot.names.map((_name, at) => at).reverse();
  return (
    <Plot label={`${plot.title}. ${plot.about}`} times={times} say={count}
      series={order.map((at) => ({ name: plot.names[at] ?? "", colour: plot.names[at] === "failed" ? "critical" : colourAt(at), values: sums[at] ?? [], told: plot.stacks.map(([, counts]) => counts[at] ?? 0), bars: true }))} />
  );
}

function Cone({ plot }: { plot: ConePlot }) {
  const { times, history, middle, low, high, limit } = conePoints(plot);
  return (
    <>
      <Plot
        label={`${plot.title}. ${plot.about}`} times={times} say={figures} close
        series={[
          { name: "measured", colour: "plot-1", values: history },
          { name: "forecast", colour: "plot-1", values: middle, dash: true },
          { name: "earliest", colour: "plot-3", values: high, width: 0.5 },
          { name: "latest", colour: "plot-3", values: low, width: 0.5 },
          { name: "limit", colour: "critical", values: limit, dash: true },
        ]}
        bands={[{ between: [3, 4], colour: "plot-3" }]}
      />
      <p class="cone-words">Reaches {figures(plot.limit)} on <b>{moment(plot.meets_us / 1e6).slice(0, 16)}</b>; 90 % interval: {moment(plot.low_us / 1e6).slice(0, 10)} to {plot.high_us === null ? "more than ten years from now" : moment(plot.high_us / 1e6).slice(0, 10)}</p>
    </>
  );
}

const WIDTH = 600;
const BAR_HEIGHT = 120;

/** A histogram of durations. uPlot has no bars on a logarithmic scale, so it is drawn as SVG. */
function Bars({ plot }: { plot: BarsPlot }) {
  const top = Math.max(1, ...plot.bars.map(([, , number]) => number));
  const step = WIDTH / Math.max(1, plot.bars.length);
  return (
    <>
      <svg class="bars" viewBox={`0 0 ${WIDTH} ${BAR_HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={`${plot.title}. ${plot.about}`}>
        {plot.bars.map(([from, to, number], at) => {
          const height = (number / top) * (BAR_HEIGHT - 4);
          return <rect key={at} x={at * step} y={BAR_HEIGHT - height} width={Math.max(1, step - 1)} height={height}><title>{`${span(from)} to ${span(to)}: ${count(number)}`}</title></rect>;
        })}
      </svg>
      <p class="bars-axis"><span>{span(plot.bars[0]?.[0])}</span><span>{plot.marks.map(([name, value]) => `${name} ${span(value)}`).join(" · ")}</span><span>{span(plot.bars.at(-1)?.[1])}</span></p>
    </>
  );
}

/** The worst part first, so that one minute remains visible in a month. */
const PARTS = [["down", "down_seconds"], ["downtime", "downtime_seconds"], ["unobserved", "unobserved_seconds"], ["absent", "absent_seconds"], ["up", "up_seconds"]] as const;
const STRIP_HEIGHT = 26;

export function Legend() {
  const words: Record<string, string> = { up: "up", down: "down", downtime: "planned downtime", unobserved: "not observed", absent: "did not exist" };
  return (
    <><Hatch /><ul class="legend" aria-label="Legend">
      {["up", "down", "downtime", "unobserved", "absent"].map((part) => <li key={part}><span class={`swatch part-${part}`} aria-hidden="true" />{words[part]}</li>)}
    </ul></>
  );
}

function Strips({ plot }: { plot: StripsPlot }) {
  const starts = plot.strips.flatMap((strip) => strip.cells.map((cell) => cell.start_us));
  if (!starts.length) return <p class="calm">There is no data for this period.</p>;
  const from = Math.min(...starts);
  const steps = Math.round((Math.max(...starts) - from) / plot.unit_us) + 1;
  return (
    <>
      <Legend />
      <div class="strips" role="list" aria-label={plot.title}>
        {plot.strips.map((strip) => <StripRow key={strip.name} strip={strip} from={from} unit={plot.unit_us} steps={steps} />)}
        <div class="strip-row axis" aria-hidden="true"><span /><span class="strip-axis"><span>{moment(from / 1e6).slice(0, 10)}</span><span>{moment((from + steps * plot.unit_us) / 1e6).slice(0, 10)}</span></span><span /></div>
      </div>
    </>
  );
}

function StripRow({ strip, from, unit, steps }: { strip: Strip; from: number; unit: number; steps: number }) {
  const whole = strip.cells.reduce((sum, cell) => sum + wholeOf(cell), 0);
  const unseen = strip.cells.reduce((sum, cell) => sum + cell.unobserved_seconds, 0);
  const words = `${strip.name}: at least ${availability(strip.low)}, at most ${availability(strip.high)}; ${share(whole ? unseen / whole : 0)} not observed`;
  return (
    <div class="strip-row" role="listitem">
      <span class="strip-name" title={strip.name}>{strip.name}</span>
      <svg viewBox={`0 0 ${WIDTH} ${STRIP_HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={words}>
        {strip.cells.map((cell) => <CellBars key={cell.start_us} cell={cell} x={(Math.round((cell.start_us - from) / unit) * WIDTH) / steps} width={WIDTH / steps} />)}
      </svg>
      <span class="strip-numbers">{strip.low === strip.high ? availability(strip.low) : <>{availability(strip.low)}<i> to </i>{availability(strip.high)}</>}</span>
    </div>
  );
}

/** Unobserved time is hatched. */
export const fillOf = (part: string): string | undefined => (part === "unobserved" ? "url(#hatch)" : undefined);

export function Hatch() {
  return (
    <svg width="0" height="0" class="hatch" aria-hidden="true">
      <defs>
        <pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
          <rect class="hatch-b" width="6" height="6" /><rect class="hatch-a" width="3" height="6" />
        </pattern>
      </defs>
    </svg>
  );
}

const wholeOf = (cell: StripCell): number => PARTS.reduce((sum, [, key]) => sum + cell[key], 0);

function CellBars({ cell, x, width }: { cell: StripCell; x: number; width: number }) {
  const whole = wholeOf(cell);
  let y = 0;
  return (
    <g>
      <title>{`${moment(cell.start_us / 1e6).slice(0, 16)}: ${PARTS.filter(([, key]) => cell[key] > 0).map(([name, key]) => `${name} ${span(cell[key])}`).join(", ")}`}</title>
      {PARTS.map(([name, key]) => {
        if (!whole || cell[key] <= 0) return null;
        // Every part but "up" has a minimal height, so that one minute of downtime is visible.
        const height = Math.max(name === "up" ? 0 : 2, (cell[key] / whole) * STRIP_HEIGHT);
        const top = y;
        y = Math.min(STRIP_HEIGHT, y + height);
        return <rect key={name} class={`part-${name}`} fill={fillOf(name)} x={x} y={top} width={width * 0.93} height={Math.max(0, Math.min(height, STRIP_HEIGHT - top))} />;
      })}
    </g>
  );
}
