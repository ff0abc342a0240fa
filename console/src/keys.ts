// Keyboard shortcuts: `/` for the filter, `g` and a letter for a page, `j` and `k` for rows, `?` for the list of all.
// They are off in input fields, while a dialog is open, and if the user turned them off (for speech input).

import { signal } from "@preact/signals";
import { pollNow } from "./live";
import { PAGES } from "./pages";
import { go } from "./router";
import { choose, isDark } from "./theme";

const OFF_KEY = "scale0.keys";
/** How long `g` waits for the letter. */
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
    // Without storage the setting lasts until the page is closed.
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
      r: pollNow,
      d: () => choose(isDark.value ? "light" : "dark"),
    };
    const act = acts[event.key];
    if (act) {
      event.preventDefault();
      act();
    }
  });
}
