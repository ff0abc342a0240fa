// Silences and downtimes: from what somebody typed to what the API takes, and how one stands now. Pure.

import type { Quiet } from "../types";
import { moment, parseSpan, span } from "./format";

export interface QuietForm { agents: string; checks: string; labels: string; lasts: string; starts: string; reason: string }
export type NewQuiet = Omit<Quiet, "name" | "author">;

const words = (text: string): string[] => text.split(/[\s,]+/).filter(Boolean);

/** What to send, or why it cannot be. */
export function quietOf(noun: "silence" | "downtime", form: QuietForm, now: number): NewQuiet | string {
  const agents = words(form.agents);
  const checks = words(form.checks);
  const labels: Record<string, string> = {};
  for (const word of words(form.labels)) {
    const at = word.indexOf("=");
    if (at < 1) return `A label is NAME=GLOB, not ${word}`;
    labels[word.slice(0, at)] = word.slice(at + 1);
  }
  if (!agents.length && !checks.length && !Object.keys(labels).length) return "Say which: an agent, a check or a label (* is all)";
  const seconds = form.lasts.trim() ? parseSpan(form.lasts) : null;
  if (form.lasts.trim() && seconds === null) return `${form.lasts} is no length of time such as 90, 30m, 2h or 1d`;
  const common = { agents, checks, labels, reason: form.reason.trim() };
  if (noun === "silence") return { ...common, ends: seconds === null ? 0 : now + seconds };
  if (seconds === null) return "Say how long it lasts, as 30m, 2h or 1d";
  const starts = form.starts ? new Date(form.starts).getTime() / 1000 : now;
  if (!Number.isFinite(starts)) return `${form.starts} is no time`;
  if (starts + seconds <= now) return "That would be over already";
  return { ...common, starts, ends: starts + seconds };
}

export function isOver(row: Quiet, now: number): boolean {
  return row.ends > 0 && row.ends <= now;
}

/** Whether it holds, and how long. */
export function standing(row: Quiet, now: number): string {
  const starts = row.starts ?? 0;
  if (starts > now) return `from ${moment(starts)}, for ${span(row.ends - starts)}`;
  if (!row.ends) return "until it is ended";
  return row.ends > now ? `${span(Math.floor(row.ends - now))} left` : "over";
}
