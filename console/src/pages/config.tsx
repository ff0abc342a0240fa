// The configuration of the network: edit, history, comparison of two versions, and rollback.

import { get } from "../api";
import { useAll, useLive } from "../live";
import { moment } from "../logic/format";
import { perform, confirmed } from "../parts/action_button";
import { Ago, Choice, Command, Panel, Shown, State, Tabs } from "../parts/common";
import { ChangeList } from "../parts/diff_view";
import { notify, notifyError } from "../parts/notice";
import { Table } from "../parts/table";
import { commandOf, actionOf } from "../actions";
import { amend, route, routeTo } from "../router";
import { refusal } from "../session";
import type { Change, Config as ConfigShape, Version } from "../types";
import { Editor } from "./config_editor";

const CONFIG_MS = 3_000;

export function Config() {
  const at = route.value.rest[0] ?? "edit";
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
    notifyError(error);
    return;
  }
  const yes = await confirmed({
    title: `Roll back to version ${row.version}?`,
    words: <><p>The content of version {row.version} becomes version {current + 1}; the history is kept. These are the changes:</p><ChangeList changes={changes} empty="No changes: both versions are the same." /></>,
    yes: "Roll back", danger: true, command: commandOf(actionOf("config.rollback"), { version: String(row.version) }),
  });
  if (!yes) return;
  try {
    const done = await perform<{ version: number }>("config.rollback", {}, { version: row.version, base: current });
    notify(`Version ${done.version} is current; it has the content of version ${row.version}.`);
  } catch (error) {
    notifyError(error);
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
                <a class="button small" href={routeTo("config", ["compare"], { from: String(row.version), to: String(current) })}>Compare</a>
                <button type="button" class="small quiet" aria-disabled={why ? "true" : undefined} title={why || "Restore this version"} aria-label={`Roll back to version ${row.version}${why ? `: ${why}` : ""}`} onClick={() => { if (!why) void rollBack(row, current); }}>Roll back</button>
              </span>
            ) },
          ]}
        />
      )}
    </Shown>
  );
}

function Compare({ current }: { current: number }) {
  const said = route.value.query;
  const to = said.get("to") ?? String(current);
  const from = said.get("from") ?? String(Math.max(1, Number(to) - 1));
  const history = useAll<Version>("/config/history", 10_000);
  const diff = useLive<{ items: Change[] }>(`/config/diff?from=${encodeURIComponent(from)}&to=${encodeURIComponent(to)}`, 0);
  const options = (history.data?.items ?? []).map((row) => [String(row.version), `${row.version} · ${moment(row.time).slice(0, 16)} · ${row.author ?? ""}`] as const);
  return (
    <>
      <div class="bar">
        <Choice label="From" value={from} options={options} onChange={(next) => amend({ from: next, to })} />
        <Choice label="To" value={to} options={options} onChange={(next) => amend({ from, to: next })} />
      </div>
      <Panel title={`Changes from version ${from} to ${to}`}>
        <Shown live={diff}>{({ items }) => <ChangeList changes={items} empty="No changes: both versions are the same." />}</Shown>
        <Command text={`scale0 config diff ${from} ${to}`} />
      </Panel>
    </>
  );
}
