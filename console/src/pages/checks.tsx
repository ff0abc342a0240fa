// All checks of all agents, the worst first, and the metrics of one check over time.

import { useState } from "preact/hooks";
import { useAll, useLive } from "../live";
import { ago, bytes, count, figures, moment, span } from "../logic/format";
import { fits } from "../logic/rows";
import { ActionButton } from "../parts/action_button";
import { Ago, Choice, Command, Empty, Facts, Filter, Missing, now, Panel, Shown, State } from "../parts/common";
import { CheckSpark, seriesPath } from "../parts/check_spark";
import { Plot } from "../parts/plot";
import { StateStrip } from "../parts/spark";
import { Table, type ColumnOf } from "../parts/table";
import { SilenceDialog } from "../parts/silence_dialog";
import { amend, route, routeTo } from "../router";
import { refusal } from "../session";
import type { Check, CheckSeries } from "../types";

const WORST: Record<string, number> = { critical: 0, unknown: 1, warning: 2, ok: 3 };
const MAX_PLOTS = 8;

/** Tags of a state. */
function marksOf(row: Check): string[] {
  const marks: string[] = [];
  if (row.state !== "ok" && !row.hard) marks.push(`attempt ${row.attempt} of ${row.max_attempts}`);
  if (row.flapping) marks.push("flapping");
  for (const why of row.suppressed) {
    const word = why.split(" ")[0] ?? "";
    if (word !== "flapping") marks.push(word === "silence" ? "silenced" : word === "depends_on" ? "dependency" : word);
  }
  if (row.stale) marks.push("stale");
  return [...new Set(marks)];
}

export function Checks() {
  const [agent, check] = route.value.rest;
  return agent !== undefined && check !== undefined ? <One agent={agent} check={check} /> : <List />;
}

function Buttons({ row, silence }: { row: { agent: string; check: string }; silence: () => void }) {
  const about = `${row.agent}/${row.check}`;
  const why = refusal("silence.add");
  return (
    <span class="acts-row">
      <ActionButton id="check.run" places={{ agent: row.agent, check: row.check }} about={about}
        done={(found) => { const said = found as { state?: string; message?: string } | null; return `${about}: ${said?.state ?? "requested"}${said?.message ? `, ${said.message}` : ""}`; }} />
      <button type="button" class="small quiet" aria-disabled={why ? "true" : undefined} title={why || "Suppress its notifications"} aria-label={`Silence ${about}${why ? `: ${why}` : ""}`} onClick={() => { if (!why) silence(); }}>Silence</button>
    </span>
  );
}

function List() {
  const said = route.value.query;
  const only = { state: said.get("state") ?? "", agent: said.get("agent") ?? "", match: said.get("match") ?? "" };
  const live = useAll<Check>("/checks");
  const [silencing, setSilencing] = useState<Check | null>(null);
  const columns: ColumnOf<Check>[] = [
    { head: "Agent", cell: (row) => <a href={routeTo("checks", [], { agent: row.agent })}>{row.agent}</a>, by: (row) => row.agent },
    { head: "Check", cell: (row) => <a href={routeTo("checks", [row.agent, row.check])}>{row.check}</a>, by: (row) => row.check },
    { head: "State", cell: (row) => <><State state={row.state} /> {marksOf(row).map((mark) => <span key={mark} class="tag">{mark}</span>)}</>, by: (row) => WORST[row.state] },
    { head: "Since", number: true, cell: (row) => <Ago at={row.since} />, by: (row) => row.since },
    { head: "Last", number: true, cell: (row) => <Ago at={row.at} />, by: (row) => row.at },
    { head: "Last day", cell: (row) => <CheckSpark agent={row.agent} check={row.check} /> },
    { head: "Message", wide: true, cell: (row) => <span title={row.message}>{row.message.split("\n")[0] || "–"}</span>, by: (row) => row.message },
    { head: "Actions", bare: true, cell: (row) => <Buttons row={row} silence={() => setSilencing(row)} /> },
  ];
  return (
    <>
      <div class="bar">
        <Choice label="State" value={only.state} onChange={(state) => amend({ ...only, state })}
          options={[["", "all"], ["problems", "problems"], ["critical", "critical"], ["warning", "warning"], ["unknown", "unknown"], ["ok", "ok"], ["stale", "stale"]]} />
        <Filter value={only.match} onChange={(match) => amend({ ...only, match })} label="Filter by agent, check or message" />
        {only.agent && <button type="button" class="small" onClick={() => amend({ ...only, agent: "" })}>Only {only.agent} ✕</button>}
      </div>
      <Shown live={live}>
        {({ items, ...answered }) => {
          const rows = items
            .filter((row) => (!only.agent || row.agent === only.agent) && fits(`${row.agent} ${row.check} ${row.message}`, only.match) && hasState(row, only.state))
            .sort((one, other) => (WORST[one.state] ?? 9) - (WORST[other.state] ?? 9));
          return (
            <>
              <Missing answered={answered} />
              <p class="faint counts">{summary(items)}</p>
              <Table label="Checks" rows={rows} columns={columns} id={(row) => `${row.agent}/${row.check}`} tone={(row) => (row.state === "ok" ? "" : row.state)}
                empty={items.length ? <p class="calm">{only.state === "problems" ? "There are no problems." : "No check matches the filter."}</p> : (
                  <Empty title="There are no check results yet." commands={["scale0 check list", "scale0 check add disks --check disk --interval 60"]}>The second command adds a disk check for every agent.</Empty>
                )} />
            </>
          );
        }}
      </Shown>
      {silencing && <SilenceDialog noun="silence" agent={silencing.agent} check={silencing.check} onClose={() => setSilencing(null)} />}
    </>
  );
}

