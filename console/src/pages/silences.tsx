// Silences and downtimes: list, add and end.

import { useState } from "preact/hooks";
import type { ActionId } from "../actions";
import { useAll } from "../live";
import { isOver, remaining } from "../logic/silences";
import { ActionButton, perform, confirmed } from "../parts/action_button";
import { Empty, now, Shown, State, Tabs } from "../parts/common";
import { notify, notifyError } from "../parts/notice";
import { SilenceDialog } from "../parts/silence_dialog";
import { Table, type ColumnOf } from "../parts/table";
import { route } from "../router";
import { refusal } from "../session";
import type { Silence } from "../types";

export function Silences() {
  const noun = route.value.rest[0] === "downtimes" ? "downtime" : "silence";
  return (
    <>
      <Tabs label="Silences and downtimes" at={noun} tabs={[["silence", "Silences", "#/silences"], ["downtime", "Downtimes", "#/silences/downtimes"]]} />
      <List key={noun} noun={noun} />
    </>
  );
}

const selected = (row: Silence): string => [...row.agents, ...Object.entries(row.labels).map(([name, value]) => `${name}=${value}`)].join(" ") || "all";

function List({ noun }: { noun: "silence" | "downtime" }) {
  const live = useAll<Silence>(`/${noun}s`);
  const [adding, setAdding] = useState(false);
  const ends: ActionId = `${noun}.end`;
  const why = refusal(`${noun}.add`);
  const columns: ColumnOf<Silence>[] = [
    { head: "Name", cell: (row) => row.name, by: (row) => row.name },
    { head: "State", cell: (row) => <State state={isOver(row, now.value) ? "idle" : (row.starts ?? 0) > now.value ? "scheduled" : "running"}>{isOver(row, now.value) ? "over" : (row.starts ?? 0) > now.value ? "scheduled" : "active"}</State> },
    { head: "Agents", cell: selected, by: selected },
    { head: "Checks", cell: (row) => row.checks.join(" ") || "all", by: (row) => row.checks[0] },
    { head: "When", cell: (row) => remaining(row, now.value), by: (row) => row.ends || Infinity },
    { head: "By", cell: (row) => row.author || "–", by: (row) => row.author },
    { head: "Reason", wide: true, cell: (row) => row.reason || "–", by: (row) => row.reason },
    { head: "Actions", bare: true, cell: (row) => <ActionButton id={ends} places={{ id: row.name }} about={row.name} quiet means={noun === "silence" ? "Notifications of these checks are sent again immediately." : "From now on, an outage counts as an outage again."} /> },
  ];
  const clear = async (rows: Silence[]): Promise<void> => {
    const yes = await confirmed({ title: `Remove ${rows.length}?`, words: <p>They are over and have no effect.</p>, yes: "Remove", danger: false, command: `scale0 ${noun} end --over` });
    if (!yes) return;
    try {
      for (const row of rows) await perform(ends, { id: row.name });
      notify(`${rows.length} removed.`);
    } catch (error) {
      notifyError(error);
    }
  };
  return (
    <>
      <Shown live={live}>
        {({ items }) => {
          const over = items.filter((row) => isOver(row, now.value));
          return (
            <>
              <div class="bar">
                <button type="button" class="primary" aria-disabled={why ? "true" : undefined} title={why} onClick={() => { if (!why) setAdding(true); }}>{noun === "silence" ? "Add a silence" : "Schedule a downtime"}</button>
                {why && <span class="faint">{why}</span>}
                {over.length > 0 && !why && <button type="button" onClick={() => void clear(over)}>Remove {over.length} that {over.length === 1 ? "is" : "are"} over</button>}
              </div>
              <Table label={`${noun}s`} rows={items} columns={columns} id={(row) => row.name}
                empty={<Empty title={`There are no ${noun}s.`} commands={[`scale0 ${noun} add --agent 'db-*' --for 2h`]}>{noun === "silence" ? "This command suppresses notifications for two hours:" : "This command schedules one:"}</Empty>} />
            </>
          );
        }}
      </Shown>
      {adding && <SilenceDialog noun={noun} onClose={() => setAdding(false)} />}
    </>
  );
}
