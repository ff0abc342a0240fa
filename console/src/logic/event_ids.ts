// Events of the stream: their keys, and merging without duplicates. Pure.

export interface Gap { source: string; first: number; last: number; reason?: string }

/** A gap as text. */
export function gapWords(gap: Gap): string {
  const which = gap.first === gap.last ? `event ${gap.first}` : `events ${gap.first} to ${gap.last}`;
  return `Missing: ${which} of ${gap.source}${gap.reason ? ` (${gap.reason})` : ""}`;
}

interface Named { source: string; boot: number | string; seq: number }

/** The key of an event: a broker may restart its numbering. */
export function keyOf(event: Named): string {
  return `${event.source}:${event.boot}:${event.seq}`;
}

/** New events before old ones, without duplicates, at most `most`. */
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
