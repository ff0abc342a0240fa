// The overview: problems first, then the health of every part, and the current rates.

import { useLive } from "../live";
import { count, rate, span } from "../logic/format";
import { Panel, Shown, State, Words } from "../parts/common";
import { RatesPlot } from "../parts/rates_plot";
import type { Attention, Health, Overview, State as StateName } from "../types";

const OVERVIEW_MS = 1_500;
const ORDER: Record<string, number> = { critical: 0, unknown: 1, warning: 2, ok: 3 };

/** The link to a page that the server names. */
export function pageLink(page: string, what = ""): string {
  if (what === "clients") return "#/clients/errors";
  return page.startsWith("#") ? page : `#/${page.replace(/^\//, "")}`;
}

export function OverviewPage() {
  const live = useLive<Overview>("/overview", OVERVIEW_MS);
  return (
    <Shown live={live}>
      {(seen) => (
        <div class="overview">
          <Verdict health={seen.health} attention={seen.attention} />
          <Needs attention={seen.attention} />
          <Numbers overview={seen} />
          <Parts health={seen.health} />
          <Panel title="All services" class="span-2"><RatesPlot /></Panel>
        </div>
      )}
    </Shown>
  );
}

function Verdict({ health, attention }: { health: Health[]; attention: Attention[] }) {
  const states: StateName[] = [...health.map((each) => each.state), ...attention.map((each) => each.severity)];
  const worst = states.sort((one, other) => (ORDER[one] ?? 9) - (ORDER[other] ?? 9))[0] ?? "ok";
  const words: Record<string, string> = {
    ok: "All systems are operational.", warning: "The network works, with warnings.",
    critical: "There are critical problems.", unknown: "The state of some parts is unknown.",
  };
  const number = attention.length;
  return (
    <div class={`verdict ${worst}`} role="status">
      <State state={worst}>{words[worst]}</State>
      <span>{number ? `${number} ${number === 1 ? "problem needs" : "problems need"} attention` : "Nothing needs attention"}</span>
    </div>
  );
}

function Needs({ attention }: { attention: Attention[] }) {
  return (
    <Panel title="Needs attention" class="span-2">
      {attention.length === 0 ? <p class="calm">No problems. New problems appear here, with the next step.</p> : (
        <ol class="needs">
          {attention.map((each) => (
            <li key={`${each.what} ${each.words}`} class={each.severity} data-row>
              <State state={each.severity} />
              <div>
                <p><a href={pageLink(each.page, each.what)}>{each.what}</a> <span>{each.words}</span></p>
                {each.next && <p class="next"><Words text={each.next} /></p>}
              </div>
            </li>
          ))}
        </ol>
      )}
    </Panel>
  );
}

function Numbers({ overview }: { overview: Overview }) {
  const { rates, broker, counts } = overview;
  const tiles: [string, string, string][] = [
    ["Answered", rate(rates.answered_per_second), "#/services"],
    ["Failed", rate(rates.failed_per_second), "#/services"],
    ["p50", span(rates.p50_seconds), "#/services"],
    ["p99", span(rates.p99_seconds), "#/services"],
    ["Waiting", count(broker.requests?.waiting), "#/queues"],
    ["Backends", count(broker.clients["backend"] ?? 0), "#/clients?role=backend"],
    ["Frontends", count(broker.clients["frontend"] ?? 0), "#/clients?role=frontend"],
    ["Open tasks", count(broker.tasks?.["open"]), "#/tasks"],
    ["Error clients", count(broker.error_clients), "#/clients/errors"],
    ["Incidents", count(counts["incidents_open"] ?? counts["incidents"]), "#/incidents"],
  ];
  return (
    <div class="tiles span-2">
      {tiles.map(([name, value, href]) => <a key={name} class="tile" href={href}><span>{name}</span><b>{value}</b></a>)}
    </div>
  );
}

function Parts({ health }: { health: Health[] }) {
  return (
    <Panel title="Health of every part" class="span-2">
      <ul class="parts">
        {health.map((each) => (
          <li key={each.part} class={each.state}>
            <State state={each.state}>{each.part}</State>
            <span class="part-words" title={each.words}>{each.words}</span>
            {each.next && each.state !== "ok" && <span class="next"><Words text={each.next} /></span>}
          </li>
        ))}
      </ul>
    </Panel>
  );
}
