// The audit log: every change with its user, origin, and values before and after; failed logins as well.

import { useState } from "preact/hooks";
import { query } from "../api";
import { useLive } from "../live";
import { moment } from "../logic/format";
import { keyOf } from "../logic/event_ids";
import { fits } from "../logic/rows";
import { Empty, Filter, Shown, State } from "../parts/common";
import { Table, type ColumnOf } from "../parts/table";
import type { NetworkEvent, Page } from "../types";
import { dataText, OneEvent } from "./events";

interface Said { command?: string; origin?: string; before?: unknown; after?: unknown }
const AUDIT_MS = 3_000;
const PAGE = 200;

const COMMANDED = "management.commanded";
const refused = (row: NetworkEvent): boolean => row.kind === COMMANDED && !!row.code && row.code !== 200;

/** Only a command has a code. */
function Outcome({ row }: { row: NetworkEvent }) {
  if (refused(row)) return <State state="critical">{`refused, ${row.code}`}</State>;
  return row.kind === COMMANDED ? <State state="ok">done</State> : <State state="idle">event</State>;
}

/** The parts of a command, from the event or its data. */
export function saidOf(row: NetworkEvent): Said {
  const data = row.data && typeof row.data === "object" ? (row.data as Said) : {};
  const pick = (name: keyof Said): unknown => row[name] ?? data[name];
  return { command: (pick("command") ?? row.service ?? "") as string, origin: (pick("origin") ?? "") as string, before: pick("before"), after: pick("after") };
}

/** The original sender: "frontend/x for http/10.0.0.1" was a user at 10.0.0.1. */
const fromOf = (origin = ""): string => origin.split(" for ").at(-1) || "–";

export function Audit() {
  const [after, setAfter] = useState<string[]>([]);
  const [filter, setFilter] = useState("");
  const [open, setOpen] = useState<NetworkEvent | null>(null);
  const live = useLive<Page<NetworkEvent>>(`/audit${query({ limit: PAGE, after: after.at(-1) })}`, AUDIT_MS);
  const columns: ColumnOf<NetworkEvent>[] = [
    { head: "Time", cell: (row) => <button type="button" class="link mono" onClick={() => setOpen(row)}>{moment(row.time)}</button>, by: (row) => row.time },
    { head: "User", cell: (row) => row.identity || "–", by: (row) => row.identity },
    { head: "Command", cell: (row) => saidOf(row).command || row.kind, by: (row) => saidOf(row).command },
    { head: "Outcome", cell: (row) => <Outcome row={row} />, by: (row) => row.code },
    { head: "Before", cell: (row) => <span class="mono">{dataText(saidOf(row).before) || "–"}</span> },
    { head: "After", wide: true, cell: (row) => <span class="mono">{dataText(saidOf(row).after ?? (row.kind === COMMANDED ? "" : row.data)) || "–"}</span> },
    { head: "From", cell: (row) => <span class="origin" title={saidOf(row).origin}>{fromOf(saidOf(row).origin)}</span>, by: (row) => saidOf(row).origin },
    { head: "Broker", cell: (row) => row.source, by: (row) => row.source },
  ];
  return (
    <>
      <div class="bar"><Filter value={filter} onChange={setFilter} label="Filter by user, command or origin" /></div>
      <Shown live={live}>
        {(page) => {
          const rows = page.items.filter((row) => fits(`${row.identity} ${JSON.stringify(saidOf(row))} ${row.source}`, filter));
          return (
            <>
              <Table label="Audit, the newest first" rows={rows} columns={columns} id={keyOf} tone={(row) => (refused(row) ? "warning" : "")}
                empty={page.items.length ? <p class="calm">No entry matches the filter.</p> : <Empty title="There are no changes yet." commands={["scale0 audit"]}>Every change is listed here with its user, origin, and values before and after.</Empty>} />
              <div class="pager">
                <button type="button" class="small" disabled={!after.length} onClick={() => setAfter(after.slice(0, -1))}>← Newer</button>
                <button type="button" class="small" disabled={page.next === null} onClick={() => setAfter([...after, page.next ?? ""])}>Older →</button>
              </div>
            </>
          );
        }}
      </Shown>
      {open && <OneEvent event={open} onClose={() => setOpen(null)} />}
    </>
  );
}
