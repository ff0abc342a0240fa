// Promise: CON-3 (long lists stay fast: a window of rows is drawn).
import { describe, expect, it } from "vitest";
import { compare, fits, sorted, windowOf } from "../src/logic/rows";

describe("the window into a long list", () => {
  it("draws what is seen, and the heights always add up to the whole", () => {
    for (const top of [0, 1, 32, 33, 1_000, 329_000, 10 ** 9, -50]) {
      const seen = windowOf(10_000, 33, top, 600);
      expect(seen.above + (seen.last - seen.first) * 33 + seen.below).toBe(330_000);
      expect(seen.last - seen.first).toBeLessThan(50);
      const at = Math.min(Math.max(0, top), 330_000 - 600);
      expect(seen.first * 33).toBeLessThanOrEqual(at);
      expect(seen.last * 33).toBeGreaterThanOrEqual(at + 600);
    }
  });
  it("is empty for nothing", () => expect(windowOf(0, 33, 0, 600)).toEqual({ first: 0, last: 0, above: 0, below: 0 }));
});

describe("the order of rows", () => {
  it("orders names as people do, and numbers by size", () => {
    expect(sorted(["web-10", "web-2"], (each) => each, false)).toEqual(["web-2", "web-10"]);
    expect(sorted([3, 20, 1], (each) => each, true)).toEqual([20, 3, 1]);
  });
  it("puts what is not known last, up and down", () => {
    expect(sorted([null, 2, 1], (each) => each, false)).toEqual([1, 2, null]);
    expect(sorted([null, 2, 1], (each) => each, true)).toEqual([2, 1, null]);
    expect(compare(undefined, null, false)).toBe(0);
  });
  it("keeps equals in their order", () => {
    expect(sorted([[1, "a"], [0, "b"], [1, "c"]] as const, ([key]) => key, false).map(([, name]) => name)).toEqual(["b", "a", "c"]);
  });
  it("finds rows by every word", () => {
    expect(fits("web-1 Disk full", "disk WEB")).toBe(true);
    expect(fits("web-1 disk", "disk db")).toBe(false);
    expect(fits("anything", "")).toBe(true);
  });
});
