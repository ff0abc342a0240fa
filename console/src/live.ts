// Polling keeps pages live: each path has a loop that backs off while the server does not answer, and pauses while the
// tab is hidden. The live indicator is computed from all loops.

import { computed, signal } from "@preact/signals";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { all, ApiError, get, type Whole } from "./api";
import { paceMs, waitMs } from "./logic/backoff";
import { session } from "./session";

export const LIVE_MS = 2_000;

interface Beat { okAt: number; error: string }

/** The state of every loop and stream, by number. */
const beats = signal<ReadonlyMap<number, Beat>>(new Map());
let lastNumber = 0;

export interface LiveState { live: boolean; since: number; error: string }

/** Live only if every loop and stream is. */
export const liveState = computed<LiveState>(() => {
  const bad = [...beats.value.values()].filter((beat) => beat.error);
  const worst = bad.sort((one, other) => one.okAt - other.okAt)[0];
  return worst ? { live: false, since: worst.okAt, error: worst.error } : { live: true, since: 0, error: "" };
});

function beat(number: number, change: Beat | null): void {
  const next = new Map(beats.value);
  if (change) next.set(number, change);
  else next.delete(number);
  beats.value = next;
}

/** For a stream, which reports its own state. */
export function newBeat(): { ok: () => void; bad: (error: string) => void; end: () => void } {
  const number = ++lastNumber;
  let okAt = Date.now();
  return {
    ok: () => {
      okAt = Date.now();
      beat(number, { okAt, error: "" });
    },
    bad: (error) => beat(number, { okAt, error }),
    end: () => beat(number, null),
  };
}

/** Make all loops poll now, after a key press or an action. */
export const pollRequests = signal(0);
export function pollNow(): void {
  pollRequests.value += 1;
}

export interface Live<T> { data: T | undefined; error: ApiError | null; at: number; refresh: () => void }
type Read<T> = (path: string, signal: AbortSignal) => Promise<T>;

function useLoop<T>(path: string | null, read: Read<T>, everyMs: number): Live<T> {
  const [state, setState] = useState<{ path: string | null; data?: T; error: ApiError | null; at: number }>({
    path, error: null, at: 0,
  });
  const wake = useRef<() => void>(() => {});
  useEffect(() => {
    if (path === null) return;
    const number = ++lastNumber;
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let failures = 0;
    let okAt = Date.now();
    let busy = false;
    let again = false;
    const look = async (): Promise<void> => {
      if (stop.signal.aborted) return;
      if (busy) {
        // The request in flight is older than the call: poll again after it.
        again = true;
        return;
      }
      clearTimeout(timer);
      if (document.hidden && okAt && failures === 0 && everyMs > 0 && started) {
        timer = setTimeout(look, everyMs);
        return;
      }
      busy = true;
      started = true;
      const from = performance.now();
      try {
        const data = await read(path, stop.signal);
        failures = 0;
        okAt = Date.now();
        setState({ path, data, error: null, at: okAt });
        beat(number, { okAt, error: "" });
      } catch (error) {
        if (stop.signal.aborted) return;
        const told = error instanceof ApiError ? error : new ApiError(0, String(error));
        // A permanent refusal does not make the page stale.
        const lasting = told.status >= 400 && told.status < 500 && told.status !== 429;
        failures += 1;
        setState((old) => ({ path, data: old.path === path ? old.data : undefined, error: told, at: okAt }));
        beat(number, { okAt, error: lasting ? "" : told.message });
      } finally {
        busy = false;
      }
      if (stop.signal.aborted) return;
      if (again) {
        again = false;
        void look();
        return;
      }
      if (everyMs <= 0) return;
      timer = setTimeout(look, waitMs(paceMs(everyMs, performance.now() - from), failures, Math.random()));
    };
    let started = false;
    wake.current = () => void look();
    const seen = (): void => {
      if (!document.hidden) void look();
    };
    document.addEventListener("visibilitychange", seen);
    let first = true;
    const off = pollRequests.subscribe(() => {
      if (!first) void look();
      first = false;
    });
    void look();
    return () => {
      stop.abort();
      clearTimeout(timer);
      off();
      document.removeEventListener("visibilitychange", seen);
      beat(number, null);
    };
    // A new login polls everything again.
  }, [path, everyMs, session.value?.name]);
  const refresh = useCallback(() => wake.current(), []);
  const same = state.path === path;
  return { data: same ? state.data : undefined, error: same ? state.error : null, at: state.at, refresh };
}

/** Polls one path. */
export function useLive<T>(path: string | null, everyMs = LIVE_MS): Live<T> {
  return useLoop<T>(path, get, everyMs);
}

/** Polls all pages of a list. */
export function useAll<T>(path: string | null, everyMs = LIVE_MS): Live<Whole<T>> {
  return useLoop<Whole<T>>(path, all, everyMs);
}
