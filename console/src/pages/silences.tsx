// Silences and downtimes: what is held back, until when, by whom and why; add one, end one.

import { useState } from "preact/hooks";
import type { ActionId } from "../actions";
import { useAll } from "../live";
import { isOver, standing } from "../logic/quiet";
import { Act, act, asked } from "../parts/act";
import { Empty, now, Shown, State, Tabs } from "../parts/bits";
import { tell, tellError } from "../parts/notice";
import { QuietDialog } from "../parts/quiet_dialog";
import { Table, type ColumnOf } from "../parts/table";
import { place } from "../router";
import { refusal } from "../session";
import type { Quiet } from "../types";

export function Silences() {
  const noun = place.value.rest[0] === "downtimes" ? "downtime" : "silence";
  return (
    <>
      <Tabs label="What holds notices back" at={noun} tabs={[["silence", "Silences", "#/silences"], ["downtime", "Downtimes", "#/silences/downtimes"]]} />
      <List key={noun} noun={noun} />
    </>
  );
}

const selected = (row: Quiet): string => [...row.agents, ...Object.entries(row.labels).map(([name, value]) => `${name}=${value}`)].join(" ") || "all";

function List({ noun }: { noun: "silence" | "downtime" }) {
  const live = useAll<Quiet>(`/${noun}s`);
  const [adding, setAdding] = useState(false);
  const ends: ActionId = `${noun}.end`;
  const why = refusal(`${noun}.add`);
  const columns: ColumnOf<Quiet>[] = [
    { head: "Name", cell: (row) => row.name, by: (row) => row.name },
    { head: "State", cell: (row) => <State state={isOver(row, now.value) ? "idle" : (row.starts ?? 0) > now.value ? "scheduled" : "running"}>{isOver(row, now.value) ? "over" : (row.starts ?? 0) > now.value ? "planned" : "holds"}</State> },
    { head: "Agents", cell: selected, by: selected },
    { head: "Checks", cell: (row) => row.checks.join(" ") || "all", by: (row) => row.checks[0] },
    { head: "When", cell: (row) => standing(row, now.value), by: (row) => row.ends || Infinity },
    { head: "By", cell: (row) => row.author || "–", by: (row) => row.author },
    { head: "Why", wide: true, cell: (row) => row.reason || "–", by: (row) => row.reason },
    { head: "Actions", bare: true, cell: (row) => <Act id={ends} places={{ id: row.name }} about={row.name} quiet means={noun === "silence" ? "Notices of these checks are sent again at once." : "From now on being down counts as down again."} /> },
  ];
  const clear = async (rows: Quiet[]): Promise<void> => {
    const yes = await asked({ title: `Take ${rows.length} away?`, words: <p>They are over already and hold nothing back.</p>, yes: "Take away", danger: false, command: `scale0 ${noun} end --over` });
    if (!yes) return;
    try {
      for (const row of rows) await act(ends, { id: row.name });
      tell(`${rows.length} taken away.`);
    } catch (error) {
      tellError(error);
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
                <button type="button" class="primary" aria-disabled={why ? "true" : undefined} title={why} onClick={() => { if (!why) setAdding(true); }}>{noun === "silence" ? "Add a silence" : "Plan a downtime"}</button>
                {why && <span class="faint">{why}</span>}
                {over.length > 0 && !why && <button type="button" onClick={() => void clear(over)}>Take {over.length} away that {over.length === 1 ? "is" : "are"} over</button>}
              </div>
              <Table label={`${noun}s`} rows={items} columns={columns} id={(row) => row.name}
                empty={<Empty title={`There is no ${noun}.`} commands={[`scale0 ${noun} add --agent 'db-*' --for 2h`]}>{noun === "silence" ? "This holds notices back for two hours:" : "This plans one:"}</Empty>} />
            </>
          );
        }}
      </Shown>
      {adding && <QuietDialog noun={noun} onClose={() => setAdding(false)} />}
    </>
  );
}
