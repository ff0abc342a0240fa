// A new silence or downtime: which checks, how long, and why. Something must be said, or all would fall silent by mistake.

import { useState } from "preact/hooks";
import { ApiError } from "../api";
import { moment, parseSpan } from "../logic/format";
import { quietOf, type QuietForm } from "../logic/quiet";
import type { Quiet } from "../types";
import { act } from "./act";
import { now, Trouble } from "./bits";
import { Dialog } from "./dialog";
import { tell } from "./notice";

interface Props { noun: "silence" | "downtime"; agent?: string; check?: string; onClose: () => void }

export function QuietDialog({ noun, agent = "", check = "", onClose }: Props) {
  const [form, setForm] = useState<QuietForm>({ agents: agent, checks: check, labels: "", lasts: noun === "silence" ? "2h" : "1h", starts: "", reason: "" });
  const [error, setError] = useState<ApiError | null>(null);
  const [busy, setBusy] = useState(false);
  const set = (key: keyof QuietForm) => (event: { currentTarget: HTMLInputElement }) => setForm({ ...form, [key]: event.currentTarget.value });
  const seconds = form.lasts ? parseSpan(form.lasts) : null;
  const send = async (event: Event): Promise<void> => {
    event.preventDefault();
    const made = quietOf(noun, form, Date.now() / 1000);
    if (typeof made === "string") {
      setError(new ApiError(0, made));
      return;
    }
    setBusy(true);
    try {
      const found = await act<Partial<Quiet> | null>(noun === "silence" ? "silence.add" : "downtime.add", {}, made);
      tell(`${found?.name ?? `The ${noun}`} ${noun === "silence" ? "holds notices back" : "is planned"}.`);
      onClose();
    } catch (found) {
      setError(found instanceof ApiError ? found : new ApiError(0, String(found)));
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog title={noun === "silence" ? "Hold notices back" : "Plan a downtime"} onClose={onClose}>
      <form class="stack" onSubmit={send}>
        <p class="faint">{noun === "silence" ? "Checks go on, and everything is recorded; only nobody is told." : "Nobody is told, and being down counts as planned, not as down."}</p>
        <label class="field"><span>Agents (globs, blank: all)</span><input value={form.agents} onInput={set("agents")} placeholder="web-* db-1" /></label>
        <label class="field"><span>Checks (globs, blank: all)</span><input value={form.checks} onInput={set("checks")} placeholder="disk load" /></label>
        <label class="field"><span>Labels</span><input value={form.labels} onInput={set("labels")} placeholder="role=web" /></label>
        {noun === "downtime" && <label class="field"><span>Begins (blank: now)</span><input type="datetime-local" value={form.starts} onInput={set("starts")} /></label>}
        <label class="field"><span>Lasts{noun === "silence" ? " (blank: until it is ended)" : ""}</span><input value={form.lasts} onInput={set("lasts")} placeholder="30m, 2h, 1d" required={noun === "downtime"} /></label>
        {seconds && !form.starts ? <p class="faint">Until {moment(now.value + seconds)}</p> : null}
        <label class="field"><span>Why</span><input value={form.reason} onInput={set("reason")} placeholder="whoever sees it will ask" /></label>
        {error && <Trouble error={error} />}
        <div class="buttons"><button type="button" onClick={onClose}>Not now</button><button type="submit" class="primary" disabled={busy}>{noun === "silence" ? "Hold back" : "Plan"}</button></div>
      </form>
    </Dialog>
  );
}
