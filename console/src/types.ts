// The shapes that the HTTP API answers with, as far as the console reads them.
// Keys that not every broker sends are optional.

export type Role = "viewer" | "operator" | "admin";
export type State = "ok" | "warning" | "critical" | "unknown";

export interface Session { name: string; role: Role; expires: number | null; csrf: string }
export interface Page<T> { items: T[]; next: string | null }

export interface Rates {
  answered_per_second: number | null;
  failed_per_second: number | null;
  p50_seconds: number | null;
  p99_seconds: number | null;
}
export interface BrokerStatus {
  broker: string; version: string | null; state: string; draining: boolean | null; group: string;
  uptime: number | null; config_version: number; clients: Record<string, number>; services: number;
  requests: { waiting: number; under_way: number; answered: number; failed: number } | null;
  tasks: Record<string, number> | null; error_clients: number | null; counters: Record<string, number> | null;
}
export interface Health { part: string; state: State; words: string; next: string | null }
export interface Attention { severity: State; what: string; words: string; page: string; next: string | null }
export interface Overview {
  time: number; broker: BrokerStatus; health: Health[]; attention: Attention[]; rates: Rates;
  counts: Record<string, number | null>;
}

export interface Broker {
  broker: string; group: string; state: string; standby_for: string; services: string[] | "all"; load: number;
  age: number | null; config_version: number; endpoints: Record<string, string>;
}
export interface Group { group: string; brokers: string[]; active: number; load: number }
export interface Link { from: string; to: string; state: string }
export interface Topology { brokers: Broker[]; groups: Group[]; links: Link[]; services: Record<string, string[]> }

export interface Service {
  service: string; backends: number; slots: number; busy: number; waiting: number; where: string[]; rates?: Rates | null;
}
export interface Queue {
  service: string; waiting: number; oldest_seconds: number | null; backends: number; tasks_queued: number | null;
  lru: { identity: string; slots: number; busy: number }[];
}
export interface Series {
  times: number[]; answered: (number | null)[]; failed: (number | null)[]; p99_seconds: (number | null)[];
  busy: (number | null)[]; waiting: (number | null)[];
}
export interface Client {
  identity: string; role: string; services: string[]; services_more?: number; slots: number; busy: number; age: number; since: number;
  heartbeat_interval: number; config_version: number; protocol: string; tasks: number; status?: unknown;
}
export interface ErrorClient { client: string; socket: string; ends_in: number; bad: number }

export interface Task {
  task_id: string; client_id: string; method: string; status: string; priority: number; attempt: number; starts: number;
  node_id: string | null; submitted: number; started: number | null; finished: number | null;
  error?: { code: number; message: string; data?: unknown } | null; progress?: unknown; params_bytes?: number | null;
  result_bytes?: number | null; max_attempts?: number | null; [key: string]: unknown;
}
export interface Moment {
  time: number | string; kind: string; words: string; node: string | null; attempt: number | null; state: string | null;
}

export interface Agent {
  agent: string; state: string; since?: number | null; left?: number | null; protocol: unknown; software: string | null;
  address?: string | null; silent_seconds?: number | null; labels: Record<string, string> | null; checks: string[];
  helen: string;
}
export interface Check {
  agent: string; check: string; state: State; hard: boolean; attempt: number; max_attempts: number; flapping: boolean;
  flapping_percent: number; message: string; at: number; since: number; seconds: number | null; stale: boolean;
  incident: string; suppressed: string[]; helen: string;
}
export interface CheckSeries { times: number[]; states: string[]; metrics: Record<string, (number | null)[]> }
export interface Incident {
  id: string; agent: string; check: string; opened: number; closed: number | null; state: string; worst: string;
  message: string; helen: string;
}
export interface Silence {
  name: string; agents: string[]; checks: string[]; labels: Record<string, string>; starts?: number; ends: number;
  reason: string; author: string;
}

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export interface Config { version: number; hash: string; config: { [key: string]: Json } }
export interface Version {
  version: number; hash: string; parent: string; time: number; author: string | null; current: boolean;
}
export interface Change { path: string; before: Json; after: Json }

export interface NetworkEvent {
  source: string; boot: number; seq: number; time: string; at: string; kind: string; identity: string | null;
  service: string | null; ref: string | null; attempt: number | null; code: number | null; state: string | null;
  seconds: number | null; data: unknown; [key: string]: unknown;
}
export interface Token { id: string; name: string; role: Role; expires: number | null }
export interface IssuedToken { token: string; name: string; role: Role; expires: number }
