"""Permissions of keys as an administrator sets them: by token and by command, with a running broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.waiting import until
from tests.wire.curve.keys import locked, new_pair
from tests.wire.curve.test_commands import COMMAND_SECONDS, Machine, data_dir, new_token, place

pytestmark = pytest.mark.processes


# Promise: PERM-1, PERM-3
def test_a_token_restricts_its_key_and_a_command_grants_more_without_a_restart(tmp_path: Path) -> None:
    with locked(tmp_path / "broker") as lock:
        admin, user = Machine(tmp_path / "admin"), Machine(tmp_path / "user")
        there = ("--join", place(lock, "frontend"))
        token = new_token(admin, lock, "frontend", "--name", "alice", "--allow", "submit:mail.*")
        joined = user.run(
            "keys", "join", "frontend", place(lock, "frontend"), "--token", "-", "--name", "alice", stdin=token
        )
        assert joined.returncode == 0, joined.stderr
        assert user.said("task", "submit", "mail.send", *there).strip()
        refused = user.run("task", "submit", "helen.notify", *there)
        assert refused.returncode != 0
        assert "may not submit helen.notify" in refused.stderr
        assert "scale0 keys permissions frontend alice --add submit:helen.notify" in refused.stderr
        told = user.run("call", "helen.check", *there)
        assert told.returncode != 0
        assert "may not call helen.check" in told.stderr
        of_alice = ("keys", "permissions", "frontend", "alice", "--data-dir", data_dir(lock))
        assert json.loads(admin.said(*of_alice, "--json"))["allow"] == ["submit:mail.*"]
        admin.said(*of_alice, "--add", "submit:helen.notify")
        until(lambda: user.run("task", "submit", "helen.notify", *there).returncode == 0, seconds=COMMAND_SECONDS)
        shown = admin.said("keys", "list", "--data-dir", data_dir(lock))
        assert "allow submit:mail.* submit:helen.notify" in shown
        wrong = admin.run(*of_alice, "--allow", "jump:x")
        assert wrong.returncode == 2
        assert "jump:x" in wrong.stderr
        audit = json.loads(admin.said("audit", "--json", "--data-dir", data_dir(lock)))
        assert any("permitted" in row["words"] and "submit:helen.notify" in row["words"] for row in audit)
        assert any(row["command"] == "submit" and row["code"] == 403 for row in audit)


# Promise: PERM-6
def test_one_token_gives_a_helen_on_another_host_both_keys_and_the_token_of_a_worker_does_not(tmp_path: Path) -> None:
    with locked(tmp_path / "broker") as lock:
        admin, host, worker = (Machine(tmp_path / name) for name in ("admin", "host", "worker"))
        there = ("--join", place(lock, "frontend"))
        admin_there = {"SCALE0_DATA_DIR": data_dir(lock)}
        for machine, name in ((host, "helen-9"), (worker, "helen-8")):
            made = machine.run(
                *("helen", "init", "helen", "--identity", name, "--port", "0", "--broker", place(lock, "backend"))
            )
            assert made.returncode == 0, made.stderr
        wrong = new_token(admin, lock, "backend", "--name", "helen-8")
        with worker.running("helen", "--config", "helen/helen.zpl", "--token", wrong):
            log = worker.home / "log"
            until(lambda: "may not offer helen." in log.read_text(), seconds=COMMAND_SECONDS)
            assert "--add 'offer:helen.*' --add 'take:helen.*'" in log.read_text(), "what grants it"
        token = new_token(admin, lock, "helen", "--name", "helen-9")
        with host.running("helen", "--config", "helen/helen.zpl", "--token", token):

            def answers() -> bool:
                words = ("call", "helen.status", "sibling=helen-9", *there)
                return '"helen-9"' in admin.run(*words, **admin_there).stdout

            until(answers, seconds=COMMAND_SECONDS)
            stored = json.loads(admin.said("keys", "list", "--json", "--data-dir", data_dir(lock)))
            pair = {row["public_key"] for row in stored if row["name"] == "helen-9"}
            assert len(pair) == 1
            assert sorted(row["role"] for row in stored if row["name"] == "helen-9") == ["backend", "frontend"]

            def asks() -> bool:
                clients = json.loads(admin.said("clients", "--json", *there, **admin_there))
                return any(row["identity"] == "helen-9.asks" for row in clients)

            until(asks, seconds=COMMAND_SECONDS)


# Promise: PERM-7
def test_a_key_with_rules_hears_the_version_of_the_configuration_and_not_the_document(tmp_path: Path) -> None:
    with locked(tmp_path / "broker") as lock:
        admin = Machine(tmp_path / "admin")
        readers = {allow: new_pair() for allow in ("", "call:orders.*")}
        for number, (allow, pair) in enumerate(readers.items()):
            lock.store("frontend", f"reader-{number}", pair, allow)
            lock.admitted("frontend", pair)
        free, limited = (lock.subscriber("config_pub", pair) for pair in readers.values())
        heard = [next_topic(socket) for socket in (free, limited)]
        assert heard == [b"version", b"version"], "both are subscribed"
        there = ("--join", place(lock, "frontend"))
        admin.said("config", "set", "default_heartbeat_interval=9", *there, SCALE0_DATA_DIR=data_dir(lock))
        until(lambda: next_topic(free) == b"config", seconds=COMMAND_SECONDS)
        assert [next_topic(limited) for _ in range(3)] == [b"version"] * 3


def next_topic(socket: Any) -> bytes:
    assert socket.poll(COMMAND_SECONDS * 1_000)
    topic: bytes = socket.recv_multipart()[0]
    return topic
