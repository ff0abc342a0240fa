// The last five minutes of one service, or of all: answers and failures per second, and the 99th percentile.

import { useLive } from "../live";
import { count, rate, span } from "../logic/format";
import { query } from "../api";
import type { Series } from "../types";
import { Shown } from "./common";
import { Plot } from "./plot";

const SERIES_MS = 1_000;

export function RatesPlot({ service, height = 170, latency = true }: { service?: string; height?: number; latency?: boolean }) {
  const live = useLive<Series>(`/series${query({ service })}`, SERIES_MS);
  return (
    <Shown live={live}>
      {(series) => series.times.length < 2 ? <p class="faint">The first values arrive within two seconds…</p> : (
        <div class="plots">
          <figure>
            <figcaption>Answered and failed, per second</figcaption>
            <Plot
              label={`Requests of ${service ?? "all services"} per second over the last minutes`} times={series.times} say={rate} height={height}
              series={[
                { name: "answered", colour: "plot-1", values: series.answered, fill: true },
                { name: "failed", colour: "critical", values: series.failed, fill: true },
              ]}
            />
          </figure>
          {latency && (
            <figure>
              <figcaption>Response time, 99th percentile</figcaption>
              <Plot
                label={`99th percentile of the response time of ${service ?? "all services"}`} times={series.times} say={span} height={height}
                series={[{ name: "p99", colour: "plot-2", values: series.p99_seconds }]}
              />
            </figure>
          )}
          {service !== undefined && (
            <figure>
              <figcaption>Busy slots and waiting requests</figcaption>
              <Plot
                label={`Busy slots and waiting requests of ${service}`} times={series.times} say={count} height={height}
                series={[
                  { name: "busy", colour: "plot-3", values: series.busy, fill: true },
                  { name: "waiting", colour: "warning", values: series.waiting },
                ]}
              />
            </figure>
          )}
        </div>
      )}
    </Shown>
  );
}
