// Who is logged in, and what they may do. The server decides; this only spares people buttons that would be refused.

import { signal } from "@preact/signals";
import { ApiError, call, get, setCsrf, whenUnauthorised } from "./api";
import { actionOf, type ActionId } from "./actions";
import type { Role, Session } from "./types";

const RANKS: Record<Role | "none", number> = { none: 0, viewer: 1, operator: 2, admin: 3 };

/** undefined: not known yet; null: nobody. */
export const session = signal<Session | null | undefined>(undefined);
/** Why the login page is shown, if something happened. */
export const loginReason = signal("");

whenUnauthorised(() => {
  if (!session.value) return;
  loginReason.value = "Your login has ended. Log in again; you come back to this page.";
  take(null);
});

function take(found: Session | null): void {
  setCsrf(found?.csrf ?? "");
  session.value = found;
}

/** Ask who we are; without an answer nobody. */
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

export async function logIn(said: { name: string; password: string } | { token: string } | { once: string }): Promise<void> {
  take(await call<Session>("POST", "/session", said));
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

/** Why an action is not for this person; blank: it is. */
export function refusal(id: ActionId): string {
  const { role } = actionOf(id);
  return has(role) ? "" : `This needs the role ${role}; you are ${session.value?.role ?? "nobody"}.`;
}
