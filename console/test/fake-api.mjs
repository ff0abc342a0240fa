// A fake of the HTTP API, for work on the console and for its tests: the built pages under the strict policy that the real
// server sends, and a made-up network. `node test/fake-api.mjs [PORT]`; log in as ada, bob or vic (admin, operator,
// viewer) with the password "demo", by the token "s0_demo", or by #/login?once=demo. Never a part of the package.

import { createHash } from "node:crypto";
import { createReadStream, existsSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import * as fixtures from "./fixtures.mjs";
import { report } from "./fixture_reports.mjs";

const PAGES = fileURLToPath(new URL("../../src/scale0/http/pages/", import.meta.url));
const POLICY = "default-src 'self'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'";
const TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };
const ROLES = { ada: "admin", bob: "operator", vic: "viewer" };
const RANKS = { viewer: 1, operator: 2, admin: 3 };
const { now } = fixtures;

/** What tests may turn: `POST /fake {broken: true}` answers everything with 503, `{empty: true}` shows a network of nobody. */
const fake = { broken: false, empty: false };
let config = fixtures.document;
const past = new Map([[12, config], [11, { ...config, version: 11, heartbeat_liveness: 4 }]]);

class Refusal extends Error {
  constructor(status, message, next = "", reasons) {
    super(message);
    Object.assign(this, { status, next, reasons });
  }
}
const csrfOf = (token) => createHash("sha256").update(`csrf:${token}`).digest("hex");
const page = (list, query) => {
  const limit = Math.min(1000, Number(query.get("limit") ?? 100));
  const from = Number(query.get("after") ?? 0);
  const rows = fake.empty ? [] : list;
  return { items: rows.slice(from, from + limit), next: from + limit < rows.length ? String(from + limit) : null };
};
const rates = (at) => ({ answered_per_second: 900 / (at + 1) + 40 * Math.sin(now() / 7 + at), failed_per_second: at === 4 ? 1.5 : 0, p50_seconds: 0.003 * (at + 1), p99_seconds: 0.02 * (at + 1) });
const services = () => fixtures.SERVICES.map((service, at) => ({ service, backends: at === 7 ? 0 : 40 - at * 3, slots: at === 7 ? 0 : 160 - at * 12, busy: at === 7 ? 0 : Math.round(60 + 30 * Math.sin(now() / 9 + at)), waiting: at === 4 ? 37 : at === 7 ? 3 : 0, where: at % 3 ? ["east-1"] : ["east-1", "west-1"], rates: rates(at) }));
const queues = () => services().map((row, at) => ({ service: row.service, waiting: row.waiting, oldest_seconds: row.waiting ? 4.2 : null, backends: row.backends, tasks_queued: at % 3 ? 0 : at * 11, lru: Array.from({ length: Math.min(100, row.backends) }, (_, number) => ({ identity: `worker-${number * 40 + at}`, slots: 4, busy: (number * 3) % 5 })) }));

function series() {
  const times = Array.from({ length: 300 }, (_, at) => Math.floor(now()) - 299 + at);
  const wave = (base, swing, slow) => times.map((at) => Math.max(0, base + swing * Math.sin(at / slow) + (swing / 5) * Math.sin(at * 1.7)));
  return { times, answered: wave(900, 200, 23), failed: times.map((at) => (at % 97 < 6 ? 12 : 0)), p99_seconds: wave(0.04, 0.015, 17), busy: wave(80, 30, 29), waiting: times.map((at) => (at % 97 < 20 ? (at % 97) * 2 : 0)) };
}

