// Which rows of a long list are drawn. Pure: a window into rows of one height.

export interface Window { first: number; last: number; above: number; below: number }

/** Rows [first, last) are drawn; `above` and `below` are the heights of what is not. */
export function windowOf(total: number, rowHeight: number, scrollTop: number, height: number, overscan = 8): Window {
  if (total <= 0 || rowHeight <= 0) return { first: 0, last: 0, above: 0, below: 0 };
  const top = Math.min(Math.max(0, scrollTop), Math.max(0, total * rowHeight - height));
  const first = Math.max(0, Math.floor(top / rowHeight) - overscan);
  const last = Math.min(total, Math.ceil((top + height) / rowHeight) + overscan);
  return { first, last, above: first * rowHeight, below: (total - last) * rowHeight };
}

export type SortKey = string | number | boolean | null | undefined;

/** Numbers by size, text as people order it (web-2 before web-10); what is not known is last either way. */
export function compare(one: SortKey, other: SortKey, down: boolean): number {
  const noOne = one === null || one === undefined;
  const noOther = other === null || other === undefined;
  if (noOne || noOther) return Number(noOne) - Number(noOther);
  const sign = down ? -1 : 1;
  if (typeof one === "string" && typeof other === "string") return sign * collator.compare(one, other);
  return sign * (Number(one) - Number(other));
}

const collator = new Intl.Collator("en", { numeric: true });

/** A new list; equals keep their order. */
export function sorted<T>(rows: readonly T[], key: (row: T) => SortKey, down: boolean): T[] {
  return rows
    .map((row, at) => ({ row, at, key: key(row) }))
    .sort((one, other) => compare(one.key, other.key, down) || one.at - other.at)
    .map((each) => each.row);
}

/** Does every word of the filter stand somewhere in the text? */
export function fits(text: string, filter: string): boolean {
  const lower = text.toLowerCase();
  return filter.toLowerCase().split(/\s+/).every((word) => lower.includes(word));
}
