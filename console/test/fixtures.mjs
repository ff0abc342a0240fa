// A made-up network for the fake API: rich enough that every page has something to show, and something wrong.
// Deterministic but for the time: two screenshots of one page differ in clocks alone.

const HOUR = 3600;
const DAY = 86_400;

let seed = 7;
export function chance() {
  seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648;
  return seed / 2_147_483_648;
}
const pick = (list) => list[Math.floor(chance() * list.length)];
const hex = (length) => Array.from({ length }, () => Math.floor(chance() * 16).toString(16)).join("");
export const now = () => Date.now() / 1000;

export const SERVICES = ["thumbs.make", "thumbs.list", "math.add", "report.send", "mail.out", "index.update", "geo.lookup", "pdf.render", "helen.status", "helen.check"];

const endpoints = (port) => ({ frontend: `tcp://127.0.0.1:${port}`, backend: `tcp://127.0.0.1:${port + 1}`, peer: `tcp://127.0.0.1:${port + 2}`, config_pub: `tcp://127.0.0.1:${port + 3}`, task_pub: `tcp://127.0.0.1:${port + 4}` });
const broker = (name, group, state, load, port, more = {}) => ({ broker: name, group, state, standby_for: "", services: "all", load, age: 0.3, config_version: 12, endpoints: endpoints(port), ...more });

export const brokers = [
  broker("east-1", "east", "active", 10_000, 5700, { age: 0 }),
  broker("east-2", "east", "standby", 3, 5710, { standby_for: "east-1" }),
  broker("west-1", "west", "active", 420, 5720),
  broker("west-2", "west", "draining", 17, 5730),
  broker("west-3", "west", "lost", 0, 5740, { age: 754, config_version: 11 }),
  broker("edge-1", "edge", "active", 88, 5750, { services: ["geo.lookup", "math.add"] }),
];
export const links = [["east-1", "east-2"], ["east-1", "west-1"], ["east-1", "edge-1"], ["west-1", "west-2"], ["west-1", "edge-1"], ["east-2", "west-1"]]
  .map(([from, to]) => ({ from, to, state: "active" })).concat([{ from: "west-1", to: "west-3", state: "lost" }]);

export const clients = Array.from({ length: 10_000 }, (_, at) => {
  const backend = at % 4 === 0;
  const names = backend ? [SERVICES[at % SERVICES.length], ...(at % 12 === 0 ? ["math.add", "geo.lookup", "thumbs.list"] : [])] : [];
  return {
    identity: `${backend ? "worker" : "caller"}-${at}`, role: backend ? "backend" : "frontend", services: names, slots: backend ? 4 : 0, busy: backend ? at % 5 : 0,
    age: (at % 97) / 60, since: now() - (at % 5_000) * 31, heartbeat_interval: 5, config_version: at % 211 === 0 ? 11 : 12,
    protocol: at % 50 === 0 ? "majordomo" : "scale0", tasks: backend ? at % 3 : 0, status: null,
  };
}).sort((one, other) => (one.identity < other.identity ? -1 : 1));

export const errorClients = [
  { client: "0x006b8b4567", socket: "frontend", ends_in: 244, bad: 11 },
  { client: "scraper-3", socket: "frontend", ends_in: 61, bad: 38 },
];

const STATUSES = ["finished", "finished", "finished", "running", "queued", "failed", "scheduled", "cancelled", "assigned"];
export const tasks = Array.from({ length: 450 }, (_, at) => {
  const status = STATUSES[at % STATUSES.length];
  const submitted = now() - at * 47 - 20;
  const began = !["queued", "scheduled"].includes(status);
  return {
    task_id: hex(24), client_id: `cli-${pick(["ada", "bob", "cron"])}-1`, method: SERVICES[at % 8], status, priority: at % 10, attempt: status === "failed" ? 3 : began ? 1 + (at % 2) : 0,
    starts: began ? 1 + (at % 2) : 0, node_id: began ? `worker-${(at * 4) % 400}` : null, submitted, started: began ? submitted + 1.2 : null,
    finished: ["finished", "failed", "cancelled"].includes(status) ? submitted + 9.7 : null, max_attempts: 3, params_bytes: 412, result_bytes: status === "finished" ? 20_480 : null,
    progress: status === "running" ? { done: 41, of: 100 } : null,
    error: status === "failed" ? { code: -32000, message: "ValueError: the picture is no picture", data: { traceback: "Traceback (most recent call last):\n  File \"thumbs.py\", line 14, in make\nValueError: the picture is no picture" } } : null,
  };
});

