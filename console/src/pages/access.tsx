// Access: tokens of people and programs; issue one (it is shown once), see who has one, take one away.

import { useState } from "preact/hooks";
import { ApiError } from "../api";
import { useAll } from "../live";
import { parseSpan } from "../logic/format";
import { Act, act } from "../parts/act";
import { Ago, Command, Empty, Shown, Trouble } from "../parts/bits";
import { Dialog } from "../parts/dialog";
import { Table, type ColumnOf } from "../parts/table";
import { has, session } from "../session";
import type { IssuedToken, Role, Token } from "../types";

const ROLES: [Role, string][] = [
  ["viewer", "viewer: sees everything, changes nothing"], ["operator", "operator: retries, cancels, silences, drains"], ["admin", "admin: also configuration and access"],
];

const COLUMNS: ColumnOf<Token>[] = [
  { head: "Name", cell: (row) => <>{row.name}{row.name === session.value?.name && <span class="tag">you</span>}</>, by: (row) => row.name },
  { head: "Role", cell: (row) => row.role, by: (row) => row.role },
  { head: "Ends", number: true, cell: (row) => (row.expires === null ? "never" : <Ago at={row.expires} />), by: (row) => row.expires ?? Infinity },
  { head: "Id", wide: true, cell: (row) => <span class="mono">{row.id}</span>, by: (row) => row.id },
  { head: "Actions", bare: true, cell: (row) => <Act id="token.revoke" places={{ id: row.id }} about={`the token of ${row.name}`} quiet means={`Whoever uses it is logged out at once${row.name === session.value?.name ? "; it may be your own" : ""}.`} done={() => `The token of ${row.name} is worth nothing any more.`} /> },
];

export function Access() {
  const isAdmin = has("admin");
  const live = useAll<Token>(isAdmin ? "/tokens" : null, 3_000);
  const [adding, setAdding] = useState(false);
  if (!isAdmin) return <Empty title="This page needs the role admin." commands={["scale0 access list"]}>You are {session.value?.role}. An admin can issue you a token with a higher role.</Empty>;
  return (
    <>
      <div class="bar"><button type="button" class="primary" onClick={() => setAdding(true)}>Issue a token</button></div>
      <Shown live={live}>{({ items }) => <Table label="Tokens" rows={items} columns={COLUMNS} id={(row) => row.id} empty={<Empty title="There is no token." commands={["scale0 access issue NAME --role viewer"]} />} />}</Shown>
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
      setError(new ApiError(0, `${lasts} is no length of time such as 12h or 30d`));
      return;
    }
    try {
      setMade(await act<IssuedToken>("token.issue", {}, { name: name.trim(), role, ttl }));
    } catch (found) {
      setError(found instanceof ApiError ? found : new ApiError(0, String(found)));
    }
  };
  if (made) {
    return (
      <Dialog title={`The token of ${made.name}`} onClose={onClose}>
        <p>Keep it now: it is shown this once, and the broker has only its digest.</p>
        <Command text={made.token} />
        <div class="buttons"><button type="button" class="primary" onClick={onClose}>I have it</button></div>
      </Dialog>
    );
  }
  return (
    <Dialog title="Issue a token" onClose={onClose}>
      <form class="stack" onSubmit={send}>
        <label class="field"><span>Name of who uses it</span><input required maxLength={128} pattern="[A-Za-z0-9._:\-]+" title="Letters, digits, . _ : -" value={name} onInput={(event) => setName(event.currentTarget.value)} /></label>
        <label class="field"><span>Role</span><select value={role} onChange={(event) => setRole(event.currentTarget.value as Role)}>{ROLES.map(([each, words]) => <option key={each} value={each}>{words}</option>)}</select></label>
        <label class="field"><span>Lasts</span><input required value={lasts} placeholder="12h, 30d" onInput={(event) => setLasts(event.currentTarget.value)} /></label>
        {error && <Trouble error={error} />}
        <div class="buttons"><button type="button" onClick={onClose}>Not now</button><button type="submit" class="primary">Issue</button></div>
      </form>
    </Dialog>
  );
}
