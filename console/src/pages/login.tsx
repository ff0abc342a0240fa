// The login page: name and password, a token, or a one-time link, which logs in when it is opened.

import { useEffect, useState } from "preact/hooks";
import { ApiError } from "../api";
import { Command, ErrorBox } from "../parts/common";
import { go, parseRoute, route } from "../router";
import { logIn, loginReason, session } from "../session";

type Way = "password" | "token";

/** After the login: back to the previous page, or to the overview. */
function leave(): void {
  if (route.value.page === "login") go("#/overview");
}

export function Login() {
  const [way, setWay] = useState<Way>("password");
  const [name, setName] = useState("");
  const [secret, setSecret] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);

  const enter = async (credentials: Parameters<typeof logIn>[0]): Promise<void> => {
    setBusy(true);
    setError(null);
    try {
      await logIn(credentials);
      setSecret("");
      leave();
    } catch (found) {
      setError(found instanceof ApiError ? found : new ApiError(0, String(found)));
    } finally {
      setBusy(false);
    }
  };

  const open = (): void => {
    const { page, query } = parseRoute(location.hash);
    const once = page === "login" ? query.get("once") : null;
    if (once) {
      // Remove the secret of the link from the address and the history.
      history.replaceState(null, "", "#/login");
      void enter({ once });
    } else if (page === "login" && session.value) {
      leave();
    }
  };
  useEffect(() => {
    open();
    addEventListener("hashchange", open);
    return () => removeEventListener("hashchange", open);
  }, []);

  const send = (event: Event): void => {
    event.preventDefault();
    void enter(way === "password" ? { name, password: secret } : { token: secret.trim() });
  };
  return (
    <main class="login" id="main">
      <form class="panel login-box" onSubmit={send}>
        <h1><img src="./icon.svg" alt="" width="28" height="28" /> Scale0</h1>
        {loginReason.value && !error && <p class="reason" role="status">{loginReason.value}</p>}
        <fieldset class="ways">
          <legend class="hidden">How to log in</legend>
          {(["password", "token"] as const).map((each) => (
            <label key={each}>
              <input type="radio" name="way" checked={way === each} onChange={() => { setWay(each); setSecret(""); }} />
              {each === "password" ? "Name and password" : "Token"}
            </label>
          ))}
        </fieldset>
        {way === "password" && (
          <label class="field"><span>Name</span>
            <input name="name" autoComplete="username" required value={name} onInput={(event) => setName(event.currentTarget.value)} /></label>
        )}
        <label class="field"><span>{way === "password" ? "Password" : "Token"}</span>
          <input
            name={way} type="password" required value={secret} autoComplete={way === "password" ? "current-password" : "off"}
            placeholder={way === "token" ? "s0_…" : undefined} onInput={(event) => setSecret(event.currentTarget.value)}
          /></label>
        {error && <ErrorBox error={error} />}
        <button type="submit" class="primary" disabled={busy}>{busy ? "Logging in…" : "Log in"}</button>
        <div class="hint">
          <p>No password yet? Create a one-time link on the broker's machine:</p>
          <Command text="scale0 access link" />
        </div>
      </form>
    </main>
  );
}
