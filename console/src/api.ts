// Requests to the server: JSON over fetch, with a deadline, and with the CSRF token for every change.

const DEADLINE_MS = 20_000;
const PAGE_ROWS = 1_000;
/** The largest number of rows that is read of one list: the browser holds them all. */
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

/** Called when the session has ended. */
export function whenUnauthorised(callback: () => void): void {
  onUnauthorised = callback;
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
      late ? "The server did not answer in time." : "The server cannot be reached.",
      "Check that it is running: `scale0 status` asks the broker directly.",
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
  const body = (found ?? {}) as { message?: unknown; detail?: unknown; next?: unknown; reasons?: unknown };
  const message = typeof body.message === "string" ? body.message : typeof body.detail === "string" ? body.detail : "";
  const reasons = Array.isArray(body.reasons) ? body.reasons.map(String).filter((reason) => reason !== message) : [];
  return new ApiError(
    answer.status,
    message || `The server answered ${answer.status} ${answer.statusText}`.trim(),
    typeof body.next === "string" ? body.next : "",
    reasons,
  );
}

export const get = <T>(path: string, signal?: AbortSignal): Promise<T> => call<T>("GET", path, undefined, signal);

/** `?a=1&b=2`; blank and null values are left out. */
export function query(values: Record<string, string | number | boolean | null | undefined>): string {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given.map(([key, value]) => [key, String(value)]))}` : "";
}

/** `silent`: Helens that did not answer, whose rows are missing; `helens` is null for a list that is not of Helens. */
export interface Whole<T> { items: T[]; cut: boolean; pages: number; helens: string[] | null; silent: string[] }
interface ListPage<T> { items: T[]; next: string | null; helens?: string[]; silent?: string[] }

/** All pages of a list, one request after the other. */
export async function all<T>(path: string, signal?: AbortSignal, most = MAX_ROWS): Promise<Whole<T>> {
  const items: T[] = [];
  let after: string | null = null;
  let pages = 0;
  let helens: string[] | null = null;
  let silent: string[] = [];
  do {
    const more: string = query({ limit: PAGE_ROWS, after });
    const found: ListPage<T> = await get(
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
