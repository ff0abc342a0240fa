// The configuration of the network: edit it, look at what it was, compare two versions, and go back to one.

import { get } from "../api";
import { useAll, useLive } from "../live";
import { moment } from "../logic/format";
import { act, asked } from "../parts/act";
import { Ago, Choice, Command, Panel, Shown, State, Tabs } from "../parts/bits";
import { ChangeList } from "../parts/diff_view";
import { tell, tellError } from "../parts/notice";
import { Table } from "../parts/table";
import { commandOf, actionOf } from "../actions";
import { amend, place, placeOf } from "../router";
import { refusal } from "../session";
import type { Change, Config as ConfigShape, Version } from "../types";
import { Editor } from "./config_editor";

const CONFIG_MS = 3_000;

export function Config() {
  const at = place.value.rest[0] ?? "edit";
  const live = useLive<ConfigShape>("/config", CONFIG_MS);
  return (
    <>
      <Tabs label="Configuration" at={at} tabs={[["edit", "Edit", "#/config"], ["history", "History", "#/config/history"], ["compare", "Compare", "#/config/compare"]]} />
      {at === "history" ? <Shown live={live}>{(now) => <History current={now.version} />}</Shown>
        : at === "compare" ? <Shown live={live}>{(now) => <Compare current={now.version} />}</Shown>
        : <Shown live={live}>{(now) => <Editor current={now} />}</Shown>}
    </>
  );
}

async function rollBack(row: Version, current: number): Promise<void> {
  let changes: Change[] = [];
  try {
    changes = (await get<{ items: Change[] }>(`/config/diff?from=${current}&to=${row.version}`)).items;
  } catch (error) {
    tellError(error);
    return;
  }
  const yes = await asked({
    title: `Roll back to version ${row.version}?`,
    words: <><p>What version {row.version} said becomes version {current + 1}: nothing goes back, and nothing is lost. This is what changes:</p><ChangeList changes={changes} empty="Nothing: it says the same as the current one." /></>,
    yes: "Roll back", danger: true, command: commandOf(actionOf("config.rollback"), { version: String(row.version) }),
  });
  if (!yes) return;
  try {
    const done = await act<{ version: number }>("config.rollback", {}, { version: row.version, base: current });
    tell(`Version ${done.version} is current; it says what version ${row.version} said.`);
  } catch (error) {
    tellError(error);
  }
}

function History({ current }: { current: number }) {
  const live = useAll<Version>("/config/history", CONFIG_MS);
  const why = refusal("config.rollback");
  return (
    <Shown live={live}>
      {({ items }) => (
        <Table
          label="Versions of the configuration" rows={items} id={(row) => row.hash}
          columns={[
            { head: "Version", number: true, cell: (row) => row.version, by: (row) => row.version },
            { head: "When", number: true, cell: (row) => <Ago at={row.time} />, by: (row) => row.time },
            { head: "By", cell: (row) => row.author || "–", by: (row) => row.author },
            { head: "State", cell: (row) => row.current ? <State state="current" /> : "" },
            { head: "Hash", wide: true, cell: (row) => <span class="mono" title={row.hash}>{row.hash.slice(0, 12)}</span> },
            { head: "Actions", bare: true, cell: (row) => row.current ? null : (
              <span class="acts-row">
                <a class="button small" href={placeOf("config", ["compare"], { from: String(row.version), to: String(current) })}>Compare</a>
                <button type="button" class="small quiet" aria-disabled={why ? "true" : undefined} title={why || "Make this version current again"} aria-label={`Roll back to version ${row.version}${why ? `: ${why}` : ""}`} onClick={() => { if (!why) void rollBack(row, current); }}>Roll back</button>
              </span>
            ) },
          ]}
        />
      )}
    </Shown>
  );
}

function Compare({ current }: { current: number }) {
  const said = place.value.query;
  const to = said.get("to") ?? String(current);
  const from = said.get("from") ?? String(Math.max(1, Number(to) - 1));
  const history = useAll<Version>("/config/history", 10_000);
  const diff = useLive<{ items: Change[] }>(`/config/diff?from=${encodeURIComponent(from)}&to=${encodeURIComponent(to)}`, 0);
  const options = (history.data?.items ?? []).map((row) => [String(row.version), `${row.version} · ${moment(row.time).slice(0, 16)} · ${row.author ?? ""}`] as const);
  return (
    <>
      <div class="bar">
        <Choice label="From" value={from} options={options} onChange={(next) => amend({ from: next, to })} />
        <Choice label="to" value={to} options={options} onChange={(next) => amend({ from, to: next })} />
      </div>
      <Panel title={`What changed from version ${from} to ${to}`}>
        <Shown live={diff}>{({ items }) => <ChangeList changes={items} empty="Nothing: they say the same." />}</Shown>
        <Command text={`scale0 config diff ${from} ${to}`} />
      </Panel>
    </>
  );
}
