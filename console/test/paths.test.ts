// Promise: CON-4 (two who change at once: nobody's change is lost unseen).
import { describe, expect, it } from "vitest";
import { changes, partsOf, patchOf, reapplied } from "../src/logic/paths";
import type { Json } from "../src/types";

type Tree = { [key: string]: Json };
const base: Tree = {
  version: 7, parent: "a", heartbeat_liveness: 3,
  checks: [{ name: "disk", interval: 60, args: { path: "/" } }, { name: "load", interval: 60 }],
  group_config: [{ name: "east", brokers: [{ identity: "east-1", services: "all" }] }],
};
const with_ = (change: (tree: Tree) => void): Tree => {
  const tree = structuredClone(base);
  change(tree);
  return tree;
};
const checks = (tree: Tree): Tree[] => tree["checks"] as Tree[];

describe("changes by path", () => {
  it("names entries of lists by their name, and leaves out what brokers make", () => {
    const after = with_((tree) => {
      tree["version"] = 8;
      (checks(tree)[0] as Tree)["interval"] = 30;
      checks(tree).push({ name: "a.b]c", interval: 5 });
      ((tree["group_config"] as Tree[])[0] as { brokers: Tree[] }).brokers[0] = { identity: "east-1", services: ["x"] };
    });
    expect(changes(base, after).map((each) => each.path)).toEqual([
      "checks.[disk].interval", "checks.[a.b]]c]", "group_config.[east].brokers.[east-1].services",
    ]);
  });
  it("says what is gone as null, and a patch removes it", () => {
    const after = with_((tree) => { tree["checks"] = [checks(tree)[0] as Tree]; });
    const found = changes(base, after);
    expect(found).toEqual([{ path: "checks.[load]", before: { name: "load", interval: 60 }, after: null }]);
    expect(patchOf(found)).toEqual({ set: {}, remove: ["checks.[load]"] });
  });
  it("reads the paths that it writes", () => {
    expect(partsOf("checks.[a.b]]c].interval")).toEqual([
      { text: "checks", exact: false }, { text: "a.b]c", exact: true }, { text: "interval", exact: false },
    ]);
  });
});

describe("a change done again on another's", () => {
  it("keeps both where they do not touch", () => {
    const mine = with_((tree) => { (checks(tree)[0] as Tree)["interval"] = 30; });
    const theirs = with_((tree) => { tree["heartbeat_liveness"] = 5; checks(tree).push({ name: "swap", interval: 9 }); });
    const { document, clashes } = reapplied(base, mine, theirs);
    expect(clashes).toEqual([]);
    expect(document["heartbeat_liveness"]).toBe(5);
    expect(checks(document).map((each) => each["name"])).toEqual(["disk", "load", "swap"]);
    expect(checks(document)[0]?.["interval"]).toBe(30);
  });
  it("tells where both changed the same, and takes mine", () => {
    const mine = with_((tree) => { tree["heartbeat_liveness"] = 4; });
    const theirs = with_((tree) => { tree["heartbeat_liveness"] = 5; });
    const { document, clashes } = reapplied(base, mine, theirs);
    expect(document["heartbeat_liveness"]).toBe(4);
    expect(clashes.map((each) => each.theirs.after)).toEqual([5]);
  });
  it("tells that they removed what I changed", () => {
    const mine = with_((tree) => { (checks(tree)[1] as Tree)["interval"] = 1; });
    const theirs = with_((tree) => { tree["checks"] = [checks(tree)[0] as Tree]; });
    expect(reapplied(base, mine, theirs).clashes).toHaveLength(1);
  });
  it("is no clash if both did the same", () => {
    const both = with_((tree) => { tree["heartbeat_liveness"] = 4; });
    expect(reapplied(base, both, structuredClone(both)).clashes).toEqual([]);
  });
  it("leaves the documents that it was given alone", () => {
    const theirs = with_(() => {});
    reapplied(base, with_((tree) => { tree["checks"] = []; }), theirs);
    expect(theirs).toEqual(base);
  });
});
