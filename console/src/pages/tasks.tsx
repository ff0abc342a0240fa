// All tasks, the newest first, page by page, with retry and cancel.

import { useState } from "preact/hooks";
import { query } from "../api";
import { useLive } from "../live";
import { span } from "../logic/format";
import { ActionButton } from "../parts/action_button";
import { Ago, Choice, Empty, Filter, Id, now, Shown, State } from "../parts/common";
import { Table, type ColumnOf } from "../parts/table";
import { amend, route, routeTo } from "../router";
import type { Page, Task } from "../types";
import { OneTask } from "./task";

const STATUSES = ["scheduled", "queued", "assigned", "running", "finished", "failed", "cancelled"] as const;
const ENDED = new Set(["finished", "failed", "cancelled"]);
const PAGE = 100;

export function TaskActions({ task }: { task: Task }) {
  const about = `task ${task.task_id}`;
  const ended = ENDED.has(task.status);
  const mayRetry = task.status === "failed" || task.status === "cancelled";
  if (ended && !mayRetry) return null;
  return (
    <span class="acts-row">
      {mayRetry && <ActionButton id="task.retry" places={{ id: task.task_id }} about={about} done={() => `Task ${task.task_id} is queued again.`} />}
      {!ended && <ActionButton id="task.cancel" places={{ id: task.task_id }} about={about} quiet means={`It is ${task.status}${task.node_id ? ` on ${task.node_id}` : ""}. A cancelled task can be retried later.`} />}
    </span>
  );
}

function took(row: Task): number | null {
  if (!row.started) return null;
  return (row.finished ?? (ENDED.has(row.status) ? row.started : now.value)) - row.started;
}

const COLUMNS: ColumnOf<Task>[] = [
  { head: "Task", cell: (row) => <a href={routeTo("tasks", [row.task_id])}><Id id={row.task_id} /></a> },
  { head: "Method", cell: (row) => row.method, by: (row) => row.method },
  { head: "Status", cell: (row) => <State state={row.status} />, by: (row) => row.status },
  { head: "Attempt", number: true, cell: (row) => row.attempt, by: (row) => row.attempt },
  { head: "Priority", number: true, cell: (row) => row.priority, by: (row) => row.priority },
  { head: "Submitted", number: true, cell: (row) => <Ago at={row.submitted} />, by: (row) => row.submitted },
  { head: "Duration", number: true, cell: (row) => span(took(row)), by: took },
  { head: "Node", cell: (row) => row.node_id ?? "–", by: (row) => row.node_id },
  { head: "Client", wide: true, cell: (row) => row.client_id, by: (row) => row.client_id },
  { head: "Actions", bare: true, cell: (row) => <TaskActions task={row} /> },
];

export function Tasks() {
  const [id] = route.value.rest;
  return id === undefined ? <List /> : <OneTask id={id} />;
}

function List() {
  const { query: given } = route.value;
  const only = { status: given.get("status") ?? "", method: given.get("method") ?? "", client: given.get("client") ?? "" };
  // The cursors of the previous pages: the API only pages forward.
  const [before, setBefore] = useState<string[]>([]);
  const after = given.get("after") ?? "";
  const live = useLive<Page<Task>>(`/tasks${query({ ...only, limit: PAGE, after })}`);
  const change = (next: Partial<typeof only>): void => {
    setBefore([]);
    amend({ ...only, ...next });
  };
  const filtered = only.status || only.method || only.client;
  return (
    <>
      <div class="bar">
        <Choice label="Status" value={only.status} options={[["", "all"], ...STATUSES.map((each) => [each, each] as const)]} onChange={(status) => change({ status })} />
        <Filter value={only.method} onChange={(method) => change({ method })} label="Exact method" eager={false} />
        <Filter value={only.client} onChange={(client) => change({ client })} label="Exact client" eager={false} isFirst={false} />
      </div>
      <Shown live={live}>
        {(page) => (
          <>
            <Table
              label="Tasks" rows={page.items} columns={COLUMNS} id={(row) => row.task_id} tone={(row) => (row.status === "failed" ? "critical" : "")}
              empty={filtered ? <Empty title="No task matches the filter."><button type="button" class="small" onClick={() => amend({})}>Show all</button></Empty>
                : <Empty title="No tasks have been submitted yet." commands={["scale0 task submit thumbs.make cat.png width=100"]}>A task is stored before its id is printed, and survives crashes of workers and brokers.</Empty>}
            />
            <div class="pager">
              <button type="button" class="small" disabled={!before.length} onClick={() => { amend({ ...only, after: before.at(-1) ?? "" }); setBefore(before.slice(0, -1)); }}>← Newer</button>
              <button type="button" class="small" disabled={page.next === null} onClick={() => { setBefore([...before, after]); amend({ ...only, after: page.next ?? "" }); }}>Older →</button>
            </div>
          </>
        )}
      </Shown>
    </>
  );
}
