import { describe, expect, it } from "vitest";
import { ago, availability, bytes, count, epoch, parseSpan, rate, share, span } from "../src/logic/format";

describe("values as people read them", () => {
  it.each([
    [0, "0 s"], [0.0000042, "4.2 µs"], [0.0042, "4.2 ms"], [0.25, "250 ms"], [1.5, "1.5 s"], [59.6, "60 s"], [75, "1 min 15 s"],
    [3_600, "1 h"], [200_000, "2 d 7 h"], [-5, "-5 s"], [null, "–"], [NaN, "–"],
  ])("a span of %s is %s", (seconds, words) => expect(span(seconds)).toBe(words));
  it("rounds availability down, never up", () => {
    expect(availability(0.999999)).toBe("99.999 %");
    expect(availability(1)).toBe("100 %");
    expect(availability(0.99925)).toBe("99.925 %");
    expect(availability(null)).toBe("–");
  });
  it("says counts, rates, bytes and shares", () => {
    expect([count(10_000), rate(0.5), rate(1234.5), bytes(20_480), share(0.1234)]).toEqual(["10,000", "0.5/s", "1,235/s", "20 KiB", "12.3 %"]);
  });
  it("takes seconds, or text in UTC", () => {
    expect(epoch("1970-01-01T00:01:00.500000Z")).toBe(60.5);
    expect(epoch(60)).toBe(60);
    expect(epoch("nonsense")).toBeNull();
  });
  it("says how long ago, and how soon", () => expect([ago(100, 175), ago(200, 100), ago(100, 100.4), ago(null, 1)]).toEqual(["1 min ago", "in 1 min", "now", "–"]));
  it.each([["90", 90], ["30m", 1800], ["2h", 7200], [" 1d ", 86_400], ["2w", 1_209_600], ["", null], ["0", null], ["-1h", null], ["1.5h", null], ["2 hours", null]])("reads %s as %s", (text, seconds) => expect(parseSpan(text)).toBe(seconds));
});
