// Differences: lines of two texts, or values by path.

import { useMemo } from "preact/hooks";
import { diffLines, hunks } from "../logic/lines";
import type { Change } from "../types";

const SHORT = 160;

export function LinesDiff({ before, after, label }: { before: string; after: string; label: string }) {
  const found = useMemo(() => hunks(diffLines(before, after)), [before, after]);
  if (!found.length) return <p class="calm">No differences.</p>;
  return (
    <div class="diff" role="region" aria-label={label} tabIndex={0}>
      <table role="table" aria-label={label}>
        <thead class="hidden"><tr><th scope="col">Before</th><th scope="col">After</th><th scope="col">Sign</th><th scope="col">Text</th></tr></thead>
        <tbody>
          {found.flatMap((hunk, at) => [
            ...(hunk.skipped ? [<tr key={`gap${at}`} class="skip-row"><td colSpan={4}>{hunk.skipped === 1 ? "1 unchanged line" : `${hunk.skipped} unchanged lines`}</td></tr>] : []),
            ...hunk.lines.map((line, number) => (
              <tr key={`${at}-${number}`} class={line.sign === "+" ? "added" : line.sign === "-" ? "gone" : ""}>
                <td class="no">{line.before ?? ""}</td><td class="no">{line.after ?? ""}</td>
                <td class="sign">{line.sign === " " ? "" : line.sign}</td><td><pre>{line.text}</pre></td>
              </tr>
            )),
          ])}
        </tbody>
      </table>
    </div>
  );
}

function short(value: unknown): string {
  const text = JSON.stringify(value) ?? "null";
  return text.length > SHORT ? `${text.slice(0, SHORT - 1)}…` : text;
}

export function ChangeList({ changes, empty = "No differences." }: { changes: readonly Change[]; empty?: string }) {
  if (!changes.length) return <p class="calm">{empty}</p>;
  return (
    <ul class="changes">
      {changes.map((each) => (
        <li key={each.path}>
          <code>{each.path}</code>
          {each.before !== null && <span class="gone"><span class="sign" aria-label="before">-</span> {short(each.before)}</span>}
          {each.after !== null && <span class="added"><span class="sign" aria-label="after">+</span> {short(each.after)}</span>}
        </li>
      ))}
    </ul>
  );
}
