// Trends and forecasts: the reports of the pipeline.

import { useLive } from "../live";
import { Tabs } from "../parts/common";
import { chosenPeriod, NoReport, ReportBar, reportPath } from "../parts/report_bar";
import { ReportView } from "../parts/report_view";
import { route } from "../router";
import type { Report } from "../types_report";

const REPORT_MS = 60_000;
const REPORTS: [string, string, boolean][] = [
  ["capacity", "Capacity and forecasts", true], ["requests", "Requests", false], ["tasks", "Tasks", false],
  ["checks", "Checks", true], ["incidents", "Incidents", true], ["noise", "Noise", false],
];

export function Trends() {
  const name = REPORTS.find(([each]) => each === route.value.rest[0])?.[0] ?? "capacity";
  const takesSubject = REPORTS.find(([each]) => each === name)?.[2] ?? false;
  const query = chosenPeriod();
  const period = takesSubject ? query : { ...query, subject: "" };
  const live = useLive<Report>(reportPath(name, period), REPORT_MS);
  return (
    <>
      <Tabs label="Reports" at={name} tabs={REPORTS.map(([each, words]) => [each, words, `#/trends/${each}?last=${period.last}`])} />
      <ReportBar period={period} takesSubject={takesSubject} command={`scale0 report ${name}`} />
      {live.error ? <NoReport error={live.error} /> : live.data === undefined ? <p class="loading" role="status">Loading…</p> : <ReportView key={name} report={live.data} />}
    </>
  );
}
