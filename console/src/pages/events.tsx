// The live event stream. The server filters; events that arrive during a pause are kept.

import { useState } from "preact/hooks";
import { clock, count, moment, span } from "../logic/format";
import { keyOf } from "../logic/event_ids";
import { Empty, Facts, Id, State } from "../parts/common";
import { Dialog } from "../parts/dialog";
import { Table, type ColumnOf } from "../parts/table";
import { amend, route } from "../router";
import { MAX_EVENTS, useStream, type Filters } from "../stream";
import type { NetworkEvent } from "../types";

const NAMES = ["kind", "identity", "service", "ref", "source"] as const;
const HINTS: Record<string, string> = { kind: "task.*", identity: "web-*", service: "thumbs.*", ref: "id of a task or incident", source: "broker-*" };
const BAD = /\.(lost|failed|refused|opened|conflict|dropped|doubled)$|attempt_ended/;
const GOOD = /\.(joined|closed|completed|started)$/;

export const toneOfKind = (kind: string): string => (BAD.test(kind) ? "critical" : GOOD.test(kind) ? "ok" : "idle");

export function dataText(data: unknown): string {
  if (data === null || data === undefined || data === "") return "";
  return typeof data === "string" ? data : JSON.stringify(data);
}

export const stateText = (event: NetworkEvent): string => event.state ?? (event.code === null || event.code === undefined ? "" : String(event.code));

export function Events() {
  const said = route.value.query;
  const filters = Object.fromEntries(NAMES.map((name) => [name, said.get(name) ?? ""])) as unknown as Filters;
  const [paused, setPaused] = useState(false);
  const [open, setOpen] = useState<NetworkEvent | null>(null);
  const stream = useStream(filters, paused);
  const columns: ColumnOf<NetworkEvent>[] = [
    { head: "Time", cell: (row) => <button type="button" class="link mono" title={moment(row.time)} onClick={() => setOpen(row)}>{clock(row.time, true)}</button> },
    { head: "Kind", cell: (row) => <State state={toneOfKind(row.kind)}>{row.kind}</State> },
    { head: "Identity", cell: (row) => row.identity ?? "" },
    { head: "Service", cell: (row) => row.service ?? "" },
    { head: "State", cell: stateText },
    { head: "Duration", number: true, cell: (row) => (row.seconds === null || row.seconds === undefined ? "" : span(row.seconds)) },
    { head: "Ref", cell: (row) => row.ref ? <Id id={row.ref} /> : "" },
    { head: "Data", wide: true, cell: (row) => <span class="faint">{dataText(row.data)}</span> },
  ];
  return (
    <>
      <div class="bar filters">
        {NAMES.map((name, at) => (
          <label key={name} class="choice"><span>{name}</span>
            <input type="search" size={9} data-filter={at === 0 ? "" : undefined} placeholder={HINTS[name]} value={filters[name]}
              onChange={(event) => amend({ ...filters, [name]: event.currentTarget.value.trim() })} /></label>
        ))}
        <button type="button" aria-pressed={paused} onClick={() => setPaused(!paused)}>{paused ? "Resume" : "Pause"}</button>
        <span role="status" class={stream.state === "open" ? "live ok" : "live stale"}>
          <span aria-hidden="true">{stream.state === "open" ? "●" : "▲"}</span>{" "}
          {paused ? `paused, ${count(stream.held)} held` : stream.state === "open" ? "streaming" : stream.state === "opening" ? "opening…" : `stale since ${clock(stream.since / 1000)}`}
        </span>
      </div>
      {stream.gaps.map((words) => <p key={words} class="faint">{words}</p>)}
      {stream.error && <p class="faint" role="status">{stream.error}</p>}
      <Table label="Events, the newest first" rows={stream.events} columns={columns} id={keyOf} tone={(row) => (BAD.test(row.kind) ? "critical" : "")}
        empty={<Empty title="No matching events yet." commands={["scale0 events tail -f"]}>New events appear here as soon as they are recorded. Filters are globs with *, ? and [ab].</Empty>} />
      <p class="faint">{count(stream.events.length)} shown, at most {count(MAX_EVENTS)}; older events: <code>scale0 events tail --since 1d</code></p>
      {open && <OneEvent event={open} onClose={() => setOpen(null)} />}
    </>
  );
}

export function OneEvent({ event, onClose }: { event: NetworkEvent; onClose: () => void }) {
  const given = Object.entries(event).filter(([name, value]) => name !== "data" && value !== null && value !== undefined && value !== "");
  return (
    <Dialog title={event.kind} onClose={onClose} wide>
      <Facts rows={given.map(([name, value]) => [name, <span class="mono">{typeof value === "object" ? JSON.stringify(value) : String(value)}</span>])} />
      {dataText(event.data) && <pre class="message">{JSON.stringify(event.data, null, 2)}</pre>}
    </Dialog>
  );
}
