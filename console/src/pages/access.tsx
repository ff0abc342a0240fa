// Access: list, issue and revoke tokens. A token is shown once.

import { useState } from "preact/hooks";
import { ApiError } from "../api";
import { useAll } from "../live";
import { parseSpan } from "../logic/format";
import { ActionButton, perform } from "../parts/action_button";
import { Ago, Command, Empty, Shown, ErrorBox } from "../parts/common";
import { Dialog } from "../parts/dialog";
import { Table, type ColumnOf } from "../parts/table";
import { has, session } from "../session";
import type { IssuedToken, Role, Token } from "../types";

const ROLES: [Role, string][] = [
  ["viewer", "viewer: reads everything"], ["operator", "operator: also retries, cancels, silences and drains"], ["admin", "admin: also changes configuration and access"],
];

const COLUMNS: ColumnOf<Token>[] = [
  { head: "Name", cell: (row) => <>{row.name}{row.name === session.value?.name && <span class="tag">you</span>}</>, by: (row) => row.name },
  { head: "Role", cell: (row) => row.role, by: (row) => row.role },
  { head: "Expires", number: true, cell: (row) => (row.expires === null ? "never" : <Ago at={row.expires} />), by: (row) => row.expires ?? Infinity },
  { head: "Id", wide: true, cell: (row) => <span class="mono">{row.id}</span>, by: (row) => row.id },
  { head: "Actions", bare: true, cell: (row) => <ActionButton id="token.revoke" places={{ id: row.id }} about={`the token of ${row.name}`} quiet means={`Its users are logged out immediately${row.name === session.value?.name ? "; it may be your own session" : ""}.`} done={() => `The token of ${row.name} is revoked.`} /> },
];

export function Access() {
  const isAdmin = has("admin");
  const live = useAll<Token>(isAdmin ? "/tokens" : null, 3_000);
  const [adding, setAdding] = useState(false);
  if (!isAdmin) return <Empty title="This page needs the role admin." commands={["scale0 access list"]}>Your role is {session.value?.role}. Ask an admin for a token with the role admin.</Empty>;
  return (
    <>
      <div class="bar"><button type="button" class="primary" onClick={() => setAdding(true)}>Issue a token</button></div>
      <Shown live={live}>{({ items }) => <Table label="Tokens" rows={items} columns={COLUMNS} id={(row) => row.id} empty={<Empty title="There are no tokens." commands={["scale0 access issue NAME --role viewer"]} />} />}</Shown>
      {adding && <Issue onClose={() => setAdding(false)} />}
    </>
  );
}

function Issue({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState("");
  const [role, setRole] = useState<Role>("viewer");
  const [lasts, setLasts] = useState("30d");
  const [error, setError] = useState<ApiError | null>(null);
  const [made, setMade] = useState<IssuedToken | null>(null);
  const send = async (event: Event): Promise<void> => {
    event.preventDefault();
    const ttl = parseSpan(lasts);
    if (ttl === null) {
      setError(new ApiError(0, `${lasts} is not a duration such as 12h or 30d.`));
      return;
    }
    try {
      setMade(await perform<IssuedToken>("token.issue", {}, { name: name.trim(), role, ttl }));
    } catch (found) {
      setError(found instanceof ApiError ? found : new ApiError(0, String(found)));
    }
  };
  if (made) {
    return (
      <Dialog title={`The token of ${made.name}`} onClose={onClose}>
        <p>Copy the token now: it is shown only once. The broker stores only its digest.</p>
        <Command text={made.token} />
        <div class="buttons"><button type="button" class="primary" onClick={onClose}>Done</button></div>
      </Dialog>
    );
  }
  return (
    <Dialog title="Issue a token" onClose={onClose}>
      <form class="stack" onSubmit={send}>
        <label class="field"><span>User</span><input required maxLength={128} pattern="[A-Za-z0-9._:\-]+" title="Letters, digits, . _ : -" value={name} onInput={(event) => setName(event.currentTarget.value)} /></label>
        <label class="field"><span>Role</span><select value={role} onChange={(event) => setRole(event.currentTarget.value as Role)}>{ROLES.map(([each, words]) => <option key={each} value={each}>{words}</option>)}</select></label>
        <label class="field"><span>Valid for</span><input required value={lasts} placeholder="12h, 30d" onInput={(event) => setLasts(event.currentTarget.value)} /></label>
        {error && <ErrorBox error={error} />}
        <div class="buttons"><button type="button" onClick={onClose}>Not now</button><button type="submit" class="primary">Issue</button></div>
      </form>
    </Dialog>
  );
}
