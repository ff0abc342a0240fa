// Promise: CON-3 (what is shown before saving is what changes).
import { describe, expect, it } from "vitest";
import { diffLines, hunks, type Line } from "../src/logic/lines";

const side = (lines: Line[], sign: "-" | "+"): string => lines.filter((line) => line.sign === " " || line.sign === sign).map((line) => line.text).join("\n");

describe("a difference of lines", () => {
  it("gives back both texts, whatever they are", () => {
    let seed = 3;
    const roll = (most: number): number => (seed = (seed * 48_271) % 2_147_483_647) % most;
    for (let round = 0; round < 300; round += 1) {
      const make = (): string => Array.from({ length: roll(12) }, () => "abcd"[roll(4)]).join("\n");
      const [before, after] = [make(), make()];
      const found = diffLines(before, after);
      expect(side(found, "-")).toBe(before);
      expect(side(found, "+")).toBe(after);
    }
  });
  it("is short where little changed", () => {
    const before = Array.from({ length: 2_000 }, (_, at) => `line ${at}`);
    const after = before.toSpliced(700, 1, "changed").toSpliced(1_500, 0, "new");
    const found = diffLines(before.join("\n"), after.join("\n")).filter((line) => line.sign !== " ");
    expect(found.map((line) => line.sign + line.text)).toEqual(["-line 700", "+changed", "+new"]);
  });
  it("numbers the lines of both sides", () => {
    expect(diffLines("a\nb\nc", "a\nx\nc")).toEqual([
      { sign: " ", text: "a", before: 1, after: 1 }, { sign: "-", text: "b", before: 2, after: null },
      { sign: "+", text: "x", before: null, after: 2 }, { sign: " ", text: "c", before: 3, after: 3 },
    ]);
  });
  it("gives up on texts that share nothing, and still tells the truth", () => {
    const before = Array.from({ length: 6_000 }, (_, at) => `a${at}`).join("\n");
    const after = Array.from({ length: 6_000 }, (_, at) => `b${at}`).join("\n");
    const found = diffLines(before, after);
    expect(side(found, "-")).toBe(before);
    expect(side(found, "+")).toBe(after);
  }, 20_000);
  it("leaves out what is far from a change", () => {
    const before = Array.from({ length: 100 }, (_, at) => `${at}`);
    const found = hunks(diffLines(before.join("\n"), before.toSpliced(50, 1, "x").join("\n")));
    expect(found).toHaveLength(1);
    expect(found[0]?.skipped).toBe(47);
    expect(found[0]?.lines).toHaveLength(8);
  });
});
