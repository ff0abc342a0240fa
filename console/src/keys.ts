// Keys of the whole console: `/` to the filter, `g` and a letter to a page, `j` and `k` along rows, `?` for all of them.
// They rest while somebody types, while a dialog is open, and for whoever turned them off (they may speak to their machine).

import { signal } from "@preact/signals";
import { nudge } from "./live";
import { PAGES } from "./pages";
import { go } from "./router";
import { choose, isDark } from "./theme";

const OFF_KEY = "scale0.keys";
/** How long `g` waits for its letter. */
const CHORD_MS = 1_500;

export const helpOpen = signal(false);
export const keysOn = signal(readOn());

function readOn(): boolean {
  try {
    return localStorage.getItem(OFF_KEY) !== "off";
  } catch {
    return true;
  }
}

export function setKeys(on: boolean): void {
  keysOn.value = on;
  try {
    localStorage.setItem(OFF_KEY, on ? "on" : "off");
  } catch {
    // Without storage it lasts as long as the page.
  }
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

function step(by: number): void {
  const rows = [...document.querySelectorAll<HTMLElement>("[data-row]")];
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  const next = rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
  const inner = next?.querySelector<HTMLElement>("a, button");
  (inner ?? next)?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

export function listenForKeys(): void {
  let chordUntil = 0;
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (isTyping(event.target)) {
      if (event.key === "Escape") (event.target as HTMLElement).blur();
      return;
    }
    if (!keysOn.value) return;
    if (performance.now() < chordUntil) {
      chordUntil = 0;
      const found = PAGES.find((entry) => entry.key === event.key);
      if (found) {
        event.preventDefault();
        go(`#/${found.page}`);
      }
      return;
    }
    const acts: Record<string, () => void> = {
      g: () => { chordUntil = performance.now() + CHORD_MS; },
      "/": () => document.querySelector<HTMLInputElement>("[data-filter]")?.focus(),
      "?": () => { helpOpen.value = true; },
      j: () => step(1),
      k: () => step(-1),
      r: nudge,
      d: () => choose(isDark.value ? "light" : "dark"),
    };
    const act = acts[event.key];
    if (act) {
      event.preventDefault();
      act();
    }
  });
}
