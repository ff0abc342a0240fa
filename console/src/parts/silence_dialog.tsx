// The dialog for a new silence or downtime. It requires a selection, so that nobody silences everything by mistake.

import { useState } from "preact/hooks";
import { ApiError } from "../api";
import { moment, parseSpan } from "../logic/format";
import { silenceRequest, type SilenceForm } from "../logic/silences";
import type { Silence } from "../types";
import { perform } from "./action_button";
import { now, ErrorBox } from "./common";
import { Dialog } from "./dialog";
import { notify } from "./notice";

interface Props { noun: "silence" | "downtime"; agent?: string; check?: string; onClose: () => void }

export function SilenceDialog({ noun, agent = "", check = "", onClose }: Props) {
  const [form, setForm] = useState<SilenceForm>({ agents: agent, checks: check, labels: "", lasts: noun === "silence" ? "2h" : "1h", starts: "", reason: "" });
  const [error, setError] = useState<ApiError | null>(null);
  const [busy, setBusy] = useState(false);
  const set = (key: keyof SilenceForm) => (event: { currentTarget: HTMLInputElement }) => setForm({ ...form, [key]: event.currentTarget.value });
  const seconds = form.lasts ? parseSpan(form.lasts) : null;
  const send = async (event: Event): Promise<void> => {
    event.preventDefault();
    const made = silenceRequest(noun, form, Date.now() / 1000);
    if (typeof made === "string") {
      setError(new ApiError(0, made));
      return;
    }
    setBusy(true);
    try {
      const found = await perform<Partial<Silence> | null>(noun === "silence" ? "silence.add" : "downtime.add", {}, made);
      notify(`${found?.name ?? `The ${noun}`} ${noun === "silence" ? "is active" : "is scheduled"}.`);
      onClose();
    } catch (found) {
      setError(found instanceof ApiError ? found : new ApiError(0, String(found)));
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog title={noun === "silence" ? "Add a silence" : "Schedule a downtime"} onClose={onClose}>
      <form class="stack" onSubmit={send}>
        <p class="faint">{noun === "silence" ? "Checks continue and results are recorded, but no notifications are sent." : "No notifications are sent, and an outage counts as planned downtime."}</p>
        <label class="field"><span>Agents (globs, blank: all)</span><input value={form.agents} onInput={set("agents")} placeholder="web-* db-1" /></label>
        <label class="field"><span>Checks (globs, blank: all)</span><input value={form.checks} onInput={set("checks")} placeholder="disk load" /></label>
        <label class="field"><span>Labels</span><input value={form.labels} onInput={set("labels")} placeholder="role=web" /></label>
        {noun === "downtime" && <label class="field"><span>Start (blank: now)</span><input type="datetime-local" value={form.starts} onInput={set("starts")} /></label>}
        <label class="field"><span>Duration{noun === "silence" ? " (blank: until it is removed)" : ""}</span><input value={form.lasts} onInput={set("lasts")} placeholder="30m, 2h, 1d" required={noun === "downtime"} /></label>
        {seconds && !form.starts ? <p class="faint">Until {moment(now.value + seconds)}</p> : null}
        <label class="field"><span>Reason</span><input value={form.reason} onInput={set("reason")} placeholder="disk replacement" /></label>
        {error && <ErrorBox error={error} />}
        <div class="buttons"><button type="button" onClick={onClose}>Not now</button><button type="submit" class="primary" disabled={busy}>{noun === "silence" ? "Add" : "Schedule"}</button></div>
      </form>
    </Dialog>
  );
}
