"""`scale0 access` and `audit`: ways in are made, shown and taken back, and all of it is on record."""

from __future__ import annotations

import json
import re

import pytest

pytestmark = pytest.mark.processes


# Promise: TERM-5
def test_a_link_holds_a_token_of_an_admin_for_ten_minutes(manager, shell):
    made = manager.json("access", "link", "--url", "https://broker.example.com:5780/")
    found = re.fullmatch(r"https://broker\.example\.com:5780/#/login\?once=(s0_[0-9a-f]+)", made["link"])
    assert found
    assert made["name"].startswith("link-")
    rows = {row["name"]: row for row in manager.json("access", "list")}
    assert (rows[made["name"]]["role"], rows[made["name"]]["once"]) == ("admin", True)
    assert 500 < made["expires"] - manager.json("status")["time"] <= 600
    refused = shell.run("config", "history", "--token", "-", stdin=found[1])
    assert refused.returncode == 1
    assert "one-time link" in refused.stderr
    assert manager.json("access", "revoke", made["name"]) == {"revoked": 1}
    refused = shell.run("config", "history", "--token", "-", stdin=found[1])
    assert "unknown or has expired" in refused.stderr


def test_a_link_goes_to_the_usual_port_and_only_the_link_is_on_stdout(manager):
    done = manager.run("access", "link", "--role", "viewer")
    assert re.fullmatch(r"http://127\.0\.0\.1:5780/#/login\?once=s0_[0-9a-f]+\n", done.stdout)
    assert manager.run("access", "link", "--url", "javascript:alert(1)").returncode == 2


# Promise: TERM-5
def test_a_token_is_issued_listed_and_revoked_by_name_and_by_id(manager, shell):
    token = manager.run("access", "issue", "grafana", "--ttl", "10m").stdout.strip()
    assert shell.run("queues", "--token", "-", stdin=token).returncode == 0
    assert "needs the role operator" in shell.refuses("drain", "--token", "-", stdin=token)
    assert token not in manager.run("access", "list").stdout
    manager.run("access", "issue", "grafana", "--ttl", "10m")
    ids = [row["id"] for row in manager.json("access", "list") if row["name"] == "grafana"]
    assert len(ids) == 2
    assert manager.json("access", "revoke", ids[0]) == {"revoked": 1}
    assert manager.json("access", "revoke", "grafana") == {"revoked": 1}
    assert "there is no token grafana" in manager.refuses("access", "revoke", "grafana")


def test_only_an_admin_makes_tokens(manager, shell):
    made = manager.run("access", "issue", "ops", "--role", "operator")
    assert "ops has the role operator until " in made.stderr
    token = made.stdout.strip()
    assert "needs the role admin" in shell.refuses("access", "issue", "more", "--token", "-", stdin=token)
    manager.run("access", "revoke", "ops")


# Promise: TERM-4
def test_the_audit_tells_who_did_what(manager):
    manager.run("access", "issue", "seen", "--role", "viewer")
    manager.run("config", "set", "default_heartbeat_interval=2")
    rows = manager.json("audit")
    commands = [row["command"] for row in rows if row["command"]]
    assert {"issue_token", "patch_config"} <= set(commands)
    assert any(row["kind"] == "config.changed" and "is current" in row["words"] for row in rows)
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    issued = json.loads(manager.run("audit", "--command", "issue_token", "--who", "local", "--json").stdout)
    assert {row["command"] for row in issued} == {"issue_token"}
    assert "s0_" not in json.dumps(rows), "a token is on no record"
    first = json.loads(manager.run("audit", "--command", "issue_token", "-n", "1", "--json").stdout)
    assert first == issued[-1:], "also if it is not the last of all"
    assert "patch_config" in manager.run("audit", "--since", "1h").stdout
    assert "No change matches" in manager.run("audit", "--who", "alice").stdout


# Promise: TERM-4
def test_a_task_is_shown_whoever_submitted_it(served, manager, shell):
    id_ = shell.run("task", "submit", "breaks", "--max-attempts", "1").stdout.strip()
    shell.run("task", "wait", id_)
    row = manager.json("task", "show", id_)
    assert (row["task_id"], row["status"], row["method"]) == (id_, "failed", "breaks")
    assert row["error"]["message"]
    assert "scale0 task retry" in manager.run("task", "show", id_).stderr
    assert "there is no task nothing" in manager.refuses("task", "show", "nothing")
