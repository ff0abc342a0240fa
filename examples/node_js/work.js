// What this node does: one function per method.
//
// A function gets the task's params as they were submitted, `progress(share, note)`, and an AbortSignal that fires when
// nobody wants the result any more. What it returns is the result, what it throws the task's error; an error with
// `retry = true` has the task tried again.

import { setTimeout as pause } from "node:timers/promises";

/** Arguments by place, by name, or both: `["to be"]`, `{"text": "to be"}`, `{"*": ["to be"], "seconds": 2}`. */
function bind(params, ...names) {
  if (Array.isArray(params)) return params;
  const { "*": places = [], ...named } = params;
  return names.map((name, place) => places[place] ?? named[name]);
}

function wordsOf(text) {
  if (typeof text !== "string" || text.trim() === "") throw new Error("there is nothing to count");
  return text.trim().split(/\s+/);
}

export const methods = {
  "words.count": (params) => wordsOf(bind(params, "text")[0]).length,

  /** The same, aloud: a word at a time. */
  "words.read": async (params, { progress, signal }) => {
    const [text, seconds = 1] = bind(params, "text", "seconds");
    const words = wordsOf(text);
    for (const [place, word] of words.entries()) {
      await progress(place / words.length, word);
      await pause(seconds * 1_000, undefined, { signal });
    }
    return words.length;
  },
};
