// Made-up reports in the shape of `scale0 report NAME --format json`.

import { chance, now, SERVICES } from "./fixtures.mjs";

const DAY = 86_400;
const DAY_US = DAY * 1e6;
const iso = (seconds) => new Date(seconds * 1000).toISOString().replace(/\.\d+Z$/, "Z");

function frame(report, days, summary, tables, plots, notes = []) {
  const end = Math.floor(now() / 3600) * 3600;
  return { report, title: report, from: iso(end - days * DAY), to: iso(end), horizon: iso(end), unit: "day", summary, notes, tables, plots };
}
const table = (name, title, columns, rows) => ({ name, title, columns: columns.map(([key, head, unit = "text"]) => ({ name: key, head, unit })), rows });
const starts = (days) => {
  const end = Math.floor(now() / DAY) * DAY_US;
  return Array.from({ length: days }, (_, at) => end - (days - 1 - at) * DAY_US);
};

function availability(days) {
  const subjects = [["check", "db-1/disk", 0.04, 0.02], ["check", "mail-1/http", 0.02, 0.1], ["broker", "west-3", 0.01, 0.25], ["agent", "mail-1", 0.004, 0.08], ["service", "thumbs.make", 0.0008, 0], ["client", "worker-8", 0.0004, 0], ["broker", "east-1", 0, 0], ["service", "math.add", 0, 0.003]];
  const strips = subjects.map(([kind, name, down, unseen]) => {
    const cells = starts(days).map((start_us, at) => {
      const bad = down && at % 7 === 3 ? Math.min(0.6, down * 7) : 0;
      const blind = unseen && at % 5 === 1 ? Math.min(0.9, unseen * 5) : 0;
      const planned = name === "db-1/disk" && at === 10 ? 0.2 : 0;
      const absent = name === "worker-8" && at < 6 ? 1 : 0;
      const part = (share) => (absent ? 0 : share * DAY);
      return { start_us, up_seconds: part(1 - bad - blind - planned), down_seconds: part(bad), downtime_seconds: part(planned), unobserved_seconds: part(blind), absent_seconds: absent * DAY };
    });
    const sum = (key) => cells.reduce((total, cell) => total + cell[key], 0);
    const whole = sum("up_seconds") + sum("down_seconds") + sum("unobserved_seconds");
    return { kind, name, cells, sum, low: sum("up_seconds") / whole, high: (sum("up_seconds") + sum("unobserved_seconds")) / whole };
  });
  const rows = strips.map((strip) => ({
    subject: strip.name, subject_kind: strip.kind, availability_low: strip.low, availability_high: strip.high, down_seconds: strip.sum("down_seconds"), downtime_seconds: strip.sum("downtime_seconds"), unobserved_seconds: strip.sum("unobserved_seconds"),
    incidents: strip.sum("down_seconds") ? 4 : 0, mttr_seconds: strip.sum("down_seconds") ? strip.sum("down_seconds") / 4 : null, mtbf_seconds: null, up_seconds: strip.sum("up_seconds"), soft_seconds: 0, absent_seconds: strip.sum("absent_seconds"),
  }));
  return frame("availability", days, `${rows.length} subjects; 6 of them were down, the worst check db-1/disk for 1 d 4 h (95.2 % to 97.1 %).`,
    [table("availability", "Availability, worst first", [["subject", "Subject"], ["subject_kind", "Kind"], ["availability_low", "At least", "availability"], ["availability_high", "At most", "availability"]], rows)],
    [{ plot: "strips", title: "Availability by day", about: "For each subject, its state in each day: up, down, downtime, or not observed.", unit_us: DAY_US, strips: strips.map(({ kind, name, cells, low, high }) => ({ name: `${kind} ${name}`, cells, low, high })) }],
    ["5.1 % of the subjects' time was not observed: availability lies between low and high.", "Tables end 12 minutes ago; type `scale0 pipeline run` for newer ones."]);
}

