// What a report is asked: how far back, and of whom. The address keeps it, so that a report can be sent to somebody.

import { query } from "../api";
import { amend, place } from "../router";
import { Choice, Command, Empty, Trouble } from "./bits";
import type { ApiError } from "../api";

const PERIODS = [["1d", "a day"], ["7d", "a week"], ["30d", "30 days"], ["90d", "90 days"]] as const;
const DEFAULT = "30d";

export interface Asked { last: string; subject: string }

export function askedOf(): Asked {
  const said = place.value.query;
  return { last: said.get("last") || DEFAULT, subject: said.get("subject") ?? "" };
}

export const reportPath = (name: string, asked: Asked): string =>
  `/reports/${name}${query({ last: asked.last, subject: asked.subject ? `*${asked.subject}*` : "" })}`;

export function ReportBar({ asked, takesSubject, command }: { asked: Asked; takesSubject: boolean; command: string }) {
  return (
    <div class="bar">
      <Choice label="Of the last" value={asked.last} options={PERIODS as unknown as [string, string][]} onChange={(last) => amend({ ...asked, last })} />
      {takesSubject && (
        <label class="filter"><span class="hidden">Subject</span>
          <input type="search" data-filter placeholder="Subject contains  ( / )" value={asked.subject} onChange={(event) => amend({ ...asked, subject: event.currentTarget.value.trim() })} /></label>
      )}
      <code class="same">{command} --last {asked.last}</code>
    </div>
  );
}

/** Why there is no report: most often because nothing has filled the tables yet. */
export function NoReport({ error }: { error: ApiError }) {
  if (error.status === 404) {
    return <Empty title={`${error.message[0]?.toUpperCase() ?? ""}${error.message.slice(1)}.`} commands={["scale0 pipeline run"]}>Reports are read from tables that the pipeline makes of what was recorded. This makes them:</Empty>;
  }
  if (error.status === 501) return <Empty title={error.message}>{error.next ? <Command text={error.next} /> : <Command text="pip install 'scale0[pipeline]'" />}</Empty>;
  return <Trouble error={error} />;
}
