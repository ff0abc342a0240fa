// Changes of a document by key path, and merging the changes of two users. Pure.
// Paths are those of `scale0 config set`: a list whose entries have names is addressed by name, `checks.[disk].interval`.

import type { Change, Json } from "../types";

type Tree = { [key: string]: Json };
/** Keys that brokers set. */
const SET_BY_BROKERS = new Set(["version", "parent"]);

export const same = (one: Json | undefined, other: Json | undefined): boolean => canonical(one) === canonical(other);

function canonical(value: Json | undefined): string {
  return JSON.stringify(value, (_key, part: unknown) =>
    part !== null && typeof part === "object" && !Array.isArray(part)
      ? Object.fromEntries(Object.entries(part).sort(([one], [other]) => (one < other ? -1 : 1)))
      : part,
  ) ?? "";
}

function isTree(value: Json | undefined): value is Tree {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

function nameOf(value: Json): string | null {
  if (!isTree(value)) return null;
  const name = value["name"] ?? value["identity"];
  return typeof name === "string" ? name : null;
}

/** Entries by name; null: the value is no list of entries with unique names. */
function named(value: Json | undefined): Map<string, Json> | null {
  if (!Array.isArray(value)) return null;
  const found = new Map<string, Json>();
  for (const entry of value) {
    const name = nameOf(entry);
    if (name === null || found.has(name)) return null;
    found.set(name, entry);
  }
  return found;
}

const bracketed = (name: string): string => `[${name.replaceAll("]", "]]")}]`;
const segment = (key: string): string => (/^[^.[\]]+$/.test(key) ? key : bracketed(key));
const under = (path: string, part: string): string => (path ? `${path}.${part}` : part);

/** The changes, of the smallest addressable parts; null: absent. */
export function changes(before: Tree, after: Tree): Change[] {
  const out: Change[] = [];
  for (const key of new Set([...Object.keys(before), ...Object.keys(after)])) {
    if (!SET_BY_BROKERS.has(key)) compare(segment(key), before[key], after[key], out);
  }
  return out;
}

function compare(path: string, before: Json | undefined, after: Json | undefined, out: Change[]): void {
  if (same(before, after)) return;
  if (isTree(before) && isTree(after)) {
    for (const key of new Set([...Object.keys(before), ...Object.keys(after)])) {
      compare(under(path, segment(key)), before[key], after[key], out);
    }
    return;
  }
  const one = named(before);
  const other = named(after);
  if (one && other && one.size + other.size > 0) {
    const from = out.length;
    for (const name of new Set([...one.keys(), ...other.keys()])) {
      compare(under(path, bracketed(name)), one.get(name), other.get(name), out);
    }
    if (out.length > from) return;
  }
  out.push({ path, before: before ?? null, after: after ?? null });
}

/** Changes as the body of PATCH. */
export function patchOf(list: readonly Change[]): { set: Tree; remove: string[] } {
  const set: Tree = {};
  const remove: string[] = [];
  for (const change of list) {
    if (change.after === null) remove.push(change.path);
    else set[change.path] = change.after;
  }
  return { set, remove };
}

export interface Merged { document: Tree; applied: Change[]; clashes: { mine: Change; theirs: Change }[] }

/** My changes applied to their document. If both changed the same path, mine wins and is listed as a clash. */
export function reapplied(base: Tree, mine: Tree, theirs: Tree): Merged {
  const own = changes(base, mine);
  const other = changes(base, theirs);
  const document = structuredClone(theirs);
  const clashes: Merged["clashes"] = [];
  for (const change of own) {
    const hit = other.find((each) => overlaps(each.path, change.path) && !same(each.after, change.after));
    if (hit) clashes.push({ mine: change, theirs: hit });
    put(document, partsOf(change.path), change.after);
  }
  return { document, applied: own, clashes };
}

function overlaps(one: string, other: string): boolean {
  return one === other || one.startsWith(`${other}.`) || other.startsWith(`${one}.`);
}

interface Part { text: string; exact: boolean }

export function partsOf(path: string): Part[] {
  return [...path.matchAll(/\[((?:[^\]]|\]\])*)\]|([^.[\]]+)/g)].map((found) =>
    found[2] === undefined
      ? { text: (found[1] ?? "").replaceAll("]]", "]"), exact: true }
      : { text: found[2], exact: false },
  );
}

function put(root: Tree, parts: Part[], value: Json): void {
  let at: Json = root;
  parts.forEach((part, number) => {
    const last = number === parts.length - 1;
    if (Array.isArray(at)) at = inList(at, part.text, last, value);
    else if (isTree(at)) at = inTree(at, part.text, last, value);
  });
}

function inTree(tree: Tree, key: string, last: boolean, value: Json): Json {
  if (last && value === null) delete tree[key];
  else if (last) tree[key] = value;
  else tree[key] ??= {};
  return tree[key] ?? null;
}

function inList(list: Json[], name: string, last: boolean, value: Json): Json {
  const at = list.findIndex((entry) => nameOf(entry) === name);
  if (!last) {
    if (at < 0) list.push({ name });
    return list[at < 0 ? list.length - 1 : at] as Json;
  }
  if (value === null && at >= 0) list.splice(at, 1);
  else if (value !== null && at >= 0) list[at] = value;
  else if (value !== null) list.push(value);
  return null;
}
