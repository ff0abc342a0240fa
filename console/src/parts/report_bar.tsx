// The period and the subject of a report. They are in the address, so that a link to a report can be shared.

import { query } from "../api";
import { amend, route } from "../router";
import { Choice, Command, Empty, ErrorBox } from "./common";
import type { ApiError } from "../api";

const PERIODS = [["1d", "last day"], ["7d", "last 7 days"], ["30d", "last 30 days"], ["90d", "last 90 days"]] as const;
const DEFAULT = "30d";

export interface ReportPeriod { last: string; subject: string }

export function chosenPeriod(): ReportPeriod {
  const { query } = route.value;
  return { last: query.get("last") || DEFAULT, subject: query.get("subject") ?? "" };
}

export const reportPath = (name: string, period: ReportPeriod): string =>
  `/reports/${name}${query({ last: period.last, subject: period.subject ? `*${period.subject}*` : "" })}`;

export function ReportBar({ period, takesSubject, command }: { period: ReportPeriod; takesSubject: boolean; command: string }) {
  return (
    <div class="bar">
      <Choice label="Period" value={period.last} options={PERIODS as unknown as [string, string][]} onChange={(last) => amend({ ...period, last })} />
      {takesSubject && (
        <label class="filter"><span class="hidden">Subject</span>
          <input type="search" data-filter placeholder="Subject contains  ( / )" value={period.subject} onChange={(event) => amend({ ...period, subject: event.currentTarget.value.trim() })} /></label>
      )}
      <code class="same">{command} --last {period.last}</code>
    </div>
  );
}

/** Why there is no report: usually the pipeline has not run yet. */
export function NoReport({ error }: { error: ApiError }) {
  if (error.status === 404) {
    return <Empty title={`${error.message[0]?.toUpperCase() ?? ""}${error.message.slice(1)}.`} commands={["scale0 pipeline run"]}>The pipeline computes the tables of reports from recorded events. Run it with:</Empty>;
  }
  if (error.status === 501) return <Empty title={error.message}>{error.next ? <Command text={error.next} /> : <Command text="pip install 'scale0[pipeline]'" />}</Empty>;
  return <ErrorBox error={error} />;
}
