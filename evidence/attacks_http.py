"""Attacks on the HTTP API: forged tokens, roles, foreign hosts and sites, oversized and slow requests."""

from __future__ import annotations

import http.client
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from evidence.attacks_tasks import issued
from evidence.site import ADMIN, PASSWORD, Site, attack, given, must

API = "/api/v1"
AT_ONCE = 3
"""Guesses that are under way at once: fewer than the broker itself refuses."""
START_SECONDS = 30.0


def ask(site: Site, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    """One request: status, body, headers."""
    connection = http.client.HTTPConnection("127.0.0.1", site.http_port, timeout=20)
    try:
        data = None if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if data is not None:
            named.setdefault("Content-Type", "application/json")
        connection.request(method, path, data, named)
        answer = connection.getresponse()
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def bearer(token: str) -> str:
    return f"Bearer {token}"


def serving(site: Site) -> None:
    """Wait until the server, which is a process of its own, answers."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            if ask(site, "GET", "/healthz")[0] == 200:
                return
        except OSError:
            pass
        given(time.monotonic() < end, "the HTTP server does not answer")
        time.sleep(0.2)


@attack("HTTP-3")
def forged_http_token(site: Site) -> str:
    serving(site)
    good = issued(site, "admin")["token"]
    given(ask(site, "GET", f"{API}/tokens", Authorization=bearer(good))[0] == 200, "a valid token is not accepted")
    forged = ["", "s0_", "s0_" + "A" * 43, good[:-2] + ("aa" if good[-2:] != "aa" else "bb"), good.upper(), "null"]
    codes = [ask(site, "GET", f"{API}/clients", Authorization=bearer(token))[0] for token in forged]
    codes += [ask(site, "GET", f"{API}/clients", Cookie=f"scale0_session={token}")[0] for token in forged[1:3]]
    codes += [ask(site, "GET", f"{API}/clients")[0], ask(site, "GET", f"{API}/clients?token={good}")[0]]
    must(set(codes) <= {400, 401, 429}, f"forged tokens were answered with {codes}")
    return f"{codes}"


@attack("HTTP-1")
def http_role_that_is_too_low(site: Site) -> str:
    """A viewer's token at every kind of change."""
    serving(site)
    token = bearer(issued(site, "viewer")["token"])
    given(ask(site, "GET", f"{API}/clients", Authorization=token)[0] == 200, "a viewer may not read")
    tried = [
        ("PUT", "/config", {"config": {}, "base": 1}),
        ("PATCH", "/config", {"set": {"heartbeat_liveness": 9}}),
        ("POST", "/tasks/x/retry", {}),
        ("POST", "/tasks/x/cancel", {}),
        ("POST", f"/brokers/{site.open.name}/disable", {}),
        ("POST", "/silences", {"agents": ["*"], "seconds": 60, "reason": "x"}),
        ("DELETE", "/silences/x", None),
        ("POST", "/tokens", {"name": "evil", "role": "admin"}),
        ("DELETE", "/tokens/x", None),
        ("GET", "/tokens", None),
    ]
    codes = {
        f"{method} {path}": ask(site, method, API + path, body, Authorization=token)[0] for method, path, body in tried
    }
    must(set(codes.values()) == {403}, f"a viewer was answered with {codes}")
    operator = bearer(issued(site, "operator")["token"])
    code = ask(site, "PATCH", f"{API}/config", {"set": {"network": "evil"}}, Authorization=operator)[0]
    must(code == 403, f"an operator that renames the network was answered with {code}")
    return "403"


@attack("HTTP-2")
def foreign_host_and_site(site: Site) -> str:
    """DNS rebinding, a cookie without its CSRF token, and a page of another site."""
    serving(site)
    token = bearer(issued(site, "admin")["token"])
    rebound = ask(site, "GET", f"{API}/clients", Authorization=token, Host="evil.example")[0]
    must(rebound == 421, f"a foreign Host was answered with {rebound}")
    status, body, headers = ask(site, "POST", f"{API}/session", {"name": ADMIN, "password": PASSWORD})
    given(status == 200, f"a login was answered with {status}")
    cookie = headers["set-cookie"].partition(";")[0]
    flags = headers["set-cookie"]
    must("HttpOnly" in flags and "SameSite=Strict" in flags.replace("strict", "Strict"), f"the cookie is {flags[-80:]}")
    change = {"set": {"heartbeat_liveness": 4}}
    without = ask(site, "PATCH", f"{API}/config", change, Cookie=cookie)[0]
    must(without == 403, f"a cookie without a CSRF token was answered with {without}")
    csrf = json.loads(body)["csrf"]
    other = {"Cookie": cookie, "X_CSRF_Token": csrf, "Origin": "http://evil.example"}
    foreign = ask(site, "PATCH", f"{API}/config", change, **other)[0]
    must(foreign == 403, f"a page of another site was answered with {foreign}")
    delete = ask(site, "DELETE", f"{API}/session", Cookie=cookie)[0]
    must(delete == 403, f"DELETE without a CSRF token was answered with {delete}")
    return f"{rebound}, {without}, {foreign}, {delete}"


@attack("HTTP-4")
def http_passwords_guessed(site: Site) -> str:
    """Ten guesses, then 429 before anything is hashed. A few at once: the broker itself refuses many at once."""
    serving(site)
    guesses = [{"name": f"eve-{number}", "password": "guess"} for number in range(14)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        codes = list(pool.map(lambda guess: ask(site, "POST", f"{API}/session", guess)[0], guesses))
    must(200 not in codes, "a guessed password was accepted")
    must(429 in codes, f"14 guesses were answered with {codes}")
    return f"{codes.count(401)} x 401, {codes.count(429)} x 429"


@attack("HTTP-5")
def oversized_http(site: Site) -> str:
    serving(site)
    token = bearer(issued(site, "admin")["token"])
    codes = [
        ask(site, "GET", f"{API}/clients", Authorization=token, X_Long="x" * 40_000)[0],
        ask(site, "GET", f"{API}/{'x' * 70_000}", Authorization=token)[0],
        ask(site, "GET", f"{API}/clients?limit=999999999", Authorization=token)[0],
    ]
    try:
        codes.append(ask(site, "POST", f"{API}/config/check", {"config": "x" * 30_000_000}, Authorization=token)[0])
    except OSError:
        codes.append(413)
    must(all(400 <= code < 500 for code in codes), f"oversized requests were answered with {codes}")
    must(ask(site, "GET", "/healthz")[0] == 200, "the next client is not served")
    return str(codes)


@attack("HTTP-5")
def http_paths_out_of_the_console(site: Site) -> str:
    """The console serves its own files only."""
    serving(site)
    paths = (
        "/../../../../etc/passwd",
        "/..%2f..%2f..%2fetc%2fpasswd",
        "/assets/..%2f..%2f..%2f__init__.py",
        "//etc/passwd",
    )
    for path in paths:
        status, body, _ = ask(site, "GET", path)
        must(b"root:" not in body and b"import" not in body[:200], f"{path} was answered with {status} and a file")
    return "no file"


@attack("HTTP-5", slow=True)
def slow_http(site: Site) -> str:
    """A head that comes byte by byte is ended within 10 s, and others are served meanwhile."""
    serving(site)
    with socket.create_connection(("127.0.0.1", site.http_port), 20) as made:
        made.sendall(b"GET /api/v1/clients HTTP/1.1\r\n")
        began = time.monotonic()
        made.settimeout(20)
        must(ask(site, "GET", "/healthz")[0] == 200, "nobody else is served")
        try:
            while made.recv(65_536):
                pass
        except TimeoutError:
            must(False, "half a head was kept for 20 s")
        except OSError:
            pass
    return f"closed after {time.monotonic() - began:.1f} s"
