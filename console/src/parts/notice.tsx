// Notices of results, also for screen readers. An error stays until the user dismisses it.

import { signal } from "@preact/signals";
import { ApiError } from "../api";

interface Notice { number: number; good: boolean; words: string; next: string; reasons: string[] }

const SHOWN_MS = 5_000;
const MAX_NOTICES = 4;
const notices = signal<Notice[]>([]);
let last = 0;

function add(notice: Omit<Notice, "number">): void {
  const number = ++last;
  notices.value = [...notices.value, { ...notice, number }].slice(-MAX_NOTICES);
  if (notice.good) setTimeout(() => drop(number), SHOWN_MS);
}

function drop(number: number): void {
  notices.value = notices.value.filter((each) => each.number !== number);
}

export function notify(words: string): void {
  add({ good: true, words, next: "", reasons: [] });
}

export function notifyError(error: unknown): void {
  const known = error instanceof ApiError ? error : null;
  const words = error instanceof Error ? error.message : String(error);
  add({ good: false, words, next: known?.next ?? "", reasons: known?.reasons ?? [] });
}

export function Notices() {
  return (
    <div class="notices" role="region" aria-label="Notices" aria-live="polite">
      {notices.value.map((each) => (
        <div key={each.number} class={each.good ? "notice good" : "notice bad"} role={each.good ? "status" : "alert"}>
          <div>
            <p>{each.words}</p>
            {each.reasons.length > 0 && <ul>{each.reasons.map((reason) => <li key={reason}>{reason}</li>)}</ul>}
            {each.next && <p class="next">{each.next.replaceAll("`", "")}</p>}
          </div>
          <button type="button" class="plain" aria-label="Dismiss this notice" onClick={() => drop(each.number)}>✕</button>
        </div>
      ))}
    </div>
  );
}
