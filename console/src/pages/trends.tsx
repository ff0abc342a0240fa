// Trends and forecasts: what the pipeline made of the past, report by report.

import { useLive } from "../live";
import { Tabs } from "../parts/bits";
import { askedOf, NoReport, ReportBar, reportPath } from "../parts/report_bar";
import { ReportView } from "../parts/report_view";
import { place } from "../router";
import type { Report } from "../types_report";

const REPORT_MS = 60_000;
const REPORTS: [string, string, boolean][] = [
  ["capacity", "Capacity and forecasts", true], ["requests", "Requests", false], ["tasks", "Tasks", false],
  ["checks", "Checks", true], ["incidents", "Incidents", true], ["noise", "Noise", false],
];

export function Trends() {
  const name = REPORTS.find(([each]) => each === place.value.rest[0])?.[0] ?? "capacity";
  const takesSubject = REPORTS.find(([each]) => each === name)?.[2] ?? false;
  const said = askedOf();
  const asked = takesSubject ? said : { ...said, subject: "" };
  const live = useLive<Report>(reportPath(name, asked), REPORT_MS);
  return (
    <>
      <Tabs label="Which report" at={name} tabs={REPORTS.map(([each, words]) => [each, words, `#/trends/${each}?last=${asked.last}`])} />
      <ReportBar asked={asked} takesSubject={takesSubject} command={`scale0 report ${name}`} />
      {live.error ? <NoReport error={live.error} /> : live.data === undefined ? <p class="loading" role="status">Loading…</p> : <ReportView key={name} report={live.data} />}
    </>
  );
}