function overview() {
  if (fake.empty) return { time: now(), broker: { ...status(), clients: {}, services: 0 }, health: [{ part: "broker", state: "ok", words: "east-1 is active", next: null }], attention: [], rates: { answered_per_second: 0, failed_per_second: 0, p50_seconds: null, p99_seconds: null }, counts: {} };
  const attention = [
    { severity: "critical", what: "db-1/disk", words: "disk / is 97 % full, 1.2 GiB left; for 18 min", page: "#/checks/db-1/disk", next: "free space, then `scale0 check run db-1 disk`" },
    { severity: "critical", what: "Nobody offers pdf.render", words: "3 requests wait for it", page: "#/services/pdf.render", next: "start a worker: `scale0 worker pdf.py:worker`" },
    { severity: "critical", what: "west-3 is lost", words: "not heard for 12 min", page: "#/topology", next: "look at its machine; `scale0 broker` starts it again" },
    { severity: "unknown", what: "mail-1 is away", words: "its 5 checks are stale", page: "#/agents", next: "is the agent running there? `scale0 agent --config agent/agent.zpl`" },
    { severity: "warning", what: "mail.out", words: "37 requests wait, the oldest for 4 s", page: "#/queues", next: "add workers, or slots" },
    { severity: "warning", what: "2 error clients", words: "they are ignored for bad messages", page: "#/clients/errors", next: "mend the client, then forgive it" },
  ];
  const health = [["broker", "ok", "east-1 is active, up for 3 d"], ["peers", "critical", "5 of 6 are heard; west-3 is lost", "look at its machine"], ["store", "ok", "commits take 1.2 ms"], ["requests", "warning", "40 wait"], ["tasks", "ok", "212 open, 31 leased"], ["helen", "ok", "helen-1 answers"], ["agents", "warning", "7 of 8 connected", "`scale0 agents`"], ["checks", "critical", "1 critical, 1 unknown, 2 warning of 40"], ["segments", "ok", "written 22 s ago"], ["configuration", "ok", "version 12 everywhere but west-3"], ["management", "ok", "this server, up for 3 d"]];
  return { time: now(), broker: status(), health: health.map(([part, state, words, next = null]) => ({ part, state, words, next })), attention, rates: rates(0), counts: { incidents_open: 2, agents: 8, checks: 40 } };
}
const status = () => ({ broker: "east-1", version: "0.7.0", state: "active", draining: fixtures.brokers[0].state === "draining", group: "east", uptime: 266_000, config_version: config.version, clients: { backend: 2500, frontend: 7500 }, services: 9, requests: { waiting: 40, under_way: 310, answered: 81_000_000, failed: 512 }, tasks: { open: 212, leased: 31, finished: 81_230, failed: 50 }, error_clients: 2, counters: {} });

function listed(query, list, keys) {
  return list.filter((row) => keys.every((key) => !query.get(key) || String(row[key === "client" ? "client_id" : key]) === query.get(key)));
}
const taskOf = (id) => fixtures.tasks.find((row) => row.task_id === id) ?? fail(404, `unknown task ${id}`, "`scale0 task list` shows those that are there");
function fail(status, message, next, reasons) {
  throw new Refusal(status, message, next, reasons);
}
function changedTo(next, who) {
  config = { ...next, version: config.version + 1 };
  past.set(config.version, config);
  fixtures.versions.forEach((row) => { row.current = false; });
  fixtures.versions.unshift({ version: config.version, hash: createHash("sha256").update(JSON.stringify(config)).digest("hex"), parent: "", time: now(), author: who, current: true });
  return { version: config.version, hash: fixtures.versions[0].hash };
}
const based = (base) => base === undefined || base === null || base === config.version || fail(409, `it was made from version ${base}, but ${config.version} is current`, "look at what changed, and save again");
const judged = (given) => {
  const reasons = [];
  for (const key of Object.keys(given ?? {})) if (!(key in fixtures.document)) reasons.push(`${key}: unknown key; the nearest known one is network`);
  if (typeof given?.heartbeat_liveness !== "number") reasons.push("heartbeat_liveness: is no whole number");
  return reasons;
};

