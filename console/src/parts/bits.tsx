// Small things that every page uses: a state with its mark, an empty place that says what to type, a moment that ages.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import type { ApiError } from "../api";
import { ago, moment } from "../logic/format";
import { tell } from "./notice";

/** Seconds since the epoch, once a second: what says "3 s ago" looks here. */
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
/** A shape for each tone: colour alone says nothing to many. */
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

/** Nothing is here: what that means, and what to type next. */
export function Empty({ title, children, commands = [] }: { title: string; children?: ComponentChildren; commands?: string[] }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children && <div>{children}</div>}
      {commands.map((command) => <Command key={command} text={command} />)}
    </div>
  );
}

/** A command to be copied. */
export function Command({ text }: { text: string }) {
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(text);
      tell("Copied.");
    } catch {
      tell("The browser does not allow copying here: select the text.");
    }
  };
  return (
    <div class="command">
      <code>{text}</code>
      <button type="button" class="small quiet" aria-label={`Copy ${text}`} onClick={copy}>Copy</button>
    </div>
  );
}

/** An error in the place of what it kept away. */
export function Trouble({ error }: { error: ApiError }) {
  return (
    <div class="trouble" role="alert">
      <p>{error.message}</p>
      {error.reasons.length > 0 && <ul>{error.reasons.map((reason) => <li key={reason}>{reason}</li>)}</ul>}
      {error.next && <p class="next"><Words text={error.next} /></p>}
    </div>
  );
}

interface Loaded<T> { data: T | undefined; error: ApiError | null }

/** What was read; before that, a place for it; and what went wrong. */
export function Shown<T>({ live, children }: { live: Loaded<T>; children: (data: T) => ComponentChildren }) {
  return (
    <>
      {live.error && <Trouble error={live.error} />}
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

/** An id where there is no room for all of it: its end tells those apart that were made together. */
export function Id({ id }: { id: string }) {
  return <span class="mono" title={id}>{id.length > 16 ? `${id.slice(0, 5)}…${id.slice(-8)}` : id}</span>;
}

/** Words with commands between backticks, as the server tells them. */
export function Words({ text }: { text: string }) {
  return <>{text.split("`").map((part, at) => (at % 2 ? <code key={at}>{part}</code> : part))}</>;
}

/** Who was asked and did not answer: what they watch is missing from the page. */
export function Missing({ heard }: { heard: { helens: string[] | null; silent: string[] } }) {
  if (heard.helens !== null && heard.helens.length === 0) {
    return <p class="banner" role="status">No Helen is connected: nothing is watched. <code>scale0 helen --config FILE</code> starts one.</p>;
  }
  if (!heard.silent.length) return null;
  return <p class="banner" role="status">{heard.silent.join(", ")} {heard.silent.length === 1 ? "does" : "do"} not answer: what is watched there is missing here.</p>;
}

/** `eager`: it filters what is here, letter by letter; else the server is asked, once the text is whole. */
interface FilterProps { value: string; onChange: (value: string) => void; label?: string; eager?: boolean; isFirst?: boolean }
export function Filter({ value, onChange, label = "Filter", eager = true, isFirst = true }: FilterProps) {
  const say = (event: { currentTarget: HTMLInputElement }): void => onChange(event.currentTarget.value);
  return (
    <label class="filter">
      <span class="hidden">{label}</span>
      <input
        type="search" data-filter={isFirst ? "" : undefined} value={value} placeholder={isFirst ? `${label}  ( / )` : label}
        {...(eager ? { onInput: say } : { onChange: say })}
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
  return (
    <nav class="tabs" aria-label={label}>
      {tabs.map(([id, words, href]) => <a key={id} href={href} aria-current={id === at ? "page" : undefined}>{words}</a>)}
    </nav>
  );
}
