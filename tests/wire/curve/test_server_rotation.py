"""The broker's own key is replaced while a worker and clients use it: nothing stops, and nobody is locked out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from scale0.transport.edge.curve_certificates import read_certificate, read_pair
from tests.fakes.waiting import PATIENCE_SECONDS, until
from tests.wire.curve.keys import SHAKEN, Lock, Pair, client_of, enrolled, knows_all, locked, network, pair_in
from tests.wire.curve.test_commands import COMMAND_SECONDS, WORKER, Machine, data_dir, new_token, place
from tests.wire.curve.test_doors import ping

pytestmark = pytest.mark.processes


def shakes(lock: Lock, role: str, pair: Pair, server_key: bytes) -> bool:
    """Whether a handshake for this server key succeeds."""
    socket = lock.suited(zmq.DEALER, pair, server_key)
    failed = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    monitor = socket.get_monitor_socket(SHAKEN | failed)
    try:
        socket.connect(lock.broker.endpoints[role])
        assert monitor.poll(round(PATIENCE_SECONDS * 1000)), "the handshake never ended"
        return bool(recv_monitor_message(monitor)["event"] == SHAKEN)
    finally:
        socket.disable_monitor()
        monitor.close(linger=0)
        socket.close(linger=0)


def stored_key(machine: Machine) -> str:
    """The server key in the only key file of a machine."""
    [file] = machine.home.rglob("*.key_secret")
    return read_pair(file).metadata["server-key"]


# Promise: KEY-1, KEY-2
def test_nothing_stops_while_the_key_of_a_broker_rotates(tmp_path: Path) -> None:
    with locked(tmp_path / "broker", default_heartbeat_interval=1) as lock:
        admin, user, other = (Machine(tmp_path / name) for name in ("admin", "user", "other"))
        here = ("--data-dir", data_dir(lock))

        def rotation(step: str, *more: str) -> Any:
            return json.loads(admin.said("keys", "rotate-server", step, "--json", *more, *here))

        def calls() -> bool:
            said = user.run("call", "hello", "world", "--join", place(lock, "frontend"))
            return said.stdout.strip() == "hello world"

        (other.home / "hello.py").write_text(WORKER)
        words = ("worker", "hello.py", "--join", place(lock, "backend"), "--name", "second")
        token = new_token(admin, lock, "frontend", "--name", "alice")
        user.said("keys", "join", "frontend", place(lock, "frontend"), "--token", token, "--name", "alice")
        raw_pair = lock.new("frontend", "raw")
        raw, old = lock.raw("frontend", raw_pair), lock.server_key
        ping(raw)
        assert raw.hear().command == "REPLY"
        with other.running(*words, "--token", new_token(admin, lock, "backend")):
            assert calls()
            assert rotation("status")["previous"] == ""
            started = rotation("start")
            assert started["previous"].encode() == old
            new = started["server_key"]
            until(lambda: shakes(lock, "frontend", raw_pair, new.encode()), "the new key is accepted")
            assert shakes(lock, "frontend", raw_pair, old), "and the previous one"
            ping(raw)
            assert raw.hear().command == "REPLY", "open connections stay"
            until(lambda: stored_key(other) == new, "a worker stores the new key")
            assert calls()
            assert stored_key(user) == new, "and so does a client, at its first command"
            in_use = rotation("status")["users"]
            assert {"backend/second", "frontend/raw"} <= {row["user"] for row in in_use}
            refused = admin.run("keys", "rotate-server", "finish", *here)
            assert refused.returncode == 1
            assert "frontend/raw" in refused.stderr
            # A broker that is killed in the middle accepts both.
            lock.broker.kill9()
            lock.broker.restart()
            assert shakes(lock, "frontend", raw_pair, old)
            assert shakes(lock, "frontend", raw_pair, new.encode())
            until(calls, seconds=COMMAND_SECONDS)

            def moved() -> bool:
                rows = {row["user"]: row["connections"] for row in rotation("status")["users"]}
                return bool(rows["backend/second"] == 0)

            until(moved, "the worker has connected again, for the new key")
            made = new_token(admin, lock, "frontend", "--name", "later")
            late = Machine(tmp_path / "late")
            late.said("keys", "join", "frontend", place(lock, "frontend"), "--token", made, "--name", "later")
            assert stored_key(late) == new
            assert rotation("finish", "--force")["retired"].encode() == old
            until(lambda: not shakes(lock, "frontend", raw_pair, old), "the previous key is retired")
            assert shakes(lock, "frontend", raw_pair, new.encode())
            assert calls()
        audit = json.loads(admin.said("audit", "--json", *here))
        words_of = " ".join(row["words"] for row in audit)
        assert f"key of server rotating: {new}" in words_of
        assert f"key of server rotated: {new}" in words_of


# Promise: KEY-1, KEY-2
def test_peers_learn_the_new_key_of_a_broker_and_keep_its_clients(tmp_path: Path) -> None:
    with network(tmp_path, "east-1", "east-2") as (one, two):
        admin = Machine(tmp_path / "admin")
        here = ("--data-dir", data_dir(one))
        alice = enrolled(one, "frontend", "alice")
        two.admitted("frontend", pair_in(alice))
        watching = two.raw("frontend", pair_in(alice))
        ping(watching)
        assert watching.hear().command == "REPLY"
        started = json.loads(admin.said("keys", "rotate-server", "start", "--json", *here))
        new, old = started["server_key"], started["previous"]

        def stored() -> tuple[str, str]:
            found = read_certificate(two.folder / "peers" / "east-1.key")
            return found.public, found.metadata.get("previous-key", "")

        until(lambda: stored() == (new, old), "the peer stores the new key beside the previous one")
        ping(watching)
        assert watching.hear().command == "REPLY", "clients of replicated keys stay connected"
        assert all(knows_all(lock, ("east-1", "east-2")) for lock in (one, two))
        until(lambda: document_key(two, "east-1") == new, "the network document has the new key")
        # Both dial again, each after a restart: by the new key.
        for lock in (one, two):
            lock.broker.kill9()
            lock.broker.restart()
            until(lambda: all(knows_all(each, ("east-1", "east-2")) for each in (one, two)), seconds=COMMAND_SECONDS)
        two.admitted("frontend", pair_in(alice))
        admin.said("keys", "rotate-server", "finish", "--force", *here)
        until(lambda: stored() == (new, ""), "the peer forgets the previous key")
        for lock in (two, one):
            lock.broker.kill9()
            lock.broker.restart()
            until(lambda: all(knows_all(each, ("east-1", "east-2")) for each in (one, two)), seconds=COMMAND_SECONDS)
        two.admitted("frontend", pair_in(alice))


def document_key(lock: Lock, name: str) -> str:
    with client_of(lock) as client:
        rows = {row["broker"]: row.get("endpoints", {}) for row in client.brokers()}
    return str(rows[name].get("server_key", ""))
