// The editor of the network document: it validates while the user types, and shows the differences before saving. If
// another user saved first, it shows both changes and lets the user choose.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { actionOf, commandOf } from "../actions";
import { ApiError, call } from "../api";
import { changes, patchOf } from "../logic/paths";
import { perform } from "../parts/action_button";
import { Command, ErrorBox } from "../parts/common";
import { ChangeList, LinesDiff } from "../parts/diff_view";
import { Dialog } from "../parts/dialog";
import { notify } from "../parts/notice";
import { has, refusal } from "../session";
import type { Config, Json } from "../types";
import { Conflict } from "./config_conflict";

type Tree = { [key: string]: Json };
const CHECK_MS = 600;

export const textOf = (config: Tree): string => JSON.stringify(config, null, 2);

function parsed(text: string): Tree | string {
  try {
    const found = JSON.parse(text) as Json;
    if (found === null || typeof found !== "object" || Array.isArray(found)) return "The document must be a JSON object: { … }";
    return found;
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

interface Verdict { text: string; reasons: string[]; checked: boolean }

/** Validate with the rules of the broker, a moment after the last key. */
function useVerdict(text: string, tree: Tree | string, dirty: boolean): Verdict | null {
  const [verdict, setVerdict] = useState<Verdict | null>(null);
  useEffect(() => {
    if (typeof tree === "string" || !dirty) {
      setVerdict(typeof tree === "string" ? { text, reasons: [tree], checked: true } : null);
      return;
    }
    const stop = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const found = await call<{ valid?: boolean; reasons?: string[] } | null>("POST", "/config/check", { config: tree }, stop.signal);
        setVerdict({ text, reasons: found?.reasons ?? [], checked: true });
      } catch (error) {
        if (stop.signal.aborted) return;
        const known = error instanceof ApiError ? error : null;
        const isJudged = known !== null && [400, 409, 422].includes(known.status);
        setVerdict({ text, reasons: known?.reasons.length ? known.reasons : [known?.message ?? String(error)], checked: isJudged });
      }
    }, CHECK_MS);
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [text, dirty]);
  return verdict?.text === text ? verdict : null;
}

export function Editor({ current }: { current: Config }) {
  // The version that the text is based on. It stays when a newer version appears, so that no change is overwritten.
  const [base, setBase] = useState(current);
  const [text, setText] = useState(() => textOf(current.config));
  const [reviewing, setReviewing] = useState(false);
  const [conflict, setConflict] = useState<Config | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const field = useRef<HTMLTextAreaElement>(null);
  const before = useMemo(() => textOf(base.config), [base]);
  const dirty = text !== before;
  const tree = useMemo(() => parsed(text), [text]);
  const verdict = useVerdict(text, tree, dirty);
  const why = has("admin") ? "" : refusal("config.change");

  useEffect(() => {
    // Without edits, the current version is shown.
    if (!dirty && current.version !== base.version) take(current);
  }, [current.version, dirty]);
  useEffect(() => {
    if (!dirty) return;
    const ask = (event: BeforeUnloadEvent): void => event.preventDefault();
    addEventListener("beforeunload", ask);
    return () => removeEventListener("beforeunload", ask);
  }, [dirty]);

  const take = (config: Config, edited?: Tree): void => {
    setBase(config);
    setText(textOf(edited ?? config.config));
    setConflict(null);
    setError(null);
  };
  const save = async (): Promise<void> => {
    if (typeof tree === "string") return;
    setReviewing(false);
    setError(null);
    try {
      const done = has("admin")
        ? await perform<{ version: number }>("config.save", {}, { config: tree, base: base.version })
        : await perform<{ version: number }>("config.change", {}, { ...patchOf(changes(base.config, tree)), base: base.version });
      notify(`Version ${done.version} is current.`);
      const now = await call<Config>("GET", "/config");
      take(now);
    } catch (found) {
      const told = found instanceof ApiError ? found : new ApiError(0, String(found));
      if (told.status === 409) setConflict(await call<Config>("GET", "/config"));
      else setError(told);
    }
  };
  const isStale = dirty && current.version !== base.version;
  const ready = dirty && typeof tree !== "string" && verdict !== null && verdict.reasons.length === 0;
  return (
    <div class="editor">
      <div class="bar">
        <span>Version <b>{base.version}</b>{dirty ? ", edited" : " is current"}</span>
        <span class="grow" />
        {why && <span class="faint">{why}</span>}
        {!has("admin") && !why && <span class="faint">An operator changes single paths; only an admin replaces the whole document.</span>}
        <button type="button" disabled={!dirty} onClick={() => take(current)}>Discard changes</button>
        <button type="button" class="primary" disabled={!ready || why !== ""} onClick={() => setReviewing(true)}>Review and save…</button>
      </div>
      {isStale && (
        <div class="banner" role="status">
          Version {current.version} was saved while you edit version {base.version}. <button type="button" class="small" onClick={() => setConflict(current)}>Show the changes</button>
        </div>
      )}
      {error && <ErrorBox error={error} />}
      <label class="field"><span class="hidden">The network document as JSON</span>
        <textarea ref={field} class="code" spellcheck={false} autocomplete="off" readOnly={why !== ""} rows={30} value={text} onInput={(event) => setText(event.currentTarget.value)} aria-describedby="verdict" /></label>
      <Judged verdict={verdict} dirty={dirty} />
      {reviewing && typeof tree !== "string" && <Review before={before} after={text} base={base} tree={tree} onClose={() => setReviewing(false)} onSave={() => void save()} />}
      {conflict && typeof tree !== "string" && (
        <Conflict base={base} mine={tree} theirs={conflict} onTheirs={() => take(conflict)} onMerged={(document) => take(conflict, document)} onClose={() => setConflict(null)} />
      )}
    </div>
  );
}

function Judged({ verdict, dirty }: { verdict: Verdict | null; dirty: boolean }) {
  if (!dirty && !verdict) return <p id="verdict" class="faint">Edit the document. It is validated while you type, and the differences are shown before it is saved.</p>;
  if (!verdict) return <p id="verdict" class="faint" role="status">Validating…</p>;
  if (!verdict.reasons.length) return <p id="verdict" class="good-words" role="status"><span aria-hidden="true">●</span> The document is valid.</p>;
  return (
    <div id="verdict" class="trouble" role="status">
      <p>{verdict.checked ? "The document is invalid:" : "The document could not be validated:"}</p>
      <ul>{verdict.reasons.map((reason) => <li key={reason}>{reason}</li>)}</ul>
    </div>
  );
}

interface ReviewProps { before: string; after: string; base: Config; tree: Tree; onClose: () => void; onSave: () => void }
function Review({ before, after, base, tree, onClose, onSave }: ReviewProps) {
  const found = changes(base.config, tree);
  const action = actionOf(has("admin") ? "config.save" : "config.change");
  return (
    <Dialog title={`Changes to version ${base.version}`} onClose={onClose} wide>
      <ChangeList changes={found} empty="Only the formatting changes." />
      <LinesDiff before={before} after={after} label="Changed lines" />
      <Command text={commandOf(action).replace("VERSION", String(base.version))} />
      <div class="buttons">
        <button type="button" onClick={onClose}>Continue editing</button>
        <button type="button" class="primary" disabled={!found.length} onClick={onSave}>Save as version {base.version + 1}</button>
      </div>
    </Dialog>
  );
}
