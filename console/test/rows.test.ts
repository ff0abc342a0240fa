// Promise: CON-5 (long lists stay fast: a window of rows is drawn).
import { describe, expect, it } from "vitest";
import { compare, fits, natural, sorted, windowOf } from "../src/logic/rows";

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
  it("compares in one way, whatever the names", () => {
    const names = ["a", "a1", "a01", "a1b", "a2", "a10", "10", "9", "", "b", "a10b2", "a10b10"];
    for (const one of names) for (const other of names) {
      expect(Math.sign(natural(one, other))).toBe(Math.sign(-natural(other, one)) + 0);
    }
    expect(names.toSorted(natural).join(" ").trim()).toBe("9 10 a a1 a01 a1b a2 a10 a10b2 a10b10 b");
  });
  it("orders 10,000 names at once", () => {
    const names = Array.from({ length: 10_000 }, (_, at) => `worker-${(at * 7_919) % 10_000}`);
    const found = sorted(names, (each) => each, false);
    expect([found[0], found[9_999]]).toEqual(["worker-0", "worker-9999"]);
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