/** [method, pattern, role, act]; act gets the parts of the path, the query, the body and who. */
const ROUTES = [
  ["GET", "/overview", "viewer", () => overview()],
  ["GET", "/topology", "viewer", () => (fake.empty ? { brokers: fixtures.brokers.slice(0, 1), groups: [], links: [], services: {} } : { brokers: fixtures.brokers, groups: [], links: fixtures.links, services: { "east-1": fixtures.SERVICES, "west-1": fixtures.SERVICES.slice(0, 4), "edge-1": ["geo.lookup", "math.add"] } })],
  ["POST", "/brokers/:b/:act", "operator", ([name, act]) => {
    if (name !== "east-1") fail(409, `this is the server of east-1, not of ${name}`, `use the console of ${name}`);
    fixtures.brokers[0].state = { enable: "active", disable: "disabled", drain: "draining" }[act] ?? fixtures.brokers[0].state;
    return { state: fixtures.brokers[0].state, draining: act === "drain" };
  }],
  ["GET", "/services", "viewer", (_, query) => page(services(), query)],
  ["GET", "/queues", "viewer", (_, query) => page(queues(), query)],
  ["GET", "/series", "viewer", () => series()],
  ["GET", "/clients", "viewer", (_, query) => page(listed(query, fixtures.clients, ["role"]), query)],
  ["GET", "/error-clients", "viewer", (_, query) => page(fixtures.errorClients, query)],
  ["POST", "/error-clients/:c/forgive", "operator", ([name]) => { fixtures.errorClients.splice(0, 99, ...fixtures.errorClients.filter((row) => row.client !== name)); return { forgiven: 1 }; }],
  ["GET", "/tasks", "viewer", (_, query) => page(listed(query, fixtures.tasks, ["status", "method", "client"]), query)],
  ["GET", "/tasks/:id", "viewer", ([id]) => taskOf(id)],
  ["GET", "/tasks/:id/timeline", "viewer", ([id]) => ({ items: fixtures.timelineOf(taskOf(id)) })],
  ["POST", "/tasks/:id/retry", "operator", ([id]) => Object.assign(taskOf(id), { status: "queued", finished: null, error: null })],
  ["POST", "/tasks/:id/cancel", "operator", ([id]) => Object.assign(taskOf(id), { status: "cancelled", finished: now() })],
  ["GET", "/agents", "viewer", (_, query) => page(fixtures.agents, query)],
  ["GET", "/checks", "viewer", (_, query) => page(fixtures.checks, query)],
  ["GET", "/checks/:a/:c/series", "viewer", ([agent, check]) => fixtures.checkSeries(agent, check)],
  ["POST", "/checks/:a/:c/run", "operator", ([agent, check]) => ({ state: fixtures.checks.find((row) => row.agent === agent && row.check === check)?.state ?? "unknown", message: "asked just now", metrics: {}, seconds: 0.02 })],
  ["GET", "/incidents", "viewer", (_, query) => page(fixtures.incidents.filter((row) => query.get("open") !== "true" || row.closed === null), query)],
  ...["silences", "downtimes"].flatMap((noun) => [
    ["GET", `/${noun}`, "viewer", (_, query) => page(fixtures[noun], query)],
    ["POST", `/${noun}`, "operator", (_, __, body, who) => { const made = { name: `${noun.slice(0, -1)}-${fixtures[noun].length}ab`, ...body, author: who.name }; fixtures[noun].push(made); return made; }],
    ["DELETE", `/${noun}/:id`, "operator", ([name]) => { fixtures[noun].splice(0, 99, ...fixtures[noun].filter((row) => row.name !== name)); return null; }],
  ]),
  ["GET", "/config", "viewer", () => ({ version: config.version, hash: fixtures.versions[0].hash, config })],
  ["GET", "/config/history", "viewer", (_, query) => page(fixtures.versions, query)],
  ["GET", "/config/diff", "viewer", (_, query) => ({ items: query.get("from") === query.get("to") ? [] : [{ path: "heartbeat_liveness", before: 4, after: 3 }, { path: "checks.[swap]", before: null, after: { name: "swap", interval: 60 } }] })],
  ["POST", "/config/check", "viewer", (_, __, body) => ({ valid: !judged(body.config).length, reasons: judged(body.config) })],
  ["PUT", "/config", "admin", (_, __, body, who) => { based(body.base); const reasons = judged(body.config); if (reasons.length) fail(400, reasons[0], "mend it", reasons); return changedTo(body.config, who.name); }],
  ["PATCH", "/config", "operator", (_, __, body, who) => { based(body.base); return changedTo({ ...config, ...Object.fromEntries(Object.entries(body.set ?? {}).filter(([path]) => path in config)) }, who.name); }],
  ["POST", "/config/rollback", "admin", (_, __, body, who) => { based(body.base); return changedTo(past.get(body.version) ?? config, who.name); }],
  ["GET", "/reports/:name", "viewer", ([name], query) => (fake.empty ? fail(404, "there are no tables yet", "`scale0 pipeline run` makes them") : report(name, Number.parseInt(query.get("last") ?? "30", 10)))],
  ["GET", "/events", "viewer", (_, query) => query.get("ref") && fixtures.tasks.some((row) => row.task_id === query.get("ref")) ? { items: fixtures.timelineOf(taskOf(query.get("ref"))).map((each, at) => ({ source: "east-1", boot: 5, seq: at, ...each, at: each.time, identity: each.node })), next: null } : ({ items: fake.empty ? [] : Array.from({ length: Math.min(200, Number(query.get("limit") ?? 100)) }, (_each, at) => fixtures.eventAt(now() - (200 - at) * 2)).filter((each) => wanted(each, query)), next: null })],
  ["GET", "/audit", "viewer", (_, query) => page(fixtures.audit, query)],
  ["GET", "/tokens", "admin", (_, query) => page(fixtures.tokens, query)],
  ["POST", "/tokens", "admin", (_, __, body) => { fixtures.tokens.push({ id: "0123456789ab", name: body.name, role: body.role, expires: now() + body.ttl }); return { token: "s0_made-up-and-shown-once", name: body.name, role: body.role, expires: now() + body.ttl }; }],
  ["DELETE", "/tokens/:id", "admin", ([id]) => { fixtures.tokens.splice(0, 99, ...fixtures.tokens.filter((row) => row.id !== id)); return null; }],
].map(([method, pattern, role, act]) => [method, new RegExp(`^${pattern.replace(/:\w+/g, "([^/]+)")}$`), role, act]);

