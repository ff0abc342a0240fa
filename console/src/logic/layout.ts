// The layout of groups and brokers in the topology drawing. Pure. Nothing overlaps or exceeds the given width.

export interface Box { x: number; y: number; width: number; height: number }
export interface BrokerBox extends Box { broker: string }
export interface GroupBox extends Box { group: string; brokers: BrokerBox[] }
export interface Drawing { width: number; height: number; groups: GroupBox[]; at: Map<string, BrokerBox> }

export const CARD = { width: 190, height: 76 };
const GAP = 34;
const PAD = 16;
const HEAD = 28;

/** Groups in rows, each as wide as its brokers need, at most the given width. */
export function layout(groups: readonly { group: string; brokers: readonly string[] }[], paper: number): Drawing {
  const fit = Math.max(1, Math.floor((paper - 2 * PAD + GAP) / (CARD.width + GAP)));
  const out: GroupBox[] = [];
  const at = new Map<string, BrokerBox>();
  let x = 0;
  let y = 0;
  let rowHeight = 0;
  let widest = 0;
  for (const { group, brokers } of groups) {
    const columns = Math.max(1, Math.min(fit, Math.ceil(Math.sqrt(brokers.length)) + (brokers.length > 2 ? 1 : 0), Math.max(1, brokers.length)));
    const rows = Math.max(1, Math.ceil(brokers.length / columns));
    const width = 2 * PAD + columns * CARD.width + (columns - 1) * GAP;
    const height = HEAD + PAD + rows * CARD.height + (rows - 1) * GAP;
    if (x > 0 && x + width > paper) {
      x = 0;
      y += rowHeight + GAP;
      rowHeight = 0;
    }
    const boxes = brokers.map((broker, number): BrokerBox => ({
      broker,
      x: x + PAD + (number % columns) * (CARD.width + GAP),
      y: y + HEAD + Math.floor(number / columns) * (CARD.height + GAP),
      ...CARD,
    }));
    boxes.forEach((box) => at.set(box.broker, box));
    out.push({ group, x, y, width, height, brokers: boxes });
    widest = Math.max(widest, x + width);
    x += width + GAP;
    rowHeight = Math.max(rowHeight, height);
  }
  return { width: Math.max(widest, 1), height: y + rowHeight, groups: out, at };
}

/** A curve between two cards, from the sides that face each other. */
export function linkPath(one: Box, other: Box): string {
  const [ax, ay] = [one.x + one.width / 2, one.y + one.height / 2];
  const [bx, by] = [other.x + other.width / 2, other.y + other.height / 2];
  if (Math.abs(bx - ax) >= Math.abs(by - ay)) {
    const sign = bx > ax ? 1 : -1;
    const [from, to] = [ax + (sign * one.width) / 2, bx - (sign * other.width) / 2];
    // A link across cards of its own row bends around them.
    const bend = Math.abs(to - from) > one.width && Math.abs(by - ay) < 1 ? -one.height * 0.9 : 0;
    return `M${from} ${ay}C${from + sign * 24} ${ay + bend},${to - sign * 24} ${by + bend},${to} ${by}`;
  }
  if (Math.abs(bx - ax) < 1 && Math.abs(by - ay) > one.height * 2.4) {
    // A link across cards of its own column goes around them.
    const side = ax + one.width / 2;
    return `M${side} ${ay}C${side + 26} ${ay},${side + 26} ${by},${side} ${by}`;
  }
  const sign = by > ay ? 1 : -1;
  const [from, to] = [ay + (sign * one.height) / 2, by - (sign * other.height) / 2];
  return `M${ax} ${from}C${ax} ${from + sign * 20},${bx} ${to - sign * 20},${bx} ${to}`;
}

/** Each pair of brokers once, with the worse state of both directions; links to unknown brokers are left out. */
export function pairs(links: readonly { from: string; to: string; state: string }[], known: ReadonlySet<string>): { from: string; to: string; state: string }[] {
  const found = new Map<string, { from: string; to: string; state: string }>();
  for (const link of links) {
    if (link.from === link.to || !known.has(link.from) || !known.has(link.to)) continue;
    const [from, to] = [link.from, link.to].sort() as [string, string];
    const key = `${from}\n${to}`;
    const old = found.get(key);
    if (!old || (isGood(old.state) && !isGood(link.state))) found.set(key, { from, to, state: link.state });
  }
  return [...found.values()];
}

export const isGood = (state: string): boolean => ["active", "standby", "ok", "alive", "answered", "up", "connected"].includes(state);
