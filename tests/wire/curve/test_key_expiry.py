"""Keys that expire: at the handshake, on open connections, at other brokers, and in what an administrator reads."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from scale0.broker.edge.key_folder import KeyFolder
from tests.fakes.jumping_clock import JumpingClock
from tests.fakes.waiting import until
from tests.wire.curve.keys import locked, network
from tests.wire.curve.test_commands import COMMAND_SECONDS, Machine, data_dir, new_token, pair_in, place
from tests.wire.curve.test_doors import ping

pytestmark = pytest.mark.processes


# Promise: KEY-3, KEY-5
def test_an_expired_key_is_refused_and_extended_by_a_command_without_a_restart(tmp_path: Path) -> None:
    with locked(tmp_path / "broker") as lock:
        admin = Machine(tmp_path / "admin")
        here = ("--data-dir", data_dir(lock))
        made = json.loads(admin.said("keys", "new", "frontend", "bob", "--expires", "30d", "--json", *here))
        assert 29 * 86_400 < made["expires"] - time.time() <= 30 * 86_400
        file = admin.home / made["file"]
        lock.admitted("frontend", pair_in(file))
        there = ("services", "--join", place(lock, "frontend"), "--key-file", str(file))
        assert admin.run(*there).returncode == 0
        admin.said("keys", "expire", "frontend", "bob", "1s", *here)
        lock.refused("frontend", pair_in(file))
        refused = admin.run(*there)
        assert refused.returncode == 3, refused.stderr
        log = lock.broker.log.read_text()
        assert "keys expire soon: frontend/bob" in log
        assert "the key of frontend/bob has expired" in log
        listed = admin.run("keys", "list", *here)
        assert "warning: frontend/bob has expired: scale0 keys expire frontend bob 90d" in listed.stderr
        assert "the key of frontend/bob has expired" in admin.run("doctor", *here).stdout

        def audited() -> bool:
            words = " ".join(row["words"] for row in json.loads(admin.said("audit", "--json", *here)))
            return "key of frontend/bob expired" in words and "connect (refused with 403)" in words

        until(audited, seconds=COMMAND_SECONDS)
        admin.said("keys", "expire", "frontend", "bob", "never", *here)
        lock.admitted("frontend", pair_in(file))
        assert admin.run(*there).returncode == 0
        wrong = admin.run("keys", "expire", "frontend", "bob", "soon", *here)
        assert wrong.returncode == 2
        assert admin.run("keys", "expire", "frontend", "nobody", "1d", *here).returncode == 1


# Promise: KEY-3
def test_open_connections_end_within_a_second_of_the_expiry_and_others_stay(tmp_path: Path) -> None:
    with locked(tmp_path / "broker") as lock:
        gone = lock.raw("frontend", lock.new("frontend", "gone"))
        stays = lock.raw("frontend", lock.new("frontend", "stays"))
        for each in (gone, stays):
            ping(each)
            assert each.hear().command == "REPLY"
        ends = int(time.time()) + 3
        assert KeyFolder(lock.folder.parent).set_expiry("frontend", "gone", ends)
        while time.time() < ends - 0.2:
            ping(gone)
            assert gone.hear().command == "REPLY", "it is valid until then"
        while gone.hear_or_none(0.2) is not None:
            ping(gone)
        assert 0 <= time.time() - ends < 1.7, "at most a second late, and what this test waits"
        ping(stays)
        assert stays.hear().command == "REPLY"


# Promise: KEY-3
def test_a_tokens_key_expires_also_at_the_brokers_that_know_it_by_replication(tmp_path: Path) -> None:
    with network(tmp_path, "east-1", "east-2") as (east, west):
        admin, user = Machine(tmp_path / "admin"), Machine(tmp_path / "user")
        token = new_token(admin, east, "frontend", "--name", "alice", "--key-expires", "20s")
        joined = user.run("keys", "join", "frontend", place(east, "frontend"), "--token", token, "--name", "alice")
        assert joined.returncode == 0, joined.stderr
        [file] = user.home.rglob("*.key_secret")
        west.admitted("frontend", pair_in(file))
        stored = west.folder / "told" / "east-1.json"  # a broker accepts a key before it has stored it
        until(lambda: stored.exists() and "frontend/alice" in stored.read_text())
        listed = json.loads(admin.said("keys", "list", "--json", "--data-dir", data_dir(west)))
        [row] = [row for row in listed if row["name"] == "alice"]
        assert row["stored_at"] == "east-1"
        assert row["expires"] <= time.time() + 21, "20 s from the enrolment on, in whole seconds"
        until(lambda: time.time() > row["expires"], seconds=30)
        west.refused("frontend", pair_in(file))
        east.refused("frontend", pair_in(file))
        there = admin.run("keys", "expire", "frontend", "alice", "1d", "--data-dir", data_dir(west))
        assert there.returncode == 1
        assert "east-1" in there.stderr
        admin.said("keys", "expire", "frontend", "alice", "1d", "--data-dir", data_dir(east))
        west.admitted("frontend", pair_in(file))


# Promise: KEY-4
def test_a_correction_while_the_broker_runs_and_a_start_with_the_wrong_clock_refuse_no_key(tmp_path: Path) -> None:
    clock = JumpingClock(tmp_path)
    with locked(tmp_path / "broker") as lock:
        admin = Machine(tmp_path / "admin")
        words = ("keys", "new", "frontend", "bob", "--expires", "5d", "--json", "--data-dir", data_dir(lock))
        bob = pair_in(admin.home / json.loads(admin.said(*words))["file"])
        lock.broker.prefix = clock.prefix
        for days in (10, 0, 10):
            clock.set(days * 86_400)
            if days:
                lock.broker.kill9()
                lock.broker.restart()
            lock.admitted("frontend", bob)
            raw = lock.raw("frontend", bob)
            ping(raw)
            assert raw.hear_or_none(), f"{days} days"
            assert raw.hear_or_none(1.5) is None, "within this time the broker has looked at its clock"
