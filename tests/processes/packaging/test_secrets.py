"""Secrets, planted wherever somebody can give one, are found nowhere but where they were put.

Promise: SEC-2
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.postgres import Server
from tests.fakes.waiting import until
from tests.processes.packaging.planted import GIVEN, IN_THE_DOCUMENT, WORKER, Planted, mail_server

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.extended]

DOCUMENTS = ("table documents", "file helen/scale0.db")
"""Where the network document lies: at the brokers, and at Helen her part of it."""
WRONG = "s0_" + "w" * 40


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[Planted]:
    server = Server(durable=False)
    yield Planted(tmp_path, server.database())
    server.close()


def test_no_secret_is_found_where_it_was_not_put(planted: Planted) -> None:
    starts_that_fail(planted)
    with planted.running("the broker", "broker", "--config", str(planted.broker_file()), form="json"):
        with contextlib.ExitStack() as stack:
            monitoring(planted, stack)
            work(planted)
            over_http(planted)
            planted.look()
        planted.of_files()
    planted.stored()
    assert_nothing_found(planted)


def starts_that_fail(planted: Planted) -> None:
    """A database that is away, and URLs that are none."""
    nowhere = planted.store("127.0.0.1:1")
    secret = GIVEN["password of the database"]
    for changes in (
        {"store": nowhere},
        {"store": f"postgresql://me:{secret}@[half/db"},
        {"store": f"postgresql://me:{secret}@127.0.0.1:port/db"},
        {"segments": f"s3:/AKIA:{GIVEN['key of the object store']}@bucket?nonsense"},
        {"admins": [{"auth_id": "ada", "password": GIVEN["management password"]}]},
    ):
        failed = planted.run("broker", "--config", str(planted.broker_file(**changes)))
        assert failed.returncode in (1, 2), (changes, failed.stdout, failed.stderr)


def monitoring(planted: Planted, stack: contextlib.ExitStack) -> None:
    """A Helen that joined by token, an agent that enrolled by token, and handlers that cannot tell anybody."""
    home = planted.folder / "helen"
    planted.run("helen", "init", str(home), "--identity", "helen-1", "--port", str(planted.helen_port),
                "--broker", f"127.0.0.1:{planted.ports['backend']}")  # fmt: skip
    password = planted.folder / "mail.password"
    password.write_text(GIVEN["password of the mail server"])
    password.chmod(0o600)
    with (home / "helen.zpl").open("a") as file:
        port = stack.enter_context(mail_server())
        file.write(f"smtp\n    host = 127.0.0.1\n    port = {port}\n    user = me\n    tls = off\n")
        file.write(f"    sender = me@example.org\n    password_file = {password}\n")
    token = planted.secrets["join token of Helen"] = token_for(planted, "helen")
    caller = planted.secrets["join token of a caller"] = token_for(planted, "frontend")
    place = f"127.0.0.1:{planted.ports['frontend']}"
    joined = planted.run("keys", "join", "frontend", place, "--token", "-", "--name", "caller-1", stdin=caller)
    assert joined.returncode == 0, joined.stderr
    words = ("helen", "--config", str(home / "helen.zpl"), "--token", token)
    stack.enter_context(planted.running("Helen", *words))
    enrol = planted.secrets["token of an agent"] = planted.shows("helen", "token", "--data-dir", str(home))
    wrong = enrol[:-6] + "AAAAAA"
    place = f"127.0.0.1:{planted.helen_port}"
    assert planted.run("agent", "enrol", place, "--token", wrong, "--dir", "other").returncode != 0
    enrolled = planted.run("agent", "enrol", place, "--token", enrol, "--name", "web-1", "--dir", "agent")
    assert enrolled.returncode == 0, enrolled.stderr
    stack.enter_context(planted.running("the agent", "agent", "--config", str(planted.folder / "agent" / "agent.zpl")))


def token_for(planted: Planted, role: str, *words: str) -> str:
    return planted.shows("token", role, "--data-dir", str(planted.data), *words)


def work(planted: Planted) -> None:
    """A worker by token, a handler that raises, and tokens that are wrong."""
    (planted.folder / "fails.py").write_text(WORKER)
    token = planted.secrets["join token of a worker"] = token_for(planted, "backend")
    here = {"SCALE0_DATA_DIR": str(planted.data)}
    # It joins as a user of its own: Helen's key of the same role is in the other one's folder.
    own = {"XDG_CONFIG_HOME": str(planted.folder / "config" / "worker")}
    with planted.running("the worker", "worker", "fails.py", "--token", token, "--name", "w", form="json", **own):
        assert planted.run("call", "fails", **here).returncode == 1
        assert planted.run("task", "submit", "fails", "--max-attempts", "1", "--wait", **here).returncode == 1
    for words in (
        ("worker", "fails.py", "--token", token[:-8] + "AAAAAAAA", "--name", "thief"),
        ("task", "list", "--auth-id", "ada", "--data-dir", str(planted.data)),
    ):
        # From another home, where no key is yet.
        elsewhere = {"XDG_CONFIG_HOME": str(planted.folder / "thief"), "HOME": str(planted.folder / "thief")}
        assert planted.run(*words, SCALE0_PASSWORD=f"{GIVEN['management password']}x", **elsewhere).returncode != 0


def over_http(planted: Planted) -> None:
    """Log in rightly and wrongly, have a handler fail, and read all that an administrator can."""
    base = f"http://127.0.0.1:{planted.console_port}"
    until(lambda: reached(base), "the console serves")
    with httpx.Client(base_url=f"{base}/api/v1", timeout=30, trust_env=False) as ada:

        def ask(method: str, path: str, expected: int, **more: Any) -> httpx.Response:
            answer = ada.request(method, path, **more)
            assert answer.status_code == expected, (method, path, answer.status_code, answer.text[:500])
            return answer

        def kept(answer: httpx.Response) -> None:
            planted.keep(f"{answer.request.method} {answer.request.url.path}", answer.text + str(answer.headers))

        password = GIVEN["management password"]
        kept(ask("POST", "/session", 401, json={"name": "ada", "password": password + "x"}))
        kept(ask("POST", "/session", 400, json={"name": "ada", "pass": password}))
        kept(ask("GET", "/overview", 401, headers={"Authorization": f"Bearer {WRONG}"}))
        once = (
            planted.shows("access", "link", "--data-dir", str(planted.data), "--url", base).split("once=")[1].split()[0]
        )
        planted.secrets["one-time link"] = once
        logged_in = ask("POST", "/session", 200, json={"once": once})
        kept(ask("POST", "/session", 401, json={"once": once}))
        planted.secrets["session"] = logged_in.cookies["scale0_session"]
        ada.cookies.clear()
        with_csrf = ask("POST", "/session", 200, json={"name": "ada", "password": password})
        planted.secrets["session by password"] = with_csrf.cookies["scale0_session"]
        ada.headers["X-CSRF-Token"] = with_csrf.json()["csrf"]
        issued = ask("POST", "/tokens", 201, json={"name": "ci", "role": "admin", "ttl": 600}).json()["token"]
        planted.secrets["api token"] = issued
        kept(ask("PATCH", "/config", 200, json={"set": watched(planted)}))
        bad = {"set": {"handlers": [{"name": "x", "type": "webhook", "url": GIVEN["url of a webhook"]}]}}
        ask("PATCH", "/config", 400, json=bad)  # it may name what it refuses: whoever sent it knows it
        until(lambda: noticed(ask("GET", "/tasks?method=helen.notify", 200)), "both handlers were tried")
        ada.cookies.clear()
        ada.headers["Authorization"] = f"Bearer {issued}"
        for path in readable(ask("GET", "/openapi.json", 200).json()):
            answer = ada.get(path)
            if "config" not in path:
                kept(answer)
        for row in ask("GET", "/tasks", 200).json()["items"]:
            kept(ask("GET", f"/tasks/{row['task_id']}", 200))
            kept(ask("GET", f"/tasks/{row['task_id']}/timeline", 503))  # its segments are where nobody is
        kept(ada.get(f"{base}/metrics"))


def reached(base: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"{base}/healthz").status_code == 200
    return False


def watched(planted: Planted) -> dict[str, Any]:
    """A check that fails at once, and its handlers."""
    hook = {
        "name": "hook",
        "type": "webhook",
        "url": f"http://127.0.0.1:1/{GIVEN['url of a webhook']}",
        "headers": {"authorization": f"Bearer {GIVEN['header of a webhook']}"},
    }
    mail = {"name": "mail", "type": "email", "to": ["you@example.org"]}
    check = {"name": "gone", "check": "tcp", "interval": 1, "max_attempts": 1, "args": {"host": "127.0.0.1", "port": 1}}
    return {
        "checks": [{**check, "handlers": ["hook", "mail"]}],
        "handlers": [{**hook, "max_attempts": 1}, {**mail, "max_attempts": 1}],
    }


def noticed(answer: httpx.Response) -> bool:
    rows = answer.json()["items"]
    return len(rows) >= 2 and all(row["status"] == "failed" for row in rows)


def readable(document: dict[str, Any]) -> list[str]:
    """Every route that is read and needs no name; a stream has no end."""
    return [
        path.removeprefix("/api/v1")
        for path, methods in document["paths"].items()
        if "get" in methods and "{" not in path and not path.endswith(("/stream", "/session")) and path != "/"
    ]


def assert_nothing_found(planted: Planted) -> None:
    """Where which secret is."""
    assert {"log of the broker (json)", "log of Helen (text)", "GET /api/v1/overview", "table journal"} <= set(
        planted.outputs
    )
    planted.outputs["the list of processes"] = "\n".join(planted.processes)
    found = {
        (name, where)
        for name, secret in planted.secrets.items()
        for where, text in planted.outputs.items()
        if secret in text or json.dumps(secret)[1:-1] in text
        if not (name in IN_THE_DOCUMENT and where in DOCUMENTS)
    }
    assert found == set()
