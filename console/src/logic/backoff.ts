// How long to wait before asking again. Pure: time and chance are given.

export const MAX_WAIT_MS = 30_000;

/** After `failures` in a row; `chance` (0 to 1) spreads those who failed together. */
export function waitMs(everyMs: number, failures: number, chance: number): number {
  if (failures <= 0) return everyMs;
  const grown = Math.min(MAX_WAIT_MS, everyMs * 2 ** Math.min(failures, 10));
  return Math.round(grown * (0.75 + chance / 2));
}

/** A list of many pages is read less often: at most a fifth of the time is spent on reading it. */
export function paceMs(everyMs: number, tookMs: number): number {
  return Math.max(everyMs, tookMs * 4);
}
