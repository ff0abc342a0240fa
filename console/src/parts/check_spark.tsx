// The sparkline of one check, loaded when its row is visible, two requests at a time to limit the load of the server.

import { useEffect, useState } from "preact/hooks";
import { get } from "../api";
import type { CheckSeries } from "../types";
import { Spark, StateStrip } from "./spark";

const FRESH_MS = 30_000;
const AT_ONCE = 2;
const MAX_KEPT = 2_000;

const kept = new Map<string, { at: number; series: CheckSeries | null }>();
const waiting: (() => Promise<void>)[] = [];
let running = 0;

function next(): void {
  while (running < AT_ONCE) {
    const job = waiting.shift();
    if (!job) return;
    running += 1;
    void job().finally(() => {
      running -= 1;
      next();
    });
  }
}

export const seriesPath = (agent: string, check: string): string =>
  `/checks/${encodeURIComponent(agent)}/${encodeURIComponent(check)}/series`;

/** The first metric that changes. */
export function mainMetric(series: CheckSeries): [string, (number | null)[]] | null {
  const all = Object.entries(series.metrics);
  return all.find(([, values]) => new Set(values.filter((value) => value !== null)).size > 1) ?? null;
}

export function CheckSpark({ agent, check }: { agent: string; check: string }) {
  const path = seriesPath(agent, check);
  const [series, setSeries] = useState<CheckSeries | null>(kept.get(path)?.series ?? null);
  useEffect(() => {
    let gone = false;
    const read = async (): Promise<void> => {
      if (gone) return;
      try {
        const found = await get<CheckSeries>(path);
        if (kept.size >= MAX_KEPT) kept.clear();
        kept.set(path, { at: Date.now(), series: found });
        if (!gone) setSeries(found);
      } catch {
        // The page itself shows errors; here the line is only missing.
        kept.set(path, { at: Date.now(), series: null });
      }
    };
    const known = kept.get(path);
    setSeries(known?.series ?? null);
    const ask = (): void => {
      waiting.push(read);
      next();
    };
    if (!known || Date.now() - known.at > FRESH_MS) ask();
    const timer = setInterval(() => { if (!document.hidden) ask(); }, FRESH_MS);
    return () => {
      gone = true;
      clearInterval(timer);
    };
  }, [path]);
  if (!series || !series.times.length) return <span class="faint">–</span>;
  const metric = mainMetric(series);
  return (
    <span class="check-spark">
      <StateStrip states={series.states} label={`States of ${agent}/${check}`} />
      {metric && <Spark values={metric[1].slice(-60)} label={`${metric[0]} of ${agent}/${check}`} />}
    </span>
  );
}
