// Open and closed incidents, the newest first.

import { useState } from "preact/hooks";
import { useAll } from "../live";
import { query } from "../api";
import { count, span } from "../logic/format";
import { fits } from "../logic/rows";
import { Ago, Choice, Empty, Filter, Missing, now, Shown, State } from "../parts/common";
import { SilenceDialog } from "../parts/silence_dialog";
import { Table, type ColumnOf } from "../parts/table";
import { amend, route, routeTo } from "../router";
import { refusal } from "../session";
import type { Incident } from "../types";

export function Incidents() {
  const said = route.value.query;
  const only = { show: said.get("show") ?? "open", match: said.get("match") ?? "" };
  const live = useAll<Incident>(`/incidents${query({ open: only.show === "open" })}`);
  const [silencing, setSilencing] = useState<Incident | null>(null);
  const why = refusal("silence.add");
  const columns: ColumnOf<Incident>[] = [
    { head: "Agent", cell: (row) => <a href={routeTo("checks", [], { agent: row.agent })}>{row.agent}</a>, by: (row) => row.agent },
    { head: "Check", cell: (row) => <a href={routeTo("checks", [row.agent, row.check])}>{row.check}</a>, by: (row) => row.check },
    { head: "Now", cell: (row) => <State state={row.closed === null ? row.state : "closed"} />, by: (row) => row.state },
    { head: "Worst", cell: (row) => <State state={row.worst} />, by: (row) => row.worst },
    { head: "Opened", number: true, cell: (row) => <Ago at={row.opened} />, by: (row) => row.opened },
    { head: "Lasted", number: true, cell: (row) => span(Math.round((row.closed ?? now.value) - row.opened)), by: (row) => (row.closed ?? now.value) - row.opened },
    { head: "Message", wide: true, cell: (row) => <span title={row.message}>{row.message.split("\n")[0] || "–"}</span> },
    { head: "Actions", bare: true, cell: (row) => row.closed !== null ? null : (
      <button type="button" class="small quiet" aria-disabled={why ? "true" : undefined} title={why || "Suppress its notifications"} aria-label={`Silence ${row.agent}/${row.check}${why ? `: ${why}` : ""}`} onClick={() => { if (!why) setSilencing(row); }}>Silence</button>
    ) },
  ];
  return (
    <>
      <div class="bar">
        <Choice label="Show" value={only.show} options={[["open", "open"], ["all", "open and closed"]]} onChange={(show) => amend({ ...only, show })} />
        <Filter value={only.match} onChange={(match) => amend({ ...only, match })} label="Filter by agent, check or message" />
      </div>
      <Shown live={live}>
        {({ items, ...answered }) => {
          const rows = items.filter((row) => fits(`${row.agent} ${row.check} ${row.message}`, only.match));
          return (
            <>
              <Missing answered={answered} />
              <p class="faint counts">{count(items.filter((row) => row.closed === null).length)} open{only.show === "all" && `, ${count(items.length)} in total`}</p>
              <Table label="Incidents" rows={rows} columns={columns} id={(row) => row.id} tone={(row) => (row.closed === null ? row.worst : "")}
                empty={items.length ? <p class="calm">No incident matches the filter.</p> : only.show === "open"
                  ? <Empty title="There are no open incidents." commands={["scale0 incidents --all"]}><button type="button" class="small" onClick={() => amend({ show: "all" })}>Show closed incidents</button></Empty>
                  : <Empty title="There are no incidents." commands={["scale0 check list"]} />} />
            </>
          );
        }}
      </Shown>
      {silencing && <SilenceDialog noun="silence" agent={silencing.agent} check={silencing.check} onClose={() => setSilencing(null)} />}
    </>
  );
}