const wanted = (event, query) => ["kind", "identity", "service", "ref", "source"].every((key) => {
  const glob = query.get(key);
  return !glob || new RegExp(`^${glob.replace(/[.+^${}()|\\]/g, "\\$&").replaceAll("*", ".*").replaceAll("?", ".")}$`).test(event[key] ?? "");
});

function whoIs(request) {
  const cookie = /scale0_session=([^;]+)/.exec(request.headers.cookie ?? "")?.[1];
  const name = cookie?.replace("token-of-", "");
  return name && ROLES[name] ? { name, role: ROLES[name], expires: now() + 3000, csrf: csrfOf(cookie) } : null;
}

function session(request, response, body) {
  if (request.method === "GET") return whoIs(request) ?? fail(401, "not logged in", "log in");
  if (request.method === "DELETE") {
    response.setHeader("Set-Cookie", "scale0_session=; Max-Age=0; Path=/");
    return { revoked: 1 };
  }
  const name = body.once === "demo" || body.token === "s0_demo" ? "ada" : body.password === "demo" && ROLES[body.name] ? body.name : fail(401, "wrong credentials", "check the name and the password; the link works once");
  response.setHeader("Set-Cookie", `scale0_session=token-of-${name}; HttpOnly; SameSite=Strict; Path=/`);
  return { name, role: ROLES[name], expires: now() + 3600, csrf: csrfOf(`token-of-${name}`) };
}

function answer(request, response, url, body) {
  if (fake.broken) fail(503, "the broker cannot be reached", "`scale0 status` asks the broker itself");
  const path = url.pathname.replace("/api/v1", "");
  if (path === "/session") return session(request, response, body);
  const who = whoIs(request) ?? fail(401, "log in first", "log in");
  if (request.method !== "GET" && request.headers["x-csrf-token"] !== who.csrf) fail(403, "the CSRF token is missing or wrong", "load the page again");
  for (const [method, pattern, role, act] of ROUTES) {
    const found = method === request.method && pattern.exec(path);
    if (!found) continue;
    if (RANKS[who.role] < RANKS[role]) fail(403, `this needs the role ${role}`, "ask an admin");
    return act(found.slice(1).map(decodeURIComponent), url.searchParams, body, who);
  }
  return fail(404, `there is no ${request.method} ${path}`);
}

function stream(request, response, url) {
  response.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-store" });
  response.write(": hello\n\n");
  const timer = setInterval(() => {
    if (fake.broken) return response.destroy();
    const event = fixtures.eventAt(now());
    if (!fake.empty && wanted(event, url.searchParams)) response.write(`id: ${event.source}:${event.seq}\nevent: event\ndata: ${JSON.stringify(event)}\n\n`);
  }, 400);
  response.on("close", () => clearInterval(timer));
}

function sent(request, response, status, value) {
  const text = JSON.stringify(value ?? {});
  const zip = /gzip/.test(request.headers["accept-encoding"] ?? "") && text.length > 1000;
  response.writeHead(status, { "Content-Type": "application/json", "Cache-Control": "no-store", ...(zip ? { "Content-Encoding": "gzip" } : {}) });
  response.end(zip ? gzipSync(text, { level: 1 }) : text);
}

function file(response, url) {
  const path = join(PAGES, normalize(url.pathname === "/" ? "/index.html" : url.pathname));
  if (!path.startsWith(PAGES) || !existsSync(path) || !statSync(path).isFile()) {
    response.writeHead(404).end("not here");
    return;
  }
  response.writeHead(200, { "Content-Type": TYPES[extname(path)] ?? "application/octet-stream", "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff" });
  createReadStream(path).pipe(response);
}

const server = createServer((request, response) => {
  const url = new URL(request.url, "http://fake");
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    const body = parts.length ? JSON.parse(Buffer.concat(parts).toString()) : {};
    if (url.pathname === "/fake") return sent(request, response, 200, Object.assign(fake, body));
    if (!url.pathname.startsWith("/api/")) return file(response, url);
    if (url.pathname === "/api/v1/events/stream" && whoIs(request)) return stream(request, response, url);
    try {
      sent(request, response, 200, answer(request, response, url, body));
    } catch (error) {
      const status = error.status ?? 500;
      sent(request, response, status, { status, code: status, message: error.message, next: error.next ?? "", ...(error.reasons ? { reasons: error.reasons } : {}) });
    }
  });
});
server.listen(Number(process.argv[2] ?? 5780), "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}/`));
