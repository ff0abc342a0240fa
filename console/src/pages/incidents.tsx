// Incidents: what is wrong now, or was; the newest first.

import { useState } from "preact/hooks";
import { useAll } from "../live";
import { query } from "../api";
import { count, span } from "../logic/format";
import { fits } from "../logic/rows";
import { Ago, Choice, Empty, Filter, Missing, now, Shown, State } from "../parts/bits";
import { QuietDialog } from "../parts/quiet_dialog";
import { Table, type ColumnOf } from "../parts/table";
import { amend, place, placeOf } from "../router";
import { refusal } from "../session";
import type { Incident } from "../types";

export function Incidents() {
  const said = place.value.query;
  const only = { show: said.get("show") ?? "open", match: said.get("match") ?? "" };
  const live = useAll<Incident>(`/incidents${query({ open: only.show === "open" })}`);
  const [quiet, setQuiet] = useState<Incident | null>(null);
  const why = refusal("silence.add");
  const columns: ColumnOf<Incident>[] = [
    { head: "Agent", cell: (row) => <a href={placeOf("checks", [], { agent: row.agent })}>{row.agent}</a>, by: (row) => row.agent },
    { head: "Check", cell: (row) => <a href={placeOf("checks", [row.agent, row.check])}>{row.check}</a>, by: (row) => row.check },
    { head: "Now", cell: (row) => <State state={row.closed === null ? row.state : "closed"} />, by: (row) => row.state },
    { head: "Worst", cell: (row) => <State state={row.worst} />, by: (row) => row.worst },
    { head: "Opened", number: true, cell: (row) => <Ago at={row.opened} />, by: (row) => row.opened },
    { head: "Lasted", number: true, cell: (row) => span(Math.round((row.closed ?? now.value) - row.opened)), by: (row) => (row.closed ?? now.value) - row.opened },
    { head: "Message", wide: true, cell: (row) => <span title={row.message}>{row.message.split("\n")[0] || "–"}</span> },
    { head: "Actions", bare: true, cell: (row) => row.closed !== null ? null : (
      <button type="button" class="small quiet" aria-disabled={why ? "true" : undefined} title={why || "Hold its notices back"} aria-label={`Silence ${row.agent}/${row.check}${why ? `: ${why}` : ""}`} onClick={() => { if (!why) setQuiet(row); }}>Silence</button>
    ) },
  ];
  return (
    <>
      <div class="bar">
        <Choice label="Show" value={only.show} options={[["open", "open ones"], ["all", "closed ones, too"]]} onChange={(show) => amend({ ...only, show })} />
        <Filter value={only.match} onChange={(match) => amend({ ...only, match })} label="Filter by agent, check or message" />
      </div>
      <Shown live={live}>
        {({ items, ...heard }) => {
          const rows = items.filter((row) => fits(`${row.agent} ${row.check} ${row.message}`, only.match));
          return (
            <>
              <Missing heard={heard} />
              <p class="faint counts">{count(items.filter((row) => row.closed === null).length)} open{only.show === "all" && `, ${count(items.length)} in all`}</p>
              <Table label="Incidents" rows={rows} columns={columns} id={(row) => row.id} tone={(row) => (row.closed === null ? row.worst : "")}
                empty={items.length ? <p class="calm">None is like that.</p> : only.show === "open"
                  ? <Empty title="No incident is open." commands={["scale0 incidents --all"]}>Good news. <button type="button" class="small" onClick={() => amend({ show: "all" })}>Show those that were</button></Empty>
                  : <Empty title="There is no incident: nothing that is watched was ever down for sure." commands={["scale0 check list"]} />} />
            </>
          );
        }}
      </Shown>
      {quiet && <QuietDialog noun="silence" agent={quiet.agent} check={quiet.check} onClose={() => setQuiet(null)} />}
    </>
  );
}
