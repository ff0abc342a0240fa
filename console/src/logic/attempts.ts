// The attempts of a task, from its events and its status. Pure: the caller passes the time.
// The journal records the end and the duration of an attempt, from which its start is computed.

import type { NetworkEvent, Task } from "../types";
import { epoch } from "./format";

export interface Attempt { attempt: number; node: string; from: number; to: number; state: string; tone: string }

const UNDER_WAY = new Set(["assigned", "running"]);

function toneOf(state: string): string {
  if (/failed|lost|timeout|timed_out|expired|error|dead/.test(state)) return "critical";
  if (/cancel/.test(state)) return "cancelled";
  return /finished|completed|ok|done/.test(state) ? "ok" : "running";
}

/** The attempts that ended, in order, and the one that is running. */
export function attemptsOf(items: readonly NetworkEvent[], task: Task | undefined, now: number): Attempt[] {
  const found: Attempt[] = [];
  let before: number | null = null;
  const inOrder = [...items].sort((one, other) => (epoch(one.at ?? one.time) ?? 0) - (epoch(other.at ?? other.time) ?? 0));
  for (const each of inOrder) {
    const at = epoch(each.at ?? each.time);
    if (at === null) continue;
    if (each.attempt && each.kind.startsWith("task.")) {
      const from = each.seconds !== null && each.seconds !== undefined ? at - each.seconds : (before ?? at);
      const state = each.state || (each.kind.split(".").at(-1) ?? "ended");
      found.push({ attempt: each.attempt, node: each.identity ?? "", from, to: at, state, tone: toneOf(state) });
    }
    before = at;
  }
  if (task && UNDER_WAY.has(task.status) && !found.some((each) => each.attempt === task.attempt && each.to > (task.started ?? 0))) {
    const from = task.started ?? before ?? now;
    found.push({ attempt: task.attempt, node: task.node_id ?? "", from, to: Math.max(from, now), state: task.status, tone: "running" });
  }
  return found;
}
