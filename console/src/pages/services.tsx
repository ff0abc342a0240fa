// All services with their backends and rates, and the plots of one service.

import { useState } from "preact/hooks";
import { useAll } from "../live";
import { count, rate, share, span } from "../logic/format";
import { fits } from "../logic/rows";
import { Empty, Facts, Filter, Panel, Shown, State } from "../parts/common";
import { RatesPlot } from "../parts/rates_plot";
import { Spark } from "../parts/spark";
import { Table, type ColumnOf } from "../parts/table";
import { route, routeTo } from "../router";
import type { Queue, Service } from "../types";

/** The rates that this page has received, by service: sparklines cost no extra requests. */
const seen = new Map<string, (number | null)[]>();
const SEEN = 60;
let seenAt = 0;

function remember(services: Service[], at: number): void {
  if (at === seenAt) return;
  seenAt = at;
  for (const each of services) {
    const list = seen.get(each.service) ?? [];
    list.push(each.rates?.answered_per_second ?? null);
    seen.set(each.service, list.slice(-SEEN));
  }
}

export function Services() {
  const [name] = route.value.rest;
  return name === undefined ? <List /> : <One name={name} />;
}

const stateOf = (row: Service): string => (!row.backends ? "critical" : row.waiting > 0 || (row.rates?.failed_per_second ?? 0) > 0 ? "warning" : "ok");

function stateWords(row: Service): string {
  if (!row.backends) return "no backend";
  if (row.waiting) return "requests waiting";
  return (row.rates?.failed_per_second ?? 0) > 0 ? "failures" : "ok";
}

const COLUMNS: ColumnOf<Service>[] = [
  { head: "Service", cell: (row) => <a href={routeTo("services", [row.service])}>{row.service}</a>, by: (row) => row.service },
  { head: "State", cell: (row) => <State state={stateOf(row)}>{stateWords(row)}</State>, by: stateOf },
  { head: "Answered", number: true, cell: (row) => rate(row.rates?.answered_per_second), by: (row) => row.rates?.answered_per_second },
  { head: "Failed", number: true, cell: (row) => rate(row.rates?.failed_per_second), by: (row) => row.rates?.failed_per_second },
  { head: "p50", number: true, cell: (row) => span(row.rates?.p50_seconds), by: (row) => row.rates?.p50_seconds },
  { head: "p99", number: true, cell: (row) => span(row.rates?.p99_seconds), by: (row) => row.rates?.p99_seconds },
  { head: "Busy", number: true, cell: (row) => `${count(row.busy)} of ${count(row.slots)}`, by: (row) => (row.slots ? row.busy / row.slots : null) },
  { head: "Waiting", number: true, cell: (row) => count(row.waiting), by: (row) => row.waiting },
  { head: "Backends", number: true, cell: (row) => count(row.backends), by: (row) => row.backends },
  { head: "Last minutes", cell: (row) => <Spark values={seen.get(row.service) ?? []} label={`Answers of ${row.service}`} /> },
  { head: "Brokers", wide: true, cell: (row) => row.where.join(" ") || "–" },
];

function List() {
  const live = useAll<Service>("/services");
  const [filter, setFilter] = useState("");
  return (
    <Shown live={live}>
      {({ items }) => {
        remember(items, live.at);
        const rows = items.filter((row) => fits(row.service, filter));
        return (
          <>
            <div class="bar"><Filter value={filter} onChange={setFilter} label="Filter services" /><span class="faint">{count(rows.length)} of {count(items.length)}</span></div>
            <Table
              label="Services" rows={rows} columns={COLUMNS} sort={{ column: 2, down: true }} id={(row) => row.service} tone={(row) => (stateOf(row) === "ok" ? "" : stateOf(row))}
              empty={items.length ? <p class="calm">No service matches the filter.</p> : (
                <Empty title="There are no services yet." commands={["scale0 worker hello.py:worker", "scale0 call hello world"]}>
                  <p>A worker provides a service. Save this as <code>hello.py</code>:</p>
                  <pre>{'import scale0\n\nworker = scale0.Worker()\n\n@worker.service("hello")\ndef hello(name: str) -> str:\n    return f"Hello, {name}!"'}</pre>
                </Empty>
              )}
            />
          </>
        );
      }}
    </Shown>
  );
}

function One({ name }: { name: string }) {
  const services = useAll<Service>("/services");
  const queues = useAll<Queue>("/queues");
  const row = services.data?.items.find((each) => each.service === name);
  const queue = queues.data?.items.find((each) => each.service === name);
  return (
    <>
      <p class="crumbs"><a href="#/services">Services</a> / <b>{name}</b></p>
      <Shown live={services}>
        {() => row ? (
          <Facts rows={[
            ["State", <State state={stateOf(row)}>{stateWords(row)}</State>],
            ["Answered", rate(row.rates?.answered_per_second)], ["Failed", rate(row.rates?.failed_per_second)],
            ["p50", span(row.rates?.p50_seconds)], ["p99", span(row.rates?.p99_seconds)],
            ["Busy", `${count(row.busy)} of ${count(row.slots)} slots${row.slots ? ` (${share(row.busy / row.slots)})` : ""}`],
            ["Waiting", count(row.waiting)], ["Backends", count(row.backends)], ["Brokers", row.where.join(" ") || "–"],
          ]} />
        ) : <Empty title={`${name} has no backend now.`} commands={["scale0 services"]} />}
      </Shown>
      <Panel title="Last five minutes"><RatesPlot service={name} /></Panel>
      {queue && (
        <Panel title="Backends, the next to get work first" side={<a href="#/queues">All queues</a>}>
          <Table
            label={`Backends of ${name}`} rows={queue.lru} id={(each) => each.identity}
            columns={[
              { head: "Backend", cell: (each) => <a href={routeTo("clients", [], { match: each.identity })}>{each.identity}</a>, by: (each) => each.identity },
              { head: "Busy", number: true, cell: (each) => count(each.busy), by: (each) => each.busy },
              { head: "Slots", number: true, cell: (each) => count(each.slots), by: (each) => each.slots },
            ]}
            empty={<p class="calm">This broker has no backend of the service.</p>}
          />
          {queue.lru.length < queue.backends && <p class="faint">{count(queue.lru.length)} of {count(queue.backends)} backends are listed.</p>}
        </Panel>
      )}
    </>
  );
}
