// The route, in the fragment of the address: `#/tasks/ID?status=failed`. The server never sees it.

import { signal } from "@preact/signals";

export interface Route { page: string; rest: string[]; query: URLSearchParams }

/** The route of a fragment; the overview if it is empty. */
export function parseRoute(hash: string): Route {
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

/** The fragment of a route; names may contain any character. */
export function routeTo(page: string, rest: string[] = [], query: Record<string, string> = {}): string {
  const given = Object.entries(query).filter(([, value]) => value);
  const words = given.length ? `?${new URLSearchParams(given)}` : "";
  return `#/${[page, ...rest.map(encodeURIComponent)].join("/")}${words}`;
}

export const route = signal<Route>(parseRoute(typeof location === "undefined" ? "" : location.hash));

export function go(to: string): void {
  location.hash = to.replace(/^#/, "");
}

/** Store the filters in the address without a new history entry. */
export function amend(query: Record<string, string>): void {
  const { page, rest } = route.value;
  history.replaceState(null, "", routeTo(page, rest, query));
  route.value = parseRoute(location.hash);
}

export function follow(): void {
  addEventListener("hashchange", () => {
    route.value = parseRoute(location.hash);
  });
}
