// Promise: CON-6 (an event is shown once, also after the stream was cut).
import { describe, expect, it } from "vitest";
import { gapWords, joined, keyOf } from "../src/logic/event_ids";

const event = (source: string, seq: number, boot = 1) => ({ source, seq, boot });

describe("what cannot be told", () => {
  it("is said in words", () => {
    expect(gapWords({ source: "east-1", first: 3, last: 9, reason: "too old" })).toBe("Missing: events 3 to 9 of east-1 (too old)");
    expect(gapWords({ source: "east-1", first: 3, last: 3 })).toBe("Missing: event 3 of east-1");
  });
});

describe("events that come", () => {
  it("are shown once, the newest first, and never more than the limit", () => {
    const shown = [event("a", 2), event("a", 1)];
    const found = joined(shown, [event("a", 2), event("a", 3), event("a", 4), event("a", 4)], 3);
    expect(found.map((each) => each.seq)).toEqual([4, 3, 2]);
  });
  it("are others after a new start of their source", () => {
    expect(keyOf(event("a", 1, 1))).not.toBe(keyOf(event("a", 1, 2)));
    expect(joined([event("a", 1, 1)], [event("a", 1, 2)], 9)).toHaveLength(2);
  });
});
