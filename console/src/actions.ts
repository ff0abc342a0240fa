// Every action of the console that changes something: pages send no other changes.
// A test compares this table with docs/console.md and with the command line, so each row stays on one line.

import type { Role } from "./types";

export interface Action {
  id: string;
  label: string;
  method: "POST" | "PUT" | "PATCH" | "DELETE";
  path: string;
  /** The least role that may do it; "none": no login is needed. */
  role: Role | "none";
  /** The command line that does the same. */
  command: string;
  /** True: the user must confirm it. */
  asks: boolean;
}

// prettier-ignore
export const ACTIONS = [
  { id: "session.login", label: "Log in", method: "POST", path: "/session", role: "none", command: "scale0 access link", asks: false },
  { id: "session.logout", label: "Log out", method: "DELETE", path: "/session", role: "viewer", command: "scale0 access revoke ID", asks: false },
  { id: "broker.enable", label: "Enable", method: "POST", path: "/brokers/{broker}/enable", role: "operator", command: "scale0 enable BROKER", asks: false },
  { id: "broker.disable", label: "Disable", method: "POST", path: "/brokers/{broker}/disable", role: "operator", command: "scale0 disable BROKER", asks: true },
  { id: "broker.drain", label: "Drain", method: "POST", path: "/brokers/{broker}/drain", role: "operator", command: "scale0 drain BROKER", asks: true },
  { id: "broker.reload", label: "Reload", method: "POST", path: "/brokers/{broker}/reload", role: "operator", command: "scale0 reload BROKER", asks: true },
  { id: "client.forgive", label: "Forgive", method: "POST", path: "/error-clients/{client}/forgive", role: "operator", command: "scale0 error-clients forgive CLIENT", asks: false },
  { id: "task.retry", label: "Retry", method: "POST", path: "/tasks/{id}/retry", role: "operator", command: "scale0 task retry ID", asks: false },
  { id: "task.cancel", label: "Cancel", method: "POST", path: "/tasks/{id}/cancel", role: "operator", command: "scale0 task cancel ID", asks: true },
  { id: "check.run", label: "Run now", method: "POST", path: "/checks/{agent}/{check}/run", role: "operator", command: "scale0 check run AGENT NAME", asks: false },
  { id: "silence.add", label: "Add silence", method: "POST", path: "/silences", role: "operator", command: "scale0 silence add --agent GLOB --check GLOB --for TIME", asks: false },
  { id: "silence.end", label: "End", method: "DELETE", path: "/silences/{id}", role: "operator", command: "scale0 silence end NAME", asks: true },
  { id: "downtime.add", label: "Plan downtime", method: "POST", path: "/downtimes", role: "operator", command: "scale0 downtime add --agent GLOB --from WHEN --for TIME", asks: false },
  { id: "downtime.end", label: "End", method: "DELETE", path: "/downtimes/{id}", role: "operator", command: "scale0 downtime end NAME", asks: true },
  { id: "config.save", label: "Save", method: "PUT", path: "/config", role: "admin", command: "scale0 config set --file FILE --expect VERSION", asks: true },
  { id: "config.change", label: "Save", method: "PATCH", path: "/config", role: "operator", command: "scale0 config set KEY=VALUE --expect VERSION", asks: true },
  { id: "config.rollback", label: "Roll back", method: "POST", path: "/config/rollback", role: "admin", command: "scale0 config rollback VERSION", asks: true },
  { id: "token.issue", label: "Issue token", method: "POST", path: "/tokens", role: "admin", command: "scale0 access issue NAME --role ROLE", asks: false },
  { id: "token.revoke", label: "Revoke", method: "DELETE", path: "/tokens/{id}", role: "admin", command: "scale0 access revoke ID", asks: true },
] as const satisfies readonly Action[];

export type ActionId = (typeof ACTIONS)[number]["id"];

export function actionOf(id: ActionId): Action {
  return ACTIONS.find((each) => each.id === id) as Action;
}

/** The path with its parameters filled in and escaped, because a name may contain any character. */
export function pathOf(action: Action, places: Record<string, string> = {}): string {
  return action.path.replace(/\{(\w+)\}/g, (_whole, name: string) => {
    const value = places[name];
    if (value === undefined) throw new Error(`${action.id} needs ${name}`);
    return encodeURIComponent(value);
  });
}

/** The command line for this object, to be copied. */
export function commandOf(action: Action, places: Record<string, string> = {}): string {
  let command = action.command;
  for (const value of Object.values(places)) command = command.replace(/\b[A-Z]{2,}\b/, () => quoted(value));
  return command;
}

function quoted(word: string): string {
  return /^[\w.:@%+,/-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