function hasState(row: Check, state: string): boolean {
  if (!state) return true;
  if (state === "stale") return row.stale;
  return state === "problems" ? row.state !== "ok" || row.stale : row.state === state;
}

function summary(items: readonly Check[]): string {
  const said = ["critical", "unknown", "warning", "ok"].map((state) => [state, items.filter((row) => row.state === state).length] as const);
  return said.filter(([, number]) => number).map(([state, number]) => `${count(number)} ${state}`).join(", ");
}

function One({ agent, check }: { agent: string; check: string }) {
  const live = useAll<Check>("/checks");
  const series = useLive<CheckSeries>(seriesPath(agent, check), 10_000);
  const [silencing, setSilencing] = useState(false);
  const row = live.data?.items.find((each) => each.agent === agent && each.check === check);
  return (
    <>
      <p class="crumbs"><a href="#/checks">Checks</a> / <a href={routeTo("checks", [], { agent })}>{agent}</a> / <b>{check}</b></p>
      <Shown live={live}>
        {() => row ? (
          <>
            <div class="head-row"><State state={row.state} /> {marksOf(row).map((mark) => <span key={mark} class="tag">{mark}</span>)} <Buttons row={row} silence={() => setSilencing(true)} /></div>
            <pre class="message">{row.message || "(no message)"}</pre>
            <Facts rows={[
              ["Since", `${moment(row.since)} (${ago(row.since, now.value)})`], ["Last answer", ago(row.at, now.value)], ["Duration", span(row.seconds)],
              ["Confirmed", row.hard ? "yes" : `not yet: attempt ${row.attempt} of ${row.max_attempts}`], ["Flapping", `${figures(row.flapping_percent)} %`],
              ["Notifications", row.suppressed.length ? `suppressed: ${row.suppressed.join(", ")}` : "sent"],
              ["Incident", row.incident ? <a href={routeTo("incidents", [], { match: `${agent} ${check}` })}>{row.incident}</a> : "none"], ["Helen", row.helen],
            ]} />
          </>
        ) : <Empty title={`No Helen has the check ${agent}/${check}.`} commands={[`scale0 checks --agent ${agent}`]} />}
      </Shown>
      <Panel title="Over time">
        <Shown live={series}>
          {(found) => !found.times.length ? <Empty title="This machine has no recorded results of the check yet." commands={[`scale0 explain ${agent}/${check}`]} /> : (
            <>
              <StateStrip states={found.states} label={`States of ${agent}/${check}`} />
              <div class="plots">
                {Object.entries(found.metrics).slice(0, MAX_PLOTS).map(([name, values]) => (
                  <figure key={name}><figcaption>{name}</figcaption>
                    <Plot label={`${name} of ${agent}/${check} over time`} times={found.times} say={name.includes("bytes") ? bytes : figures} height={150} close series={[{ name, colour: "plot-1", values }]} /></figure>
                ))}
              </div>
            </>
          )}
        </Shown>
        <Command text={`scale0 check run ${agent} ${check}`} />
      </Panel>
      {silencing && <SilenceDialog noun="silence" agent={agent} check={check} onClose={() => setSilencing(false)} />}
    </>
  );
}
