// The session of the user, and what its role permits. The server decides; the console only disables buttons.

import { signal } from "@preact/signals";
import { ApiError, call, get, setCsrf, whenUnauthorised } from "./api";
import { actionOf, type ActionId } from "./actions";
import type { Role, Session } from "./types";

const RANKS: Record<Role | "none", number> = { none: 0, viewer: 1, operator: 2, admin: 3 };

/** undefined: not known yet; null: not logged in. */
export const session = signal<Session | null | undefined>(undefined);
/** Why the login page is shown, if there is a reason. */
export const loginReason = signal("");

whenUnauthorised(() => {
  if (!session.value) return;
  loginReason.value = "Your session has ended. Log in again to return to this page.";
  take(null);
});

function take(found: Session | null): void {
  setCsrf(found?.csrf ?? "");
  session.value = found;
}

/** Read the session from the server. */
export async function look(): Promise<void> {
  try {
    take(await get<Session>("/session"));
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 401) {
      loginReason.value = error instanceof Error ? error.message : String(error);
    }
    take(null);
  }
}

export async function logIn(credentials: { name: string; password: string } | { token: string } | { once: string }): Promise<void> {
  take(await call<Session>("POST", "/session", credentials));
  loginReason.value = "";
}

export async function logOut(): Promise<void> {
  try {
    await call("DELETE", "/session");
  } finally {
    loginReason.value = "";
    take(null);
  }
}

export function has(role: Role | "none"): boolean {
  return RANKS[session.value?.role ?? "none"] >= RANKS[role];
}

/** Why the user may not do an action; blank: it is permitted. */
export function refusal(id: ActionId): string {
  const { role } = actionOf(id);
  return has(role) ? "" : `This action needs the role ${role}; your role is ${session.value?.role ?? "none"}.`;
}
