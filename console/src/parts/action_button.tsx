// The button of one action: it checks the role, asks for confirmation, sends the request and shows the result.

import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import type { ComponentChildren } from "preact";
import { actionOf, commandOf, pathOf, type ActionId } from "../actions";
import { call } from "../api";
import { pollNow } from "../live";
import { refusal } from "../session";
import { Dialog } from "./dialog";
import { notify, notifyError } from "./notice";

/** Send the request of an action. */
export async function perform<T>(id: ActionId, places: Record<string, string> = {}, body?: unknown): Promise<T> {
  const action = actionOf(id);
  const found = await call<T>(action.method, pathOf(action, places), body);
  pollNow();
  return found;
}

interface Confirmation {
  title: string; words: ComponentChildren; yes: string; danger: boolean; command: string; answer: (yes: boolean) => void;
}
const confirmation = signal<Confirmation | null>(null);

/** Ask the user for confirmation. */
export function confirmed(what: Omit<Confirmation, "answer">): Promise<boolean> {
  return new Promise((resolve) => {
    confirmation.value = {
      ...what,
      answer: (yes) => {
        confirmation.value = null;
        resolve(yes);
      },
    };
  });
}

export function Confirmations() {
  const open = confirmation.value;
  if (!open) return null;
  return (
    <Dialog title={open.title} onClose={() => open.answer(false)}>
      <div class="stack">
        <div>{open.words}</div>
        {open.command && <p class="same">The same on the command line: <code>{open.command}</code></p>}
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
  /** The object of the action, for screen readers. */
  about: string;
  /** The consequences; shown with the confirmation. */
  means?: string;
  done?: (found: unknown) => string | void;
  label?: string;
  /** Why the action is not possible now. */
  because?: string;
  quiet?: boolean;
}

export function ActionButton({ id, places = {}, body, about, means, done, label, because = "", quiet }: Props) {
  const [busy, setBusy] = useState(false);
  const action = actionOf(id);
  const why = refusal(id) || because;
  const said = label ?? action.label;
  const press = async (): Promise<void> => {
    if (why || busy) return;
    if (action.asks) {
      const yes = await confirmed({
        title: `${said} ${about}?`,
        words: <p>{means ?? "This changes the network immediately."}</p>,
        yes: said,
        danger: true,
        command: commandOf(action, places),
      });
      if (!yes) return;
    }
    setBusy(true);
    try {
      const found = await perform(id, places, body);
      notify(done?.(found) || `${said} ${about}: done.`);
    } catch (error) {
      notifyError(error);
    } finally {
      setBusy(false);
    }
  };
  // Not `disabled`, so that keyboard and screen reader users can reach it and learn the reason.
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
