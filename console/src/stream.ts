// The event stream: server-sent events, resumed at the last position. Each event is shown once. Events that arrive during
// a pause are kept up to a limit and shown afterwards.

import { useEffect, useRef, useState } from "preact/hooks";
import { get, query } from "./api";
import { newBeat } from "./live";
import { waitMs } from "./logic/backoff";
import { gapWords, joined, type Gap } from "./logic/event_ids";
import type { NetworkEvent } from "./types";

export const MAX_EVENTS = 5_000;
/** New events are rendered together, at most this often. */
const DRAW_MS = 250;
const FIRST = 200;
const MAX_GAPS = 5;

export interface Filters { kind: string; identity: string; service: string; ref: string; source: string }
export interface Stream { events: NetworkEvent[]; state: "opening" | "open" | "broken"; held: number; since: number; error: string; gaps: string[] }

export function useStream(filters: Filters, paused: boolean): Stream {
  const [shown, setShown] = useState<Stream>({ events: [], state: "opening", held: 0, since: Date.now(), error: "", gaps: [] });
  const fresh = useRef<NetworkEvent[]>([]);
  const isPaused = useRef(paused);
  isPaused.current = paused;
  const key = JSON.stringify(filters);
  useEffect(() => {
    // The cursor exactly as the server sent it: the server accepts no other spelling.
    let position = "";
    let source: EventSource | null = null;
    let retry: ReturnType<typeof setTimeout> | undefined;
    let failures = 0;
    let hasPast = false;
    const stop = new AbortController();
    const beat = newBeat();
    fresh.current = [];
    setShown({ events: [], state: "opening", held: 0, since: Date.now(), error: "", gaps: [] });

    const read = <T,>(message: MessageEvent<string>): T | null => {
      if (message.lastEventId) position = message.lastEventId;
      try {
        return JSON.parse(message.data) as T;
      } catch {
        return null;
      }
    };
    const take = (message: MessageEvent<string>): void => {
      const event = read<NetworkEvent>(message);
      if (event?.kind) fresh.current.push(event);
      if (fresh.current.length > MAX_EVENTS) fresh.current.splice(0, fresh.current.length - MAX_EVENTS);
    };
    const broken = (error: string): void => {
      source?.close();
      clearTimeout(retry);
      failures += 1;
      beat.bad(error);
      void readPast();
      // An EventSource does not report a status; this request detects the end of the session.
      void get("/events?limit=1", stop.signal).catch(() => {});
      setShown((old) => ({ ...old, state: "broken", since: old.state === "broken" ? old.since : Date.now(), error }));
      retry = setTimeout(open, waitMs(1_000, failures, Math.random()));
    };
    const open = (): void => {
      if (stop.signal.aborted) return;
      source = new EventSource(`api/v1/events/stream${query({ ...filters, after: position })}`);
      source.onopen = () => {
        failures = 0;
        beat.ok();
        void readPast();
        setShown((old) => ({ ...old, state: "open", error: "" }));
      };
      source.onmessage = take;
      source.addEventListener("event", take);
      // The cursor before the first event: without it, events during an interruption would be missed.
      source.addEventListener("here", (message: MessageEvent<string>) => void read(message));
      source.addEventListener("gap", (message: MessageEvent<string>) => {
        const gap = read<Gap>(message);
        if (gap) setShown((old) => ({ ...old, gaps: [gapWords(gap), ...old.gaps].slice(0, MAX_GAPS) }));
      });
      source.addEventListener("dropped", (message: MessageEvent<string>) => {
        // The server dropped the stream; a new one continues after the last event.
        read(message);
        broken("The server ended the stream. Reconnecting at the last event…");
      });
      // The browser would retry without backoff.
      source.onerror = () => broken("The stream was interrupted. Reconnecting at the last event…");
    };
    // After the stream has begun, so that no event is missed in between; duplicates are removed.
    const readPast = async (): Promise<void> => {
      if (hasPast) return;
      hasPast = true;
      try {
        const found = await get<{ items: NetworkEvent[] }>(`/events${query({ ...filters, limit: FIRST })}`, stop.signal);
        if (stop.signal.aborted) return;
        const oldFirst = [...found.items].sort((one, other) => (one.time < other.time ? -1 : one.time > other.time ? 1 : one.seq - other.seq));
        setShown((old) => ({ ...old, events: joined(joined([], oldFirst, MAX_EVENTS), old.events.toReversed(), MAX_EVENTS) }));
      } catch (error) {
        if (stop.signal.aborted) return;
        setShown((old) => ({ ...old, error: error instanceof Error ? error.message : String(error) }));
      }
    };
    open();
    const draw = setInterval(() => {
      if (isPaused.current) {
        setShown((old) => (old.held === fresh.current.length ? old : { ...old, held: fresh.current.length }));
      } else if (fresh.current.length) {
        const added = fresh.current;
        fresh.current = [];
        setShown((old) => ({ ...old, held: 0, events: joined(old.events, added, MAX_EVENTS) }));
      } else {
        setShown((old) => (old.held ? { ...old, held: 0 } : old));
      }
    }, DRAW_MS);
    return () => {
      stop.abort();
      source?.close();
      clearTimeout(retry);
      clearInterval(draw);
      beat.end();
    };
  }, [key]);
  return shown;
}
