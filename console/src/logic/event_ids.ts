// Event ids of the stream: "source:seq,source:seq", the last number seen of every source. Pure.
// Invariant: a position only moves forward, so that resuming never repeats what was shown.

export type Position = ReadonlyMap<string, number>;

/** What an id says; a part that makes no sense is left out. A source may hold colons, its number stands last. */
export function parsePosition(id: string): Position {
  const found = new Map<string, number>();
  for (const part of id.split(",")) {
    const at = part.lastIndexOf(":");
    const seq = part.slice(at + 1);
    if (at > 0 && /^\d+$/.test(seq)) found.set(part.slice(0, at), Number(seq));
  }
  return found;
}

export function positionText(position: Position): string {
  return [...position].map(([source, seq]) => `${source}:${seq}`).join(",");
}

/** Both together: of each source the later. */
export function later(one: Position, other: Position): Position {
  const found = new Map(one);
  for (const [source, seq] of other) found.set(source, Math.max(seq, found.get(source) ?? -1));
  return found;
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
