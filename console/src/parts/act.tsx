// A button for one row of the table of actions: it knows who may, asks where it must, does it, and tells what came of it.

import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { actionOf, commandOf, pathOf, type ActionId } from "../actions";
import { call } from "../api";
import { nudge } from "../live";
import { refusal } from "../session";
import { Dialog } from "./dialog";
import { tell, tellError } from "./notice";

/** Do it now, whatever was asked before. */
export async function act<T>(id: ActionId, places: Record<string, string> = {}, body?: unknown): Promise<T> {
  const action = actionOf(id);
  const found = await call<T>(action.method, pathOf(action, places), body);
  nudge();
  return found;
}

interface Question {
  title: string; words: ComponentChildren; yes: string; danger: boolean; command: string; answer: (yes: boolean) => void;
}
const question = signal<Question | null>(null);

/** Ask first; true if they want it. */
export function asked(what: Omit<Question, "answer">): Promise<boolean> {
  return new Promise((resolve) => {
    question.value = {
      ...what,
      answer: (yes) => {
        question.value = null;
        resolve(yes);
      },
    };
  });
}

export function Questions() {
  const open = question.value;
  if (!open) return null;
  return (
    <Dialog title={open.title} onClose={() => open.answer(false)}>
      <div class="stack">
        <div>{open.words}</div>
        {open.command && <p class="same">The same by command: <code>{open.command}</code></p>}
        <div class="buttons">
          <button type="button" onClick={() => open.answer(false)}>Not now</button>
          <button type="button" class={open.danger ? "danger" : "primary"} onClick={() => open.answer(true)}>{open.yes}</button>
        </div>
      </div>
    </Dialog>
  );
}

interface Props {
  id: ActionId;
  places?: Record<string, string>;
  body?: unknown;
  /** What is acted upon, for who only hears the button. */
  about: string;
  /** What it means; shown where the action asks first. */
  means?: string;
  done?: (found: unknown) => string | void;
  label?: string;
  /** Why it makes no sense now. */
  because?: string;
  quiet?: boolean;
}

export function Act({ id, places = {}, body, about, means, done, label, because = "", quiet }: Props) {
  const [busy, setBusy] = useState(false);
  const action = actionOf(id);
  const why = refusal(id) || because;
  const said = label ?? action.label;
  const press = async (): Promise<void> => {
    if (why || busy) return;
    if (action.asks) {
      const yes = await asked({
        title: `${said} ${about}?`,
        words: <p>{means ?? "This changes the network at once."}</p>,
        yes: said,
        danger: true,
        command: commandOf(action, places),
      });
      if (!yes) return;
    }
    setBusy(true);
    try {
      const found = await act(id, places, body);
      tell(done?.(found) || `${said}: ${about}, done.`);
    } catch (error) {
      tellError(error);
    } finally {
      setBusy(false);
    }
  };
  // Not `disabled`: who comes by keyboard shall reach it, and hear the reason.
  return (
    <button
      type="button"
      class={quiet ? "small quiet" : "small"}
      aria-disabled={why || busy ? "true" : undefined}
      aria-label={`${said} ${about}${why ? `: ${why}` : ""}`}
      title={why || commandOf(action, places)}
      onClick={press}
    >
      {busy ? "…" : said}
    </button>
  );
}
