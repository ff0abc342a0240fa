// A line diff of two texts (Myers' algorithm). Pure, and bounded, because a document has up to 4 MiB.

export interface Line { sign: " " | "-" | "+"; text: string; before: number | null; after: number | null }

/** After this many steps the rest counts as replaced. */
const MAX_STEPS = 600;

export function diffLines(before: string, after: string): Line[] {
  const one = before.split("\n");
  const other = after.split("\n");
  let head = 0;
  while (head < one.length && head < other.length && one[head] === other[head]) head += 1;
  let tail = 0;
  while (
    tail < one.length - head && tail < other.length - head &&
    one[one.length - 1 - tail] === other[other.length - 1 - tail]
  ) tail += 1;
  const out: Line[] = [];
  const push = (sign: Line["sign"], text: string, at: number | null, to: number | null): void => {
    out.push({ sign, text, before: at, after: to });
  };
  for (let at = 0; at < head; at += 1) push(" ", one[at] as string, at + 1, at + 1);
  middle(one.slice(head, one.length - tail), other.slice(head, other.length - tail), head, push);
  for (let at = tail; at > 0; at -= 1) {
    push(" ", one[one.length - at] as string, one.length - at + 1, other.length - at + 1);
  }
  return out;
}

type Push = (sign: Line["sign"], text: string, at: number | null, to: number | null) => void;

function middle(one: string[], other: string[], head: number, push: Push): void {
  let x = 0;
  let y = 0;
  for (const step of shortest(one, other)) {
    if (step === "-") push("-", one[x] as string, head + ++x, null);
    else if (step === "+") push("+", other[y] as string, null, head + ++y);
    else push(" ", one[x] as string, head + ++x, head + ++y);
  }
}

function shortest(one: string[], other: string[]): Line["sign"][] {
  const wide = one.length + other.length;
  const most = Math.min(wide, MAX_STEPS);
  const furthest = new Map<number, number>([[1, 0]]);
  const trace: Map<number, number>[] = [];
  for (let steps = 0; steps <= most; steps += 1) {
    trace.push(new Map(furthest));
    for (let k = -steps; k <= steps; k += 2) {
      const down = k === -steps || (k !== steps && (furthest.get(k - 1) ?? -1) < (furthest.get(k + 1) ?? -1));
      let x = down ? (furthest.get(k + 1) ?? 0) : (furthest.get(k - 1) ?? 0) + 1;
      while (x < one.length && x - k < other.length && one[x] === other[x - k]) x += 1;
      furthest.set(k, x);
      if (x >= one.length && x - k >= other.length) return backtracked(trace, one.length, other.length);
    }
  }
  return [...one.map(() => "-" as const), ...other.map(() => "+" as const)];
}

function backtracked(trace: Map<number, number>[], endX: number, endY: number): Line["sign"][] {
  const out: Line["sign"][] = [];
  let x = endX;
  let y = endY;
  for (let steps = trace.length - 1; steps >= 0; steps -= 1) {
    const furthest = trace[steps] as Map<number, number>;
    const k = x - y;
    const down = k === -steps || (k !== steps && (furthest.get(k - 1) ?? -1) < (furthest.get(k + 1) ?? -1));
    const from = down ? k + 1 : k - 1;
    const fromX = steps === 0 ? 0 : (furthest.get(from) ?? 0);
    const fromY = steps === 0 ? 0 : fromX - from;
    while (x > fromX && y > fromY) {
      out.push(" ");
      x -= 1;
      y -= 1;
    }
    if (steps > 0) {
      out.push(down ? "+" : "-");
      x = fromX;
      y = fromY;
    }
  }
  return out.reverse();
}

export type Hunk = { lines: Line[]; skipped: number };

/** Changed lines with `around` lines of context; `skipped` lines are left out before a hunk. */
export function hunks(lines: readonly Line[], around = 3): Hunk[] {
  const near = new Uint8Array(lines.length);
  lines.forEach((line, at) => {
    if (line.sign !== " ") near.fill(1, Math.max(0, at - around), at + around + 1);
  });
  const out: Hunk[] = [];
  let skipped = 0;
  lines.forEach((line, at) => {
    if (!near[at]) {
      skipped += 1;
    } else if (at > 0 && near[at - 1] && out.length) {
      (out[out.length - 1] as Hunk).lines.push(line);
    } else {
      out.push({ lines: [line], skipped });
      skipped = 0;
    }
  });
  return out;
}
