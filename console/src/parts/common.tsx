// Small components that all pages use: states, relative times, empty states, commands, errors, filters and tabs.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { ApiError } from "../api";
import { ago, moment } from "../logic/format";
import { notify } from "./notice";

/** The current time in seconds since the epoch, updated once a second. */
export const now = signal(Date.now() / 1000);
setInterval(() => {
  if (!document.hidden) now.value = Date.now() / 1000;
}, 1_000);

const TONES: Record<string, string> = {
  ok: "ok", active: "ok", connected: "ok", finished: "ok", up: "ok", closed: "ok", live: "ok", alive: "ok", heard: "ok", current: "ok",
  warning: "warning", draining: "warning", away: "warning", cancelled: "warning", stale: "warning", joining: "warning", retried: "warning", late: "warning",
  critical: "critical", failed: "critical", lost: "critical", disabled: "critical", doubled: "critical", down: "critical", open: "critical", error: "critical", dead: "critical",
  unknown: "unknown", standby: "info", running: "info", assigned: "info", queued: "idle", scheduled: "idle",
};
/** A shape for each tone, because not everybody can tell the colours apart. */
const MARKS: Record<string, string> = { ok: "●", warning: "▲", critical: "■", unknown: "◆", info: "▶", idle: "○" };

export const toneOf = (state: string): string => TONES[state] ?? "idle";

export function State({ state, children }: { state: string; children?: ComponentChildren }) {
  const tone = toneOf(state);
  return (
    <span class={`state ${tone}`}>
      <span class="mark" aria-hidden="true">{MARKS[tone]}</span>
      {children ?? state}
    </span>
  );
}

export function Ago({ at }: { at: number | string | null | undefined }) {
  return <time title={moment(at)}>{ago(at, now.value)}</time>;
}

/** An empty state: an explanation, and commands to run next. */
export function Empty({ title, children, commands = [] }: { title: string; children?: ComponentChildren; commands?: string[] }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children && <div>{children}</div>}
      {commands.map((command) => <Command key={command} text={command} />)}
    </div>
  );
}

/** A command with a copy button. */
export function Command({ text }: { text: string }) {
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(text);
      notify("Copied.");
    } catch {
      notify("The browser does not allow copying here. Select the text and copy it.");
    }
  };
  return (
    <div class="command">
      <code>{text}</code>
      <button type="button" class="small quiet" aria-label={`Copy ${text}`} onClick={copy}>Copy</button>
    </div>
  );
}

/** An error message with the next step. */
export function ErrorBox({ error }: { error: ApiError }) {
  return (
    <div class="trouble" role="alert">
      <p>{error.message}</p>
      {error.reasons.length > 0 && <ul>{error.reasons.map((reason) => <li key={reason}>{reason}</li>)}</ul>}
      {error.next && <p class="next"><Words text={error.next} /></p>}
    </div>
  );
}

interface Loaded<T> { data: T | undefined; error: ApiError | null }

/** The loaded data, a loading indicator before that, and the error of the last request. */
export function Shown<T>({ live, children }: { live: Loaded<T>; children: (data: T) => ComponentChildren }) {
  return (
    <>
      {live.error && <ErrorBox error={live.error} />}
      {live.data !== undefined ? children(live.data) : live.error ? null : <p class="loading" role="status">Loading…</p>}
    </>
  );
}

export function Panel({ title, side, children, class: cls }: { title: string; side?: ComponentChildren; children: ComponentChildren; class?: string }) {
  return (
    <section class={`panel ${cls ?? ""}`}>
      <header><h2>{title}</h2>{side && <div class="side">{side}</div>}</header>
      {children}
    </section>
  );
}

export function Facts({ rows }: { rows: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {rows.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}
    </dl>
  );
}

/** A shortened id: the last characters differ between ids that were made together. */
export function Id({ id }: { id: string }) {
  return <span class="mono" title={id}>{id.length > 16 ? `${id.slice(0, 5)}…${id.slice(-8)}` : id}</span>;
}

/** Text of the server, with commands between backticks. */
export function Words({ text }: { text: string }) {
  return <>{text.split("`").map((part, at) => (at % 2 ? <code key={at}>{part}</code> : part))}</>;
}

/** A banner for Helens that did not answer. */
export function Missing({ answered }: { answered: { helens: string[] | null; silent: string[] } }) {
  if (answered.helens !== null && answered.helens.length === 0) {
    return <p class="banner" role="status">No Helen is connected, so nothing is monitored. Start one with <code>scale0 helen --config FILE</code>.</p>;
  }
  if (!answered.silent.length) return null;
  return <p class="banner" role="status">{answered.silent.join(", ")} {answered.silent.length === 1 ? "does" : "do"} not answer. Agents and checks of {answered.silent.length === 1 ? "this Helen" : "these Helens"} are missing.</p>;
}

/** `eager`: filter loaded rows with each key; otherwise ask the server when the text is complete. */
interface FilterProps { value: string; onChange: (value: string) => void; label?: string; eager?: boolean; isFirst?: boolean }
export function Filter({ value, onChange, label = "Filter", eager = true, isFirst = true }: FilterProps) {
  const change = (event: { currentTarget: HTMLInputElement }): void => onChange(event.currentTarget.value);
  return (
    <label class="filter">
      <span class="hidden">{label}</span>
      <input
        type="search" data-filter={isFirst ? "" : undefined} value={value} placeholder={isFirst ? `${label}  ( / )` : label}
        {...(eager ? { onInput: change } : { onChange: change })}
      />
    </label>
  );
}

interface ChoiceProps<T extends string> { label: string; value: T; options: readonly (readonly [T, string])[]; onChange: (value: T) => void }
export function Choice<T extends string>({ label, value, options, onChange }: ChoiceProps<T>) {
  return (
    <label class="choice">
      <span>{label}</span>
      <select value={value} onChange={(event) => onChange(event.currentTarget.value as T)}>
        {options.map(([each, words]) => <option key={each} value={each}>{words}</option>)}
      </select>
    </label>
  );
}

export function Tabs({ label, at, tabs }: { label: string; at: string; tabs: [string, string, string][] }) {
  const box = useRef<HTMLElement>(null);
  useEffect(() => {
    // Scroll the open tab into view.
    const open = box.current?.querySelector<HTMLElement>("[aria-current]");
    if (open && box.current) box.current.scrollLeft = open.offsetLeft - box.current.offsetLeft - (box.current.clientWidth - open.offsetWidth) / 2;
  }, [at]);
  return (
    <nav class="tabs" aria-label={label} ref={box}>
      {tabs.map(([id, words, href]) => <a key={id} href={href} aria-current={id === at ? "page" : undefined}>{words}</a>)}
    </nav>
  );
}