export function timelineOf(task) {
  const at = task.submitted;
  const out = [{ time: at, kind: "task.submitted", words: `submitted by ${task.client_id} for ${task.method}, priority ${task.priority}`, node: null, attempt: null, state: null }];
  for (let number = 1; number < task.attempt; number += 1) {
    out.push({ time: at + number * 3, kind: "task.attempt_ended", words: `attempt ${number} on worker-${number * 8} ended: ${number === 1 ? "lost (code 502)" : "failed"} after 1.5 s, waited 1.2 s`, node: `worker-${number * 8}`, attempt: number, state: number === 1 ? "lost" : "failed", seconds: 1.5, waited: 1.2 });
  }
  if (task.finished) out.push({ time: task.finished, kind: "task.completed", words: `${task.status} after 3.1 s, attempt ${task.attempt} on ${task.node_id}`, node: task.node_id, attempt: task.attempt, state: task.status, seconds: 3.1, waited: 0.4 });
  return out;
}

const AGENTS = ["db-1", "db-2", "web-1", "web-2", "web-3", "mail-1", "cache-1", "build-1"];
export const agents = AGENTS.map((agent, at) => ({
  agent, state: at === 5 ? "away" : "connected", since: at === 5 ? null : now() - 3 * DAY + at * 999, left: at === 5 ? now() - 1300 : null, protocol: 1, software: "0.7.0", address: at === 5 ? null : `10.0.0.${10 + at}:51${at}02`,
  silent_seconds: at === 5 ? null : (at * 7) % 5, labels: { role: agent.split("-")[0], site: at % 2 ? "west" : "east" }, checks: ["disk", "load", "memory", "tcp", "http"], helen: "helen-1",
}));

const MESSAGES = { ok: "is fine", warning: "/var is 86 % full", critical: "/ is 97 % full, 1.2 GiB left", unknown: "it did not answer within 10 s" };
export const checks = AGENTS.flatMap((agent, a) => ["disk", "load", "memory", "http", "swap"].map((check, c) => {
  const state = a === 0 && c === 0 ? "critical" : a === 2 && c === 0 ? "warning" : a === 5 && c === 3 ? "unknown" : a === 4 && c === 1 ? "warning" : "ok";
  return {
    agent, check, state, hard: !(a === 4), attempt: a === 4 && c === 1 ? 2 : 3, max_attempts: 3, flapping: a === 2 && c === 0, flapping_percent: a === 2 && c === 0 ? 41.2 : 3.1, message: `${check} ${MESSAGES[state]}`,
    at: now() - ((a * 13 + c * 7) % 55), since: now() - (state === "ok" ? DAY * 2 : 1100 + a * 60), seconds: 0.012 * (c + 1), stale: a === 5, fresh_until: now() + 30,
    incident: state === "critical" ? "db-1/disk@1763000000000000" : "", suppressed: a === 2 && c === 0 ? ["silence silence-1f2e3d4c"] : [], helen: "helen-1",
  };
}));

export function checkSeries(agent, check) {
  const found = checks.find((row) => row.agent === agent && row.check === check);
  const times = Array.from({ length: 120 }, (_, at) => Math.round(now()) - (119 - at) * 60);
  const bad = found && found.state !== "ok";
  const wave = (base, swing) => times.map((_, at) => Math.round((base + swing * Math.sin(at / 9 + check.length) + (bad ? at / 8 : 0)) * 100) / 100);
  return { times, states: times.map((_, at) => (bad && at > 90 ? found.state : at === 40 ? "warning" : "ok")), metrics: { "/": wave(72, 4), "/var": wave(60, 9), inodes: wave(12, 1) } };
}

export const incidents = [
  { id: "db-1/disk@1763000000000000", agent: "db-1", check: "disk", opened: now() - 1100, closed: null, state: "critical", worst: "critical", message: "disk / is 97 % full, 1.2 GiB left", helen: "helen-1" },
  { id: "mail-1/http@1762999000000000", agent: "mail-1", check: "http", opened: now() - 1290, closed: null, state: "unknown", worst: "unknown", message: "http it did not answer within 10 s", helen: "helen-1" },
  ...Array.from({ length: 14 }, (_, at) => ({ id: `web-${at % 3}/load@${at}`, agent: `web-${1 + (at % 3)}`, check: "load", opened: now() - DAY * (at + 1), closed: now() - DAY * (at + 1) + 400 + at * 60, state: "ok", worst: at % 3 ? "warning" : "critical", message: "load is 14.2", helen: "helen-1" })),
];

