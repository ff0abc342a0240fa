// The clients of this broker, and the error clients, which are ignored because of invalid input.

import { useMemo } from "preact/hooks";
import { MAX_ROWS, query } from "../api";
import { useAll } from "../live";
import { count, shortSpan, span } from "../logic/format";
import { fits } from "../logic/rows";
import { ActionButton } from "../parts/action_button";
import { Ago, Choice, Empty, Filter, Shown, Tabs } from "../parts/common";
import { Table, type ColumnOf } from "../parts/table";
import { amend, route, routeTo } from "../router";
import type { Client, ErrorClient } from "../types";

export function Clients() {
  const errors = route.value.rest[0] === "errors";
  return (
    <>
      <Tabs label="Clients" at={errors ? "errors" : "all"} tabs={[["all", "All clients", "#/clients"], ["errors", "Error clients", "#/clients/errors"]]} />
      {errors ? <Errors /> : <List />}
    </>
  );
}

const SHOWN_SERVICES = 3;

function moreThanShown(row: Client): number {
  return Math.max(0, row.services.length - SHOWN_SERVICES) + (row.services_more ?? 0);
}

const COLUMNS: ColumnOf<Client>[] = [
  { head: "Identity", cell: (row) => row.identity, by: (row) => row.identity },
  { head: "Role", cell: (row) => row.role, by: (row) => row.role },
  { head: "Busy", number: true, cell: (row) => (row.slots ? `${count(row.busy)} of ${count(row.slots)}` : "–"), by: (row) => row.busy },
  { head: "Tasks", number: true, cell: (row) => count(row.tasks), by: (row) => row.tasks },
  { head: "Last seen", number: true, cell: (row) => `${shortSpan(row.age)} ago`, by: (row) => row.age },
  { head: "Joined", number: true, cell: (row) => <Ago at={row.since} />, by: (row) => row.since },
  { head: "Heartbeat", number: true, cell: (row) => (row.heartbeat_interval ? span(row.heartbeat_interval) : "–"), by: (row) => row.heartbeat_interval },
  { head: "Config", number: true, cell: (row) => row.config_version, by: (row) => row.config_version },
  { head: "Protocol", cell: (row) => row.protocol, by: (row) => row.protocol },
  {
    head: "Services", wide: true, by: (row) => row.services[0],
    cell: (row) => row.services.length === 0 ? "–" : (
      <>
        {row.services.slice(0, SHOWN_SERVICES).map((name, at) => <>{at ? " " : ""}<a key={name} href={routeTo("services", [name])}>{name}</a></>)}
        {moreThanShown(row) > 0 && ` +${moreThanShown(row)}`}
      </>
    ),
  },
];

function List() {
  const role = route.value.query.get("role") ?? "";
  const match = route.value.query.get("match") ?? "";
  const live = useAll<Client>(`/clients${query({ role })}`);
  const items = live.data?.items;
  const rows = useMemo(() => {
    const all = items ?? [];
    return match.trim() ? all.filter((row) => fits(`${row.identity} ${row.services.join(" ")}`, match)) : all;
  }, [items, match]);
  return (
    <>
      <div class="bar">
        <Choice label="Role" value={role} options={[["", "all"], ["backend", "backends"], ["frontend", "frontends"]]} onChange={(next) => amend({ role: next, match })} />
        <Filter value={match} onChange={(next) => amend({ role, match: next })} label="Filter by identity or service" />
        {items && <span class="faint" role="status">{count(rows.length)} of {count(items.length)}{live.data?.cut ? `; only the first ${count(MAX_ROWS)} are loaded` : ""}</span>}
      </div>
      <Shown live={live}>
        {() => (
          <Table
            label="Clients" rows={rows} columns={COLUMNS} id={(row) => `${row.identity} ${row.role}`} sort={{ column: 0, down: false }}
            empty={items?.length ? <p class="calm">No client matches the filter.</p> : <Empty title={role ? `No ${role} is connected.` : "No client is connected."} commands={["scale0 worker hello.py:worker", "scale0 call hello world"]} />}
          />
        )}
      </Shown>
    </>
  );
}

function Errors() {
  const live = useAll<ErrorClient>("/error-clients");
  return (
    <Shown live={live}>
      {({ items }) => (
        <Table
          label="Error clients" rows={items} id={(row) => `${row.socket} ${row.client}`}
          empty={<Empty title="There are no error clients." commands={["scale0 error-clients"]}>A client that repeatedly sends invalid messages is ignored for a while and listed here.</Empty>}
          columns={[
            { head: "Client", cell: (row) => <span class="mono">{row.client}</span>, by: (row) => row.client },
            { head: "Socket", cell: (row) => row.socket, by: (row) => row.socket },
            { head: "Invalid messages", number: true, cell: (row) => count(row.bad), by: (row) => row.bad },
            { head: "Ignored for", number: true, cell: (row) => span(Math.round(row.ends_in)), by: (row) => row.ends_in },
            { head: "Actions", bare: true, cell: (row) => <ActionButton id="client.forgive" places={{ client: row.client }} about={row.client} done={() => `${row.client} is accepted again.`} /> },
          ]}
        />
      )}
    </Shown>
  );
}
