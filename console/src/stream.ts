// The stream of events: server-sent, resumed where it ended, paused on demand.
// Invariant: each event is shown once; what came during a pause is counted, kept up to a limit, and shown after it.

import { useEffect, useRef, useState } from "preact/hooks";
import { get, query } from "./api";
import { waitMs } from "./logic/backoff";
import { joined, later, parsePosition, positionText, type Position } from "./logic/event_ids";
import type { NetworkEvent } from "./types";

export const MAX_EVENTS = 5_000;
/** New ones are shown together: a storm of events must not be a storm of drawing. */
const DRAW_MS = 250;
const FIRST = 200;

export interface Filters { kind: string; identity: string; service: string; ref: string; source: string }
export interface Stream { events: NetworkEvent[]; state: "opening" | "open" | "broken"; held: number; since: number; error: string }

export function useStream(filters: Filters, paused: boolean): Stream {
  const [shown, setShown] = useState<Stream>({ events: [], state: "opening", held: 0, since: Date.now(), error: "" });
  const fresh = useRef<NetworkEvent[]>([]);
  const isPaused = useRef(paused);
  isPaused.current = paused;
  const key = JSON.stringify(filters);
  useEffect(() => {
    let position: Position = new Map();
    let source: EventSource | null = null;
    let retry: ReturnType<typeof setTimeout> | undefined;
    let failures = 0;
    const stop = new AbortController();
    fresh.current = [];
    setShown({ events: [], state: "opening", held: 0, since: Date.now(), error: "" });

    const take = (message: MessageEvent<string>): void => {
      if (message.lastEventId) position = later(position, parsePosition(message.lastEventId));
      try {
        fresh.current.push(JSON.parse(message.data) as NetworkEvent);
      } catch {
        return;
      }
      if (fresh.current.length > MAX_EVENTS) fresh.current.splice(0, fresh.current.length - MAX_EVENTS);
    };
    const open = (): void => {
      if (stop.signal.aborted) return;
      source = new EventSource(`api/v1/events/stream${query({ ...filters, after: positionText(position) })}`);
      source.onopen = () => {
        failures = 0;
        setShown((old) => ({ ...old, state: "open", error: "" }));
      };
      source.onmessage = take;
      source.addEventListener("event", take as (event: Event) => void);
      source.onerror = () => {
        // The browser would try again at once and for ever; our own wait grows.
        source?.close();
        failures += 1;
        setShown((old) => ({ ...old, state: "broken", since: old.state === "broken" ? old.since : Date.now(), error: "The stream was cut; it goes on where it ended." }));
        retry = setTimeout(open, waitMs(1_000, failures, Math.random()));
      };
    };
    const begin = async (): Promise<void> => {
      try {
        const found = await get<{ items: NetworkEvent[] }>(`/events${query({ ...filters, limit: FIRST })}`, stop.signal);
        if (stop.signal.aborted) return;
        const oldFirst = [...found.items].sort((one, other) => (one.time < other.time ? -1 : one.time > other.time ? 1 : one.seq - other.seq));
        setShown((old) => ({ ...old, events: joined([], oldFirst, MAX_EVENTS) }));
      } catch (error) {
        if (stop.signal.aborted) return;
        setShown((old) => ({ ...old, error: error instanceof Error ? error.message : String(error) }));
      }
      open();
    };
    void begin();
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
    };
  }, [key]);
  return shown;
}
