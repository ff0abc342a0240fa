// A task node in Node.js, written from docs/protocol.md (section 12) alone.
//
//     node node.js [--backend tcp://127.0.0.1:5701] [--task-pub tcp://127.0.0.1:5704] [--slots 4]
//
// It hears on a SUB socket that there are tasks, asks the broker for as many as it has room for, and tells what came of
// them. SIGTERM: it takes nothing new, finishes what it has in hand, and leaves.

import { randomBytes } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import { parseArgs } from "node:util";
import { Subscriber } from "zeromq";
import { Broker, NoAnswer, RpcError } from "./broker.js";
import { methods } from "./work.js";

const BAD_TASK = -32020; // unknown, ended, or not ours any more
const BAD_NODE = -32030; // the broker does not know us, or takes us for somebody else
const NOT_STORED = -32060; // its disk is full: keep the result, and say it again
const OWN_ERROR = 1; // an error's code is ours to choose: those below -32000 are the broker's
const LEAVE_MS = 30_000; // what SIGTERM waits for, and no longer

const { values: options } = parseArgs({
  options: {
    backend: { type: "string", default: "tcp://127.0.0.1:5701" },
    "task-pub": { type: "string", default: "tcp://127.0.0.1:5704" },
    slots: { type: "string", default: "4" },
  },
});
const slots = Number(options.slots);
const names = Object.keys(methods);
// An id of our own, kept for life: by it a broker that was restarted gives us back what we have in hand.
const nodeId = `node-js-${randomBytes(4).toString("hex")}`;

const broker = new Broker(options.backend);
const news = new Subscriber();
const inHand = new Map(); // task id → AbortController
let interval = 1; // seconds, the network's default until the broker says otherwise
let joined = false;
let leaving = false;
let pulling = false;
let announced = false;
let unsure = false; // a request for tasks was not answered: what it granted is ours, and we do not know it

function say(...words) {
  console.log(...words);
}

/** Be known to the broker, and stay so. Any message is a sign of life; this one is sent whatever else happens. */
async function stayAlive() {
  while (!leaving || inHand.size > 0) {
    try {
      if (unsure && inHand.size === 0) await startOver();
      if (joined) await broker.call("node_heartbeat", nodeId);
      else await join();
    } catch (error) {
      if (error instanceof RpcError && error.code === BAD_NODE) await rejoin();
      else say("broker:", error.message); // the next beat tries again
    }
    await pause((interval * 1_000) / 2);
  }
}

async function join() {
  await broker.call("node_connect", nodeId, names);
  joined = true;
  say("ready", nodeId, ...names);
  void pull();
}

/** Give back what we may have been given without hearing of it. */
async function startOver() {
  if (!joined) await broker.call("node_connect", nodeId, names); // a restarted broker may keep it for us
  await broker.call("node_disconnect", nodeId);
  joined = false;
  unsure = false;
}

/** The broker refuses our id. Either it does not know us (it was restarted, or took us for dead), or it has heard our
 * old connection within the last interval. In the second case node_connect would cost us what we have in hand, while
 * a heartbeat after that interval keeps it. So wait, ask again, and only then introduce ourselves. */
async function rejoin() {
  await pause(interval * 1_000);
  try {
    await broker.call("node_heartbeat", nodeId);
  } catch (error) {
    if (error instanceof RpcError && error.code === BAD_NODE) joined = false;
  }
}

/** Fill the free slots. What is announced meanwhile has it ask once more. */
async function pull() {
  announced = true;
  if (pulling) return;
  pulling = true;
  try {
    while (announced && joined && !unsure && !leaving && inHand.size < slots) {
      announced = false;
      for (const task of await broker.call("node_tasks_request", nodeId, slots - inHand.size)) {
        announced = true; // where there was one, there may be more
        void perform(task);
      }
    }
  } catch (error) {
    if (error instanceof NoAnswer) unsure = true;
    say("cannot take tasks:", error.message);
  } finally {
    pulling = false;
  }
}

async function perform({ id, method, params, attempt }) {
  const abort = new AbortController();
  inHand.set(id, abort);
  let outcome;
  try {
    const progress = (share, note) => tell(id, abort, { progress: share, note });
    const result = await methods[method](params, { progress, signal: abort.signal });
    outcome = ["node_task_finished", nodeId, id, result ?? null, attempt];
  } catch (error) {
    const failure = { code: OWN_ERROR, message: String(error.message), retry: error.retry === true };
    outcome = ["node_task_failed", nodeId, id, failure, attempt];
  }
  if (abort.signal.aborted) say("gave up", id);
  else await report(id, outcome);
  inHand.delete(id);
  void pull();
}

/** Progress. The answer also says whether the task is still ours: a cancelled one is not, nor one that took too long. */
async function tell(id, abort, info) {
  try {
    await broker.call("task_status", nodeId, id, "running", info);
  } catch (error) {
    if (error instanceof RpcError && error.code === BAD_TASK) abort.abort();
  }
}

/** A result is ours to keep until the broker has stored it, or says that nobody wants it. */
async function report(id, outcome) {
  for (;;) {
    try {
      await broker.call(...outcome);
      return say("done", id);
    } catch (error) {
      const again = error instanceof NoAnswer || error.code === BAD_NODE || error.code === NOT_STORED;
      if (!again) return say("refused", id, error.message); // another attempt owns it: it was done elsewhere
      await pause(interval * 1_000);
    }
  }
}

async function listen() {
  news.connect(options["task-pub"]);
  news.subscribe(...names.map((name) => `task.${name}`), "node");
  for await (const [, text] of news) {
    const { method, params } = JSON.parse(text.toString());
    if (method === "zerotask.node.broker_new_task") void pull();
    if (method === "zerotask.node.broker_node_status") {
      interval = params.heartbeat_interval;
      broker.call("node_status", nodeId, { in_hand: inHand.size }).catch(() => {});
    }
  }
}

async function leave() {
  if (leaving) return;
  leaving = true;
  setTimeout(() => process.exit(1), LEAVE_MS).unref(); // the broker gives what is left to others
  await alive; // ends once nothing is in hand
  try {
    if (joined) await broker.call("node_disconnect", nodeId);
    say("left");
  } catch (error) {
    say("left without a word:", error.message);
  }
  broker.close();
  news.close();
}

for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, leave);
void listen();
const alive = stayAlive();
