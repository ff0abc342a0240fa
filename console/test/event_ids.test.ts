// Promise: CON-4 (an event is shown once, also after the stream was cut).
import { describe, expect, it } from "vitest";
import { joined, keyOf, later, parsePosition, positionText } from "../src/logic/event_ids";

const event = (source: string, seq: number, boot = 1) => ({ source, seq, boot });

describe("where a stream goes on", () => {
  it("reads and writes positions; a source may hold colons", () => {
    const found = parsePosition("east-1:12,helen:a:7");
    expect([...found]).toEqual([["east-1", 12], ["helen:a", 7]]);
    expect(positionText(found)).toBe("east-1:12,helen:a:7");
  });
  it("leaves out what makes no sense", () => expect(parsePosition("x,:3,a:b,c:-1,d:4").size).toBe(1));
  it("only moves forward", () => {
    const found = later(parsePosition("a:5,b:9"), parsePosition("a:3,b:10,c:1"));
    expect(Object.fromEntries(found)).toEqual({ a: 5, b: 10, c: 1 });
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
