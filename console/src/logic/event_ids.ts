// Events of the stream: what makes one, and each shown once. Pure.

export interface Gap { source: string; first: number; last: number; reason?: string }

/** What cannot be told any more, in words. */
export function gapWords(gap: Gap): string {
  const which = gap.first === gap.last ? `event ${gap.first}` : `events ${gap.first} to ${gap.last}`;
  return `Not seen: ${which} of ${gap.source}${gap.reason ? ` (${gap.reason})` : ""}`;
}

interface Named { source: string; boot: number | string; seq: number }

/** What makes an event one: a broker that starts anew may count anew. */
export function keyOf(event: Named): string {
  return `${event.source}:${event.boot}:${event.seq}`;
}

/** New events before old ones, each once, no more than `most`. */
export function joined<T extends Named>(shown: readonly T[], fresh: readonly T[], most: number): T[] {
  const known = new Set(shown.map(keyOf));
  const added: T[] = [];
  for (const event of fresh) {
    const key = keyOf(event);
    if (!known.has(key)) {
      known.add(key);
      added.push(event);
    }
  }
  return [...added.reverse(), ...shown].slice(0, most);
}
