// The frame of every page: navigation, the user, the live indicator, and keyboard shortcuts.

import { signal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { helpOpen, keysOn, setKeys } from "./keys";
import { pollNow, liveState } from "./live";
import { clock } from "./logic/format";
import { PAGES, SECTIONS } from "./pages";
import { Access } from "./pages/access";
import { Agents } from "./pages/agents";
import { Audit } from "./pages/audit";
import { Availability } from "./pages/availability";
import { Checks } from "./pages/checks";
import { Clients } from "./pages/clients";
import { Config } from "./pages/config";
import { Events } from "./pages/events";
import { Incidents } from "./pages/incidents";
import { Login } from "./pages/login";
import { OverviewPage } from "./pages/overview";
import { Queues } from "./pages/queues";
import { Services } from "./pages/services";
import { Silences } from "./pages/silences";
import { Tasks } from "./pages/tasks";
import { TopologyPage } from "./pages/topology";
import { Trends } from "./pages/trends";
import { Confirmations } from "./parts/action_button";
import { Empty } from "./parts/common";
import { Dialog } from "./parts/dialog";
import { Notices, notifyError } from "./parts/notice";
import { route } from "./router";
import { has, logOut, session } from "./session";
import { choice, choose, type Choice } from "./theme";

const VIEWS: Record<string, ComponentType> = {
  overview: OverviewPage, topology: TopologyPage, services: Services, queues: Queues, tasks: Tasks, clients: Clients,
  agents: Agents, checks: Checks, incidents: Incidents, silences: Silences, availability: Availability, trends: Trends,
  config: Config, events: Events, audit: Audit, access: Access,
};
/** Pages that show their own command, with the chosen filters. */
const OWN_COMMAND = new Set(["availability", "trends"]);
const navOpen = signal(false);

export function Shell() {
  const user = session.value;
  const { page } = route.value;
  const entry = PAGES.find((each) => each.page === page);
  const main = useRef<HTMLElement>(null);
  useEffect(() => {
    document.title = `${user ? (entry?.title ?? "Not found") : "Log in"} · Scale0`;
    navOpen.value = false;
    main.current?.scrollTo?.(0, 0);
  }, [page, user === null]);
  if (user === undefined) return <p class="boot" role="status">Scale0 is loading…</p>;
  if (user === null || page === "login") return <><Login /><Notices /></>;
  const View = VIEWS[page];
  return (
    <div class={navOpen.value ? "shell nav-open" : "shell"}>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>Skip to content</a>
      <Top title={entry?.title ?? "Not found"} />
      <Nav page={page} />
      <main id="main" ref={main} tabIndex={-1}>
        <div class="title"><h1>{entry?.title ?? "Not found"}</h1>{entry && !OWN_COMMAND.has(page) && <code class="same" title="The same on the command line">{entry.command}</code>}</div>
        {View ? <View /> : <Empty title={`There is no page “${page}”.`}><a href="#/overview">Go to the overview</a></Empty>}
      </main>
      <Confirmations />
      <Notices />
      {helpOpen.value && <Help />}
    </div>
  );
}

function Top({ title }: { title: string }) {
  const leave = async (): Promise<void> => {
    try {
      await logOut();
    } catch (error) {
      notifyError(error);
    }
  };
  return (
    <header class="top">
      <button type="button" class="burger" aria-expanded={navOpen.value} aria-controls="nav" onClick={() => { navOpen.value = !navOpen.value; }}>
        <span aria-hidden="true">☰</span><span class="hidden">Pages</span>
      </button>
      <a class="brand" href="#/overview"><img src="./icon.svg" alt="" width="20" height="20" />Scale0</a>
      <span class="top-title" aria-hidden="true">{title}</span>
      <Mark />
      <label class="choice theme">
        <span class="hidden">Colour theme</span>
        <select value={choice.value} onChange={(event) => choose(event.currentTarget.value as Choice)}>
          <option value="auto">Auto</option><option value="light">Light</option><option value="dark">Dark</option>
        </select>
      </label>
      <button type="button" class="small quiet keys" onClick={() => { helpOpen.value = true; }}>Keys <kbd>?</kbd></button>
      <span class="who"><b>{session.value?.name}</b> <span class="role">{session.value?.role}</span></span>
      <button type="button" class="small" onClick={leave}>Log out</button>
    </header>
  );
}

function Mark() {
  const { live, since, error } = liveState.value;
  return (
    <span class="live-box">
      <span role="status" class={live ? "live ok" : "live stale"} title={live ? "The page shows the current state" : error}>
        <span aria-hidden="true">{live ? "●" : "▲"}</span> {live ? "live" : `stale since ${clock(since / 1000)}`}
      </span>
      {!live && <button type="button" class="small" onClick={pollNow}>Refresh now</button>}
    </span>
  );
}

function Nav({ page }: { page: string }) {
  return (
    <nav id="nav" class="nav" aria-label="Pages">
      {SECTIONS.map((section) => (
        <div key={section.name} class="nav-section">
          <h2>{section.name}</h2>
          <ul>
            {section.pages.map((entry) => (
              <li key={entry.page}>
                {entry.admin && !has("admin") ? (
                  <span class="nav-off" title="This page needs the role admin">{entry.title}<span class="hidden"> (needs the role admin)</span></span>
                ) : (
                  <a href={`#/${entry.page}`} aria-current={entry.page === page ? "page" : undefined}>
                    {entry.title}<kbd aria-hidden="true">g {entry.key}</kbd>
                  </a>
                )}
              </li>
            ))}
          </ul>
        </div>
      ))}
    </nav>
  );
}

function Help() {
  const rows: [string, string][] = [
    ["/", "go to the filter"], ["Esc", "leave a field, or close a dialog"], ["j  k", "next and previous row"],
    ["r", "refresh now"], ["d", "light or dark theme"], ["?", "this list"],
  ];
  return (
    <Dialog title="Keys" onClose={() => { helpOpen.value = false; }} wide>
      <div class="columns">
        <dl class="keys-list">{rows.map(([key, words]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{words}</dd></div>)}</dl>
        <dl class="keys-list">
          {PAGES.map((entry) => <div key={entry.page}><dt><kbd>g {entry.key}</kbd></dt><dd>{entry.title}</dd></div>)}
        </dl>
      </div>
      <label class="tick">
        <input type="checkbox" checked={keysOn.value} onChange={(event) => setKeys(event.currentTarget.checked)} />
        Keyboard shortcuts are on (turn them off if you use speech input)
      </label>
    </Dialog>
  );
}
