// Formatting of values. Pure: the caller passes the time.

const DASH = "–";

/** 0.0042 → "4.2 ms", 75 → "1 min 15 s", 200000 → "2 d 7 h". */
export function span(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return DASH;
  if (seconds < 0) return `-${span(-seconds)}`;
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return `${figures(seconds * 1e6)} µs`;
  if (seconds < 1) return `${figures(seconds * 1e3)} ms`;
  if (seconds < 60) return `${seconds < 10 ? figures(seconds) : Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  const pairs: [number, string][] = [[86_400, "d"], [3_600, "h"], [60, "min"], [1, "s"]];
  const at = pairs.findIndex(([size]) => whole >= size);
  const [size, unit] = pairs[at] as [number, string];
  const [small, lesser] = pairs[at + 1] ?? [0, ""];
  const rest = small ? Math.floor((whole % size) / small) : 0;
  return `${Math.floor(whole / size)} ${unit}${rest ? ` ${rest} ${lesser}` : ""}`;
}

/** The same with one unit. */
export function shortSpan(seconds: number | null | undefined): string {
  const said = span(seconds);
  return seconds !== null && seconds !== undefined && Math.abs(seconds) >= 60 ? said.split(" ").slice(0, 2).join(" ") : said;
}

/** Two or three significant figures. */
export function figures(value: number): string {
  const size = Math.abs(value);
  if (size >= 100) return Math.round(value).toLocaleString("en");
  if (size >= 10) return trimmed(value.toFixed(1));
  return trimmed(value.toFixed(2));
}

function trimmed(text: string): string {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

export function count(value: number | null | undefined): string {
  return value === null || value === undefined || !Number.isFinite(value) ? DASH : Math.round(value).toLocaleString("en");
}

export function rate(value: number | null | undefined): string {
  return value === null || value === undefined || !Number.isFinite(value) ? DASH : `${figures(value)}/s`;
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return DASH;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = value;
  let unit = 0;
  while (Math.abs(size) >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${figures(size)} ${units[unit]}`;
}

export function share(value: number | null | undefined): string {
  return value === null || value === undefined ? DASH : `${figures(value * 100)} %`;
}

/** Rounded down, so that 100 % means every second. */
export function availability(value: number | null | undefined): string {
  if (value === null || value === undefined) return DASH;
  if (value >= 1) return "100 %";
  return `${(Math.floor(value * 1e5 + 1e-9) / 1e3).toFixed(3)} %`;
}

/** Seconds since the epoch, from seconds or a text in UTC. */
export function epoch(value: number | string | null | undefined): number | null {
  if (value === null || value === undefined) return null;
  if (typeof value === "number") return value;
  const found = Date.parse(value);
  return Number.isNaN(found) ? null : found / 1000;
}

const two = (value: number): string => String(value).padStart(2, "0");

/** 2026-05-01 22:00:00, in the browser's time zone. */
export function moment(value: number | string | null | undefined): string {
  const seconds = epoch(value);
  if (seconds === null) return DASH;
  const at = new Date(seconds * 1000);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(seconds)}`;
}

/** 22:00:00 */
export function clock(value: number | string | null | undefined, millis = false): string {
  const seconds = epoch(value);
  if (seconds === null) return DASH;
  const at = new Date(seconds * 1000);
  const said = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return millis ? `${said}.${String(at.getMilliseconds()).padStart(3, "0")}` : said;
}

/** "3 min ago", "in 2 h". */
export function ago(value: number | string | null | undefined, now: number): string {
  const seconds = epoch(value);
  if (seconds === null) return DASH;
  const gone = now - seconds;
  if (Math.abs(gone) < 1) return "now";
  return gone > 0 ? `${shortSpan(Math.floor(gone))} ago` : `in ${shortSpan(Math.floor(-gone))}`;
}

export function counted(value: number, noun: string, many = `${noun}s`): string {
  return `${count(value)} ${value === 1 ? noun : many}`;
}

/** "2h" → 7200; null: the text is no duration. */
export function parseSpan(text: string): number | null {
  const found = /^\s*(\d{1,9})\s*([smhdw]?)\s*$/.exec(text);
  if (!found) return null;
  const sizes: Record<string, number> = { "": 1, s: 1, m: 60, h: 3_600, d: 86_400, w: 604_800 };
  const seconds = Number(found[1]) * (sizes[found[2] ?? ""] ?? 1);
  return seconds > 0 ? seconds : null;
}
