// The one way to the server: JSON over fetch, with the CSRF token on whatever changes anything.
// Lives here: requests and their errors. Never here: what a page does with them. Every request has a deadline.

const DEADLINE_MS = 20_000;
const PAGE_ROWS = 1_000;
/** So many rows are read of one list at most: a browser holds them all. */
export const MAX_ROWS = 50_000;

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly next: string = "",
    readonly reasons: string[] = [],
  ) {
    super(message);
  }
}

let csrf = "";
let onUnauthorised = (): void => {};

export function setCsrf(token: string): void {
  csrf = token;
}

/** Who is told that nobody is logged in any more. */
export function whenUnauthorised(tell: () => void): void {
  onUnauthorised = tell;
}

export async function call<T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const headers: Record<string, string> = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET" && csrf) headers["X-CSRF-Token"] = csrf;
  const deadline = AbortSignal.timeout(DEADLINE_MS);
  let answer: Response;
  try {
    answer = await fetch(`api/v1${path}`, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, deadline]) : deadline,
      credentials: "same-origin",
      cache: "no-store",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    const late = deadline.aborted;
    throw new ApiError(
      0,
      late ? "The server has not answered in time." : "The server cannot be reached.",
      "Is it running? `scale0 status` asks the broker itself.",
    );
  }
  const found = await decoded(answer);
  if (answer.ok) return found as T;
  if (answer.status === 401 && path !== "/session") onUnauthorised();
  throw errorOf(answer, found);
}

async function decoded(answer: Response): Promise<unknown> {
  const text = await answer.text();
  if (!text) return null;
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return null;
  }
}

function errorOf(answer: Response, found: unknown): ApiError {
  const said = (found ?? {}) as { message?: unknown; detail?: unknown; next?: unknown; reasons?: unknown };
  const message = typeof said.message === "string" ? said.message : typeof said.detail === "string" ? said.detail : "";
  const reasons = Array.isArray(said.reasons) ? said.reasons.map(String) : [];
  return new ApiError(
    answer.status,
    message || `The server answered ${answer.status} ${answer.statusText}`.trim(),
    typeof said.next === "string" ? said.next : "",
    reasons,
  );
}

export const get = <T>(path: string, signal?: AbortSignal): Promise<T> => call<T>("GET", path, undefined, signal);

/** `?a=1&b=2` of what is given; blank and null are left out. */
export function query(said: Record<string, string | number | boolean | null | undefined>): string {
  const given = Object.entries(said).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given.map(([key, value]) => [key, String(value)]))}` : "";
}

/** `silent`: Helens who did not answer, so that what they watch is missing; `helens` is null where nobody asked them. */
export interface Whole<T> { items: T[]; cut: boolean; pages: number; helens: string[] | null; silent: string[] }
interface Told<T> { items: T[]; next: string | null; helens?: string[]; silent?: string[] }

/** Every page of a list, one after the other: the server is not asked for two at once. */
export async function all<T>(path: string, signal?: AbortSignal, most = MAX_ROWS): Promise<Whole<T>> {
  const items: T[] = [];
  let after: string | null = null;
  let pages = 0;
  let helens: string[] | null = null;
  let silent: string[] = [];
  do {
    const more: string = query({ limit: PAGE_ROWS, after });
    const found: Told<T> = await get(
      path + (path.includes("?") ? more.replace("?", "&") : more),
      signal,
    );
    items.push(...found.items);
    helens = found.helens ?? null;
    silent = found.silent ?? [];
    after = found.next;
    pages += 1;
  } while (after !== null && items.length < most);
  return { items, cut: after !== null, pages, helens, silent };
}
