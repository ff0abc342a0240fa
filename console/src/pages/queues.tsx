// Queues: waiting requests, and the order of the backends (least recently used first).

import { useState } from "preact/hooks";
import { useAll } from "../live";
import { count, span } from "../logic/format";
import { fits } from "../logic/rows";
import { Empty, Filter, Shown } from "../parts/common";
import { Table, type ColumnOf } from "../parts/table";
import { routeTo } from "../router";
import type { Queue } from "../types";

const SHOWN = 8;

function Lru({ row }: { row: Queue }) {
  const more = row.backends - Math.min(SHOWN, row.lru.length);
  return (
    <ol class="lru" aria-label={`Backends of ${row.service}, the next first`}>
      {row.lru.slice(0, SHOWN).map((each) => (
        <li key={each.identity} class={each.busy >= each.slots ? "full" : ""} title={`${each.busy} of ${each.slots} slots busy`}>
          <a href={routeTo("clients", [], { match: each.identity })}>{each.identity}</a> <span>{each.busy}/{each.slots}</span>
        </li>
      ))}
      {more > 0 && <li class="more"><a href={routeTo("services", [row.service])}>+{count(more)}</a></li>}
    </ol>
  );
}

const COLUMNS: ColumnOf<Queue>[] = [
  { head: "Service", cell: (row) => <a href={routeTo("services", [row.service])}>{row.service}</a>, by: (row) => row.service },
  { head: "Waiting", number: true, cell: (row) => count(row.waiting), by: (row) => row.waiting },
  { head: "Oldest", number: true, cell: (row) => span(row.oldest_seconds), by: (row) => row.oldest_seconds },
  { head: "Tasks queued", number: true, cell: (row) => count(row.tasks_queued), by: (row) => row.tasks_queued },
  { head: "Backends", number: true, cell: (row) => count(row.backends), by: (row) => row.backends },
  { head: "Next backends", wide: true, cell: (row) => <Lru row={row} /> },
];

export function Queues() {
  const live = useAll<Queue>("/queues");
  const [filter, setFilter] = useState("");
  return (
    <Shown live={live}>
      {({ items }) => {
        const rows = items.filter((row) => fits(row.service, filter));
        const waiting = items.reduce((sum, row) => sum + row.waiting, 0);
        return (
          <>
            <div class="bar">
              <Filter value={filter} onChange={setFilter} label="Filter queues" />
              <span class="faint">{count(waiting)} waiting in {count(items.length)} queues; the next backend to get work is the first</span>
            </div>
            <Table
              label="Queues" rows={rows} columns={COLUMNS} id={(row) => row.service} sort={{ column: 1, down: true }}
              tone={(row) => (row.waiting > 0 ? "warning" : "")}
              empty={items.length ? <p class="calm">No queue matches the filter.</p> : <Empty title="There are no queues yet." commands={["scale0 worker hello.py:worker"]}>The first worker or request of a service creates its queue.</Empty>}
            />
          </>
        );
      }}
    </Shown>
  );
}