export const silences = [
  { name: "silence-1f2e3d4c", agents: ["web-1"], checks: ["disk"], labels: {}, ends: now() + 5400, reason: "being moved to a larger disk", author: "ada" },
  { name: "old-noise", agents: [], checks: ["swap"], labels: { role: "build" }, ends: now() - 3000, reason: "build machines swap", author: "bob" },
];
export const downtimes = [{ name: "new-disks", agents: ["db-*"], checks: [], labels: {}, starts: now() + 6 * HOUR, ends: now() + 8 * HOUR, reason: "new disks for the databases", author: "ada" }];

export const document = {
  network: "scale0", version: 12, default_heartbeat_interval: 1, heartbeat_liveness: 3,
  group_config: [{ name: "east", fallback_groups: ["west"], brokers: [{ identity: "east-1", services: "all", endpoints: endpoints(5700) }, { identity: "east-2", services: "all", endpoints: endpoints(5710) }] }, { name: "west", fallback_groups: ["east"], brokers: [{ identity: "west-1", services: "all", endpoints: endpoints(5720) }] }],
  services: [{ name: "thumbs.make", timeout: 10, retry: true, max_attempts: 3 }, { name: "mail.out", request_queue_limit: 500 }],
  checks: ["disk", "load", "memory", "http", "swap"].map((name) => ({ name, check: "", args: {}, interval: 60, timeout: 10, agents: [], labels: {}, thresholds: {}, max_attempts: 3, flapping: { formula: "icinga", start: null, end: null, suppress: false }, depends_on: [], handlers: ["pager"], enabled: true })),
  handlers: [{ name: "pager", type: "webhook", url: "http://127.0.0.1:9000/page", states: ["critical", "ok"] }],
  downtimes, silences, parent: hex(64),
};

export const versions = Array.from({ length: 12 }, (_, at) => ({ version: 12 - at, hash: hex(64), parent: hex(64), time: now() - at * DAY * 1.3 - 500, author: pick(["ada", "bob", "root"]), current: at === 0 }));

const KINDS = ["client.joined", "client.lost", "task.submitted", "task.completed", "task.attempt_ended", "check.answered", "check.state_changed", "incident.opened", "request.summed", "request.failed", "config.changed", "client.seen", "peer.lost", "management.commanded"];
let seq = 1000;
export function eventAt(seconds) {
  const kind = pick(KINDS);
  seq += 1;
  const text = new Date(seconds * 1000).toISOString().replace("Z", "000Z");
  const isTask = kind.startsWith("task.");
  return {
    source: pick(["east-1", "helen-1"]), boot: 5, seq, time: text, at: text, kind, identity: kind.startsWith("check") ? pick(AGENTS) : `worker-${Math.floor(chance() * 400)}`, service: isTask || kind.startsWith("request") ? pick(SERVICES) : kind.startsWith("check") ? "disk" : null,
    ref: isTask ? hex(24) : null, attempt: isTask ? 1 : null, code: kind === "request.failed" ? 504 : null, state: kind === "task.completed" ? "finished" : kind === "check.state_changed" ? "critical" : null, seconds: isTask || kind === "check.answered" ? chance() * 2 : null,
    data: kind === "task.submitted" ? { priority: 4, group: "" } : kind === "client.lost" ? { reason: "silent", held: 2 } : null,
  };
}
const COMMANDS = [["patch_config", 11, { version: 12, paths: ["silences.[silence-1f2e3d4c]"] }], ["retry_task", "failed", "queued"], ["drain", "active", "draining"], ["forgive", null, "scraper-3"], ["issue_token", null, { name: "grafana", role: "viewer" }], ["login", null, null]];
export const audit = Array.from({ length: 60 }, (_, at) => {
  const [command, before, after] = COMMANDS[at % COMMANDS.length];
  const time = new Date((now() - at * 1800) * 1000).toISOString();
  return { source: "east-1", boot: 5, seq: 900 - at, time, at: time, kind: "management.commanded", identity: pick(["ada", "bob", "root"]), service: null, ref: null, attempt: null, code: at % 13 === 5 ? 401 : 200, state: null, seconds: null, data: { command, origin: "frontend/console 127.0.0.1", before, after } };
});

export const tokens = [
  { id: hex(12), name: "ada", role: "admin", expires: now() + 3000 }, { id: hex(12), name: "grafana", role: "viewer", expires: now() + 29 * DAY }, { id: hex(12), name: "deploy", role: "operator", expires: now() + 6 * HOUR },
];
