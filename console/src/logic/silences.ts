// Silences and downtimes: the request for the values of a form, and the state of an entry. Pure.

import type { Silence } from "../types";
import { moment, parseSpan, span } from "./format";

export interface SilenceForm { agents: string; checks: string; labels: string; lasts: string; starts: string; reason: string }
export type NewSilence = Omit<Silence, "name" | "author">;

const words = (text: string): string[] => text.split(/[\s,]+/).filter(Boolean);

/** The body of the request, or an error message. */
export function silenceRequest(noun: "silence" | "downtime", form: SilenceForm, now: number): NewSilence | string {
  const agents = words(form.agents);
  const checks = words(form.checks);
  const labels: Record<string, string> = {};
  for (const word of words(form.labels)) {
    const at = word.indexOf("=");
    if (at < 1) return `${word} is not a label of the form NAME=GLOB.`;
    labels[word.slice(0, at)] = word.slice(at + 1);
  }
  if (!agents.length && !checks.length && !Object.keys(labels).length) return "Select an agent, a check or a label (* selects all).";
  const seconds = form.lasts.trim() ? parseSpan(form.lasts) : null;
  if (form.lasts.trim() && seconds === null) return `${form.lasts} is not a duration such as 90, 30m, 2h or 1d.`;
  const common = { agents, checks, labels, reason: form.reason.trim() };
  if (noun === "silence") return { ...common, ends: seconds === null ? 0 : now + seconds };
  if (seconds === null) return "Enter a duration such as 30m, 2h or 1d.";
  const starts = form.starts ? new Date(form.starts).getTime() / 1000 : now;
  if (!Number.isFinite(starts)) return `${form.starts} is not a time.`;
  if (starts + seconds <= now) return "The downtime would be in the past. Choose a later start.";
  return { ...common, starts, ends: starts + seconds };
}

export function isOver(row: Silence, now: number): boolean {
  return row.ends > 0 && row.ends <= now;
}

/** When it begins or ends. */
export function remaining(row: Silence, now: number): string {
  const starts = row.starts ?? 0;
  if (starts > now) return `from ${moment(starts)}, for ${span(row.ends - starts)}`;
  if (!row.ends) return "until it is removed";
  return row.ends > now ? `${span(Math.floor(row.ends - now))} left` : "over";
}
