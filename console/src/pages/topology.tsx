// The topology: a drawing of groups, brokers and links, and the same as a table with the actions on the broker of this
// console.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { useLive } from "../live";
import { count, counted, shortSpan } from "../logic/format";
import { isGood, layout, linkPath, pairs, type BrokerBox, type GroupBox } from "../logic/layout";
import { ActionButton } from "../parts/action_button";
import { Command, Panel, Shown, State, toneOf } from "../parts/common";
import { Table, type ColumnOf } from "../parts/table";
import type { Broker, Overview, Topology } from "../types";

const NAME_CHARS = 22;
const cut = (name: string): string => (name.length > NAME_CHARS ? `${name.slice(0, NAME_CHARS - 1)}…` : name);

export function stateWords(row: Broker): string {
  if (row.standby_for && row.state === "standby") return `standby for ${row.standby_for}`;
  if (row.standby_for && row.state === "active") return `active in place of ${row.standby_for}`;
  return row.state;
}

/** The state "draining" of the own broker is only in its status. */
function withDraining(seen: Topology, status: Overview | undefined): Topology {
  const [own, ...others] = seen.brokers;
  if (!own || !status?.broker.draining || own.state === "disabled") return seen;
  return { ...seen, brokers: [{ ...own, state: "draining" }, ...others] };
}

export function TopologyPage() {
  const live = useLive<Topology>("/topology");
  const status = useLive<Overview>("/overview");
  return (
    <Shown live={live}>
      {(found) => { const seen = withDraining(found, status.data); return (
        <>
          <Drawn seen={seen} />
          <Brokers seen={seen} />
          {seen.brokers.length === 1 && <><p class="faint">This broker knows no other brokers. Start another one that joins its peer port:</p><Command text={`scale0 broker --join ${seen.brokers[0]?.endpoints["peer"]?.replace("tcp://", "") ?? "HOST:PORT"}`} /></>}
        </>
      ); }}
    </Shown>
  );
}

function Drawn({ seen }: { seen: Topology }) {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(900);
  useLayoutEffect(() => {
    const at = box.current;
    if (!at) return;
    const sized = new ResizeObserver(() => setWidth(Math.max(240, at.clientWidth)));
    sized.observe(at);
    return () => sized.disconnect();
  }, []);
  const rows = new Map(seen.brokers.map((row) => [row.broker, row]));
  const grouped = new Map<string, string[]>();
  for (const row of seen.brokers) grouped.set(row.group, [...(grouped.get(row.group) ?? []), row.broker].sort());
  const drawn = layout([...grouped].map(([group, brokers]) => ({ group, brokers })), width);
  const links = pairs(seen.links, new Set(drawn.at.keys()));
  const words = `${counted(grouped.size, "group")}, ${counted(seen.brokers.length, "broker")}, ${counted(links.length, "link")}; the table below shows the same.`;
  return (
    <div class="drawing" ref={box}>
      <svg viewBox={`-2 -2 ${drawn.width + 4} ${drawn.height + 4}`} width={Math.min(width, drawn.width + 4)} role="img" aria-label={words}>
        {drawn.groups.map((group) => <Group key={group.group} group={group} />)}
        {links.map((link) => {
          const [from, to] = [drawn.at.get(link.from), drawn.at.get(link.to)];
          return from && to ? (
            <path key={`${link.from} ${link.to}`} class={isGood(link.state) ? "link" : "link broken"} d={linkPath(from, to)}>
              <title>{`${link.from} – ${link.to}: ${link.state}`}</title>
            </path>
          ) : null;
        })}
        {[...drawn.at.values()].map((at) => {
          const row = rows.get(at.broker);
          return row && <Card key={at.broker} at={at} row={row} here={row === seen.brokers[0]} services={seen.services[row.broker]?.length ?? 0} />;
        })}
      </svg>
    </div>
  );
}

function Group({ group }: { group: GroupBox }) {
  return (
    <g>
      <rect class="group" x={group.x} y={group.y} width={group.width} height={group.height} rx="8" />
      <text class="group-name" x={group.x + 16} y={group.y + 18}>{group.group || "(no group)"}</text>
    </g>
  );
}

function Card({ at, row, here, services }: { at: BrokerBox; row: Broker; here: boolean; services: number }) {
  return (
    <g class={`card ${toneOf(row.state)}${here ? " here" : ""}`}>
      <rect x={at.x} y={at.y} width={at.width} height={at.height} rx="6" />
      <rect class="edge" x={at.x} y={at.y} width="5" height={at.height} rx="2.5" />
      <text class="card-name" x={at.x + 16} y={at.y + 22}>{cut(row.broker)}<title>{row.broker}</title></text>
      <text class="card-state" x={at.x + 16} y={at.y + 42}>{cut(stateWords(row))}{here ? " · here" : ""}</text>
      <text class="card-more" x={at.x + 16} y={at.y + 62}>
        {row.state === "lost" ? `last seen ${shortSpan(row.age)} ago` : `${counted(row.load, "client")} · ${counted(services, "service")}`}
      </text>
    </g>
  );
}

function Brokers({ seen }: { seen: Topology }) {
  const own = seen.brokers[0]?.broker;
  const columns: ColumnOf<Broker>[] = [
    { head: "Broker", cell: (row) => <>{row.broker}{row.broker === own && <span class="tag">here</span>}</>, by: (row) => row.broker },
    { head: "Group", cell: (row) => row.group || "–", by: (row) => row.group },
    { head: "State", cell: (row) => <State state={row.state}>{stateWords(row)}</State>, by: (row) => row.state },
    { head: "Clients", number: true, cell: (row) => count(row.load), by: (row) => row.load },
    { head: "Last seen", number: true, cell: (row) => (row.broker === own ? "–" : `${shortSpan(row.age)} ago`), by: (row) => row.age },
    { head: "Config", number: true, cell: (row) => row.config_version, by: (row) => row.config_version },
    { head: "Serves", cell: (row) => (row.services === "all" ? "all" : row.services.join(" ") || "nothing") },
    { head: "Frontend endpoint", wide: true, cell: (row) => <span class="mono">{row.endpoints["frontend"] || "–"}</span> },
    { head: "Actions", bare: true, cell: (row) => <BrokerActions row={row} own={own} /> },
  ];
  return (
    <Panel title="Brokers" side={<a href="#/config">Configuration</a>}>
      <Table label="Brokers" rows={seen.brokers} columns={columns} id={(row) => row.broker} tone={(row) => (isGood(row.state) ? "" : toneOf(row.state))} />
    </Panel>
  );
}

function BrokerActions({ row, own }: { row: Broker; own: string | undefined }) {
  const elsewhere = row.broker === own ? "" : `This is the console of ${own}: use the console of ${row.broker}, or run the command on its machine.`;
  const places = { broker: row.broker };
  const common = { places, about: row.broker };
  const serves = row.state === "active" || row.state === "standby";
  return (
    <span class="acts-row">
      {!serves && <ActionButton id="broker.enable" {...common} because={elsewhere} done={() => `${row.broker} is enabled.`} />}
      {serves && <ActionButton id="broker.drain" {...common} because={elsewhere} means="It finishes the work in flight, accepts no new work, and moves its clients to other brokers." />}
      {row.state !== "disabled" && <ActionButton id="broker.disable" {...common} because={elsewhere} quiet means="It answers only management commands, also after a restart. Waiting requests are refused, and its clients move to other brokers." />}
      <ActionButton id="broker.reload" {...common} because={elsewhere} quiet means="It reads its configuration file again; an invalid file changes nothing." />
    </span>
  );
}