function cone(title, slope) {
  const end = now() * 1e6;
  const history = Array.from({ length: 14 * 24 }, (_, at) => [end - (14 * 24 - at) * 3.6e9, 60 + at * slope + Math.sin(at / 12) * 1.5 + chance()]);
  const value = 60 + 14 * 24 * slope;
  const meets = end + ((95 - value) / slope) * 3.6e9;
  return { plot: "cone", title, about: "It reaches its limit if the trend continues.", history, at_us: end, value, limit: 95, meets_us: meets, low_us: end + (meets - end) * 0.8, high_us: end + (meets - end) * 1.35 };
}

function capacity(days) {
  const plots = [cone("db-1/disk: /", 0.08), cone("web-1/disk: /var", 0.05), { plot: "lines", title: "Load of all nodes by day", about: "The share of all slots that was busy in each day.", unit: "share", lines: [{ name: "load", points: starts(days).map((at, number) => [at, number === 8 ? null : 0.4 + 0.2 * Math.sin(number / 3)]) }] }];
  const rows = plots.slice(0, 2).map((each) => ({ subject: each.title.split(":")[0], metric: "/", value: each.value, limit: 95, exhausted: iso(each.meets_us / 1e6), low: iso(each.low_us / 1e6), high: iso(each.high_us / 1e6), r2: 0.93 }));
  return frame("capacity", days, "2 metrics will reach a limit, first / of db-1/disk. 40 nodes worked.",
    [table("forecasts", "Limits that will be reached", [["subject", "Subject"], ["metric", "Metric"], ["value", "Now", "number"], ["limit", "Limit", "number"], ["exhausted", "Met on", "time"], ["low", "At the earliest", "time"], ["high", "At the latest", "time"], ["r2", "R²", "number"]], rows),
      table("nodes", "Nodes, busiest first", [["node", "Node"], ["busy", "Busy", "share"], ["attempts", "Attempts", "count"], ["lost", "Lost", "count"]], Array.from({ length: 12 }, (_, at) => ({ node: `worker-${at * 4}`, busy: 0.9 - at * 0.05, attempts: 12_000 - at * 800, lost: at % 3 })))],
    plots, ["14 other metrics with a limit will not reach it according to the linear fit."]);
}

function requests(days, name) {
  const rows = SERVICES.slice(0, 7).map((service, at) => ({ service, answered: 1_200_000 - at * 90_000, failed: at * 37, p50_seconds: 0.002 + at * 0.001, p90_seconds: 0.008 + at * 0.002, p99_seconds: 0.03 + at * 0.01, change: at % 2 ? 0.12 : -0.04, bytes: 4e9 / (at + 1) }));
  const bars = Array.from({ length: 40 }, (_, at) => [0.001 * 1.2 ** at, 0.001 * 1.2 ** (at + 1), Math.round(9000 * Math.exp(-((at - 14) ** 2) / 60))]);
  return frame(name, days, "8.1 million answered, 0.02 % failed.",
    [table(name, `By ${name === "tasks" ? "method" : "service"}`, [["service", name === "tasks" ? "Method" : "Service"], ["answered", "Answered", "count"], ["failed", "Failed", "count"], ["p50_seconds", "p50", "seconds"], ["p90_seconds", "p90", "seconds"], ["p99_seconds", "p99", "seconds"], ["change", "p99 change", "change"], ["bytes", "Bytes", "bytes"]], rows)],
    [{ plot: "stacks", title: "Answered and failed by day", about: "How many requests each day.", names: ["answered", "failed"], unit_us: DAY_US, stacks: starts(days).map((at, number) => [at, [200_000 + 40_000 * Math.sin(number / 2), 900 + number * 300]]) },
      { plot: "lines", title: "Response times", about: "Percentiles by day.", unit: "seconds", lines: ["p50", "p90", "p99"].map((each, at) => ({ name: each, points: starts(days).map((start, number) => [start, 0.004 * 4 ** at * (1 + 0.2 * Math.sin(number))]) })) },
      { plot: "bars", title: "How long answers took", about: "All answers of the period.", bars, marks: [["p50", 0.012], ["p99", 0.2]] }]);
}

export function report(name, days) {
  if (name === "availability") return availability(days);
  if (name === "capacity") return capacity(days);
  return requests(days, name);
}
