// Smaller pure parts: the wait after failures, addresses, silences, attempts, the drawing, plots, and the table of actions.
import { describe, expect, it } from "vitest";
import { ACTIONS, actionOf, commandOf, pathOf } from "../src/actions";
import { attemptsOf } from "../src/logic/attempts";
import { MAX_WAIT_MS, paceMs, waitMs } from "../src/logic/backoff";
import { layout, linkPath, pairs } from "../src/logic/layout";
import { isOver, silenceRequest, remaining } from "../src/logic/silences";
import { conePoints, linePoints, stackPoints } from "../src/logic/report";
import { parseRoute, routeTo } from "../src/router";
import type { NetworkEvent, Task } from "../src/types";

describe("the wait after failures", () => {
  it("grows, is spread, and has an end", () => {
    expect(waitMs(2_000, 0, 0.9)).toBe(2_000);
    expect(waitMs(2_000, 1, 0.5)).toBe(4_000);
    expect(waitMs(2_000, 50, 1)).toBeLessThanOrEqual(MAX_WAIT_MS * 1.25);
    expect(waitMs(2_000, 3, 0)).toBeLessThan(waitMs(2_000, 3, 1));
  });
  it("is longer for what takes long", () => expect([paceMs(2_000, 100), paceMs(2_000, 3_000)]).toEqual([2_000, 12_000]));
});

describe("addresses", () => {
  it("keep any name", () => {
    const name = "a/b?c#d %é";
    expect(parseRoute(routeTo("tasks", [name], { status: "x&y", method: "" }))).toMatchObject({ page: "tasks", rest: [name] });
    expect(parseRoute(routeTo("tasks", [], { status: "x&y" })).query.get("status")).toBe("x&y");
  });
  it("lead to the overview if they say nothing", () => expect(parseRoute("").page).toBe("overview"));
  it("keep a one-time token as it is", () => expect(parseRoute("#/login?once=s0_ab-c").query.get("once")).toBe("s0_ab-c"));
});

describe("a silence from what was typed", () => {
  const form = { agents: "web-* db-1", checks: "", labels: "role=web", lasts: "2h", starts: "", reason: " moved " };
  it("is what the document has", () => expect(silenceRequest("silence", form, 1_000)).toEqual({ agents: ["web-*", "db-1"], checks: [], labels: { role: "web" }, reason: "moved", ends: 8_200 }));
  it("must say which checks", () => expect(silenceRequest("silence", { ...form, agents: " ", labels: "" }, 0)).toMatch(/Select an agent/));
  it("may have no end; a downtime must", () => {
    expect(silenceRequest("silence", { ...form, lasts: "" }, 5)).toMatchObject({ ends: 0 });
    expect(silenceRequest("downtime", { ...form, lasts: "" }, 5)).toMatch(/duration/);
    expect(silenceRequest("downtime", { ...form, starts: "2001-01-01T00:00" }, Date.now() / 1000)).toMatch(/in the past/);
  });
  it("is over when it is", () => {
    const row = { name: "x", agents: [], checks: [], labels: {}, ends: 100, reason: "", author: "" };
    expect([isOver(row, 101), isOver(row, 99), isOver({ ...row, ends: 0 }, 101)]).toEqual([true, false, false]);
    expect([remaining(row, 40), remaining(row, 200), remaining({ ...row, ends: 0 }, 5)]).toEqual(["1 min left", "over", "until it is removed"]);
  });
});

describe("attempts of a task", () => {
  const event = (given: Partial<NetworkEvent>): NetworkEvent => ({ source: "b", boot: 1, seq: 1, at: "", service: null, ref: "t", code: null, data: null, kind: "task.attempt_ended", identity: "n1", attempt: 1, state: "lost", seconds: null, time: "", ...given });
  const at = (seconds: number): string => new Date(seconds * 1000).toISOString();
  it("are reckoned from their ends, whatever their order, and the one under way goes on", () => {
    const task = { status: "running", attempt: 2, node_id: "n2", started: 20 } as Task;
    const found = attemptsOf([event({ at: at(10), seconds: 4 }), event({ kind: "task.submitted", at: at(1), attempt: null, state: null })], task, 25);
    expect(found.map((each) => [each.attempt, each.node, each.from, each.to, each.tone])).toEqual([[1, "n1", 6, 10, "critical"], [2, "n2", 20, 25, "running"]]);
  });
  it("begin where the one before ended, if nothing says how long they took", () => {
    expect(attemptsOf([event({ at: at(3) }), event({ at: at(10), attempt: 2 })], undefined, 20)[1]?.from).toBe(3);
  });
});

describe("the drawing", () => {
  const groups = [{ group: "a", brokers: ["1", "2", "3", "4", "5"] }, { group: "b", brokers: ["6"] }, { group: "c", brokers: [] }];
  it.each([320, 700, 1_200])("fits into %s, and nothing overlaps", (width) => {
    const drawn = layout(groups, width);
    expect(drawn.width).toBeLessThanOrEqual(width);
    const boxes = [...drawn.at.values()];
    for (const one of boxes) for (const other of boxes) {
      if (one !== other) expect(one.x + one.width <= other.x || other.x + other.width <= one.x || one.y + one.height <= other.y || other.y + other.height <= one.y).toBe(true);
    }
    expect(linkPath(boxes[0]!, boxes[5]!)).not.toMatch(/NaN/);
  });
  it("draws each link once, the worse state of both ways", () => {
    const known = new Set(["a", "b"]);
    expect(pairs([{ from: "a", to: "b", state: "active" }, { from: "b", to: "a", state: "lost" }, { from: "a", to: "x", state: "active" }], known)).toEqual([{ from: "a", to: "b", state: "lost" }]);
  });
});

describe("plots of reports", () => {
  it("puts lines with times of their own over all times", () => {
    expect(linePoints([{ points: [[1e6, 1], [3e6, 3]] }, { points: [[2e6, 2]] }])).toEqual({ times: [1, 2, 3], values: [[1, null, 3], [null, 2, null]] });
  });
  it("stacks", () => expect(stackPoints([[1e6, [1, 2]], [2e6, [3, 4]]], 2).sums).toEqual([[1, 3], [3, 7]]));
  it("draws a forecast between the earliest and the latest meeting", () => {
    const found = conePoints({ plot: "cone", title: "", about: "", history: [[0, 10], [1e6, 20]], at_us: 2e6, value: 30, limit: 90, meets_us: 8e6, low_us: 6e6, high_us: 10e6 });
    expect(found.times).toEqual([...found.times].sort((one, other) => one - other));
    found.times.forEach((_, at) => {
      if (found.low[at] !== null) expect(found.low[at]!).toBeLessThanOrEqual(found.high[at]!);
      expect(found.middle[at] ?? 0).toBeLessThanOrEqual(90);
    });
    expect(found.middle.at(-1)).toBe(90);
  });
});

describe("the table of actions", () => {
  it("has each id once, and every path can be filled with any name", () => {
    expect(new Set(ACTIONS.map((each) => each.id)).size).toBe(ACTIONS.length);
    expect(pathOf(actionOf("check.run"), { agent: "a/b", check: "é ?" })).toBe("/checks/a%2Fb/%C3%A9%20%3F/run");
    expect(() => pathOf(actionOf("task.retry"))).toThrow(/needs id/);
  });
  it("tells the command for this very thing, quoted for a shell", () => {
    expect(commandOf(actionOf("check.run"), { agent: "web-1", check: "it's" })).toBe("scale0 check run web-1 'it'\\''s'");
  });
});
