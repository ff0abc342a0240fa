// Where we are, as the part of the address behind `#`: `#/tasks/ID?status=failed`. The server never sees it.

import { signal } from "@preact/signals";

export interface Place { page: string; rest: string[]; query: URLSearchParams }

/** What an address says; the overview if it says nothing. */
export function parsePlace(hash: string): Place {
  const [path = "", words = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const parts = path.split("/").filter(Boolean).map(unescaped);
  return { page: parts[0] ?? "overview", rest: parts.slice(1), query: new URLSearchParams(words) };
}

function unescaped(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** An address from names, which may hold anything. */
export function placeOf(page: string, rest: string[] = [], query: Record<string, string> = {}): string {
  const given = Object.entries(query).filter(([, value]) => value);
  const words = given.length ? `?${new URLSearchParams(given)}` : "";
  return `#/${[page, ...rest.map(encodeURIComponent)].join("/")}${words}`;
}

export const place = signal<Place>(parsePlace(typeof location === "undefined" ? "" : location.hash));

export function go(to: string): void {
  location.hash = to.replace(/^#/, "");
}

/** Say in the address what a page is filtered by, without a step in the history for every letter. */
export function amend(query: Record<string, string>): void {
  const { page, rest } = place.value;
  history.replaceState(null, "", placeOf(page, rest, query));
  place.value = parsePlace(location.hash);
}

export function follow(): void {
  addEventListener("hashchange", () => {
    place.value = parsePlace(location.hash);
  });
}
