// The wait before the next request. Pure: the caller passes time and randomness.

export const MAX_WAIT_MS = 30_000;

/** The wait after `failures` in a row; `chance` (0 to 1) adds jitter. */
export function waitMs(everyMs: number, failures: number, chance: number): number {
  if (failures <= 0) return everyMs;
  const grown = Math.min(MAX_WAIT_MS, everyMs * 2 ** Math.min(failures, 10));
  return Math.round(grown * (0.75 + chance / 2));
}

/** A slow list is read less often: reading takes at most a fifth of the time. */
export function paceMs(everyMs: number, tookMs: number): number {
  return Math.max(everyMs, tookMs * 4);
}
