// All agents, including those that are away.

import { useState } from "preact/hooks";
import { useAll } from "../live";
import { count, shortSpan } from "../logic/format";
import { fits } from "../logic/rows";
import { Ago, Empty, Filter, Missing, Shown, State } from "../parts/common";
import { Table, type ColumnOf } from "../parts/table";
import { routeTo } from "../router";
import type { Agent } from "../types";

const labelsOf = (row: Agent): string => Object.entries(row.labels ?? {}).map(([name, value]) => `${name}=${value}`).sort().join(" ");

const COLUMNS: ColumnOf<Agent>[] = [
  { head: "Agent", cell: (row) => <a href={routeTo("checks", [], { agent: row.agent })}>{row.agent}</a>, by: (row) => row.agent },
  { head: "State", cell: (row) => <State state={row.state} />, by: (row) => row.state },
  { head: "Since", number: true, cell: (row) => <Ago at={row.since ?? row.left} />, by: (row) => row.since ?? row.left },
  { head: "Last seen", number: true, cell: (row) => shortSpan(row.silent_seconds), by: (row) => row.silent_seconds },
  { head: "Checks", number: true, cell: (row) => <span title={row.checks.join(" ")}>{count(row.checks.length)}</span>, by: (row) => row.checks.length },
  { head: "Software", cell: (row) => row.software ?? "–", by: (row) => row.software },
  { head: "Address", cell: (row) => row.address ?? "–", by: (row) => row.address },
  { head: "Helen", cell: (row) => row.helen, by: (row) => row.helen },
  { head: "Labels", wide: true, cell: (row) => labelsOf(row) || "–", by: labelsOf },
];

export function Agents() {
  const live = useAll<Agent>("/agents");
  const [filter, setFilter] = useState("");
  return (
    <Shown live={live}>
      {({ items, ...answered }) => {
        const rows = items.filter((row) => fits(`${row.agent} ${row.state} ${labelsOf(row)}`, filter));
        return (
          <>
            <Missing answered={answered} />
            <div class="bar"><Filter value={filter} onChange={setFilter} label="Filter by name, state or label" /><span class="faint">{count(rows.length)} of {count(items.length)}</span></div>
            <Table
              label="Agents" rows={rows} columns={COLUMNS} id={(row) => row.agent} tone={(row) => (row.state === "connected" ? "" : row.state === "doubled" ? "critical" : "warning")}
              empty={items.length ? <p class="calm">No agent matches the filter.</p> : (
                <Empty title="There are no agents yet." commands={["scale0 helen token --data-dir FOLDER", "scale0 agent enrol HELEN_HOST --token TOKEN", "scale0 agent --config agent/agent.zpl"]}>
                  Run the first command on Helen's machine, and the others on the machine to be monitored:
                </Empty>
              )}
            />
          </>
        );
      }}
    </Shown>
  );
}
