"""Brokers among each other with keys: a pair joined by token, its configuration, its clients.

Promise: CURVE-12
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import scale0
from scale0.broker.edge.join_tokens import join_peer, new_join_token
from scale0.broker.edge.key_folder import KeyFolder
from tests.fakes.waiting import PATIENCE_SECONDS, until
from tests.wire.curve.hands import Lock, locked

pytestmark = pytest.mark.processes


def key_of(lock: Lock, role: str) -> str:
    return str(lock.folder / "local" / f"{role}.key_secret")


def peers_of(lock: Lock) -> dict[str, str]:
    with client_of(lock) as client:
        return {row["broker"]: row["state"] for row in client.brokers()}


def client_of(lock: Lock, **more: Any) -> scale0.Client:
    return scale0.Client(lock.broker.endpoints["frontend"], key=key_of(lock, "frontend"), **more)


def test_two_brokers_know_each_other_by_their_keys(tmp_path: Path) -> None:
    common = {"group": "east", "default_heartbeat_interval": 1}
    with locked(tmp_path / "one", identity="east-1", config_service=True, **common) as one:
        token = new_join_token(KeyFolder(one.folder.parent), "peer", "east-2", 60.0)
        data_dir = tmp_path / "two" / "data"
        assert join_peer(one.broker.endpoints["peer"], token, "east-2", KeyFolder(data_dir))
        with locked(
            tmp_path / "two",
            identity="east-2",
            state="joining",
            peers=[one.broker.endpoints["peer"]],
            config_sub_ports=[one.broker.endpoints["config_pub"]],
            **common,
        ) as two:
            until(lambda: peers_of(one).get("east-2") == "active" and peers_of(two).get("east-1") == "active")
            check_calls_across(one, two)
            check_configuration_spreads(one, two)
            check_a_client_goes_to_the_other(one, two)
            check_a_revoked_peer_is_gone(two)


def check_calls_across(one: Lock, two: Lock) -> None:
    worker = scale0.Worker(two.broker.endpoints["backend"], key=key_of(two, "backend"))
    worker.add("there", lambda: "done")
    with worker, client_of(one) as client:
        assert worker.wait_until_up(PATIENCE_SECONDS)
        until(lambda: any(row["service"] == "there" for row in client.services()))
        assert client.call("there", timeout=PATIENCE_SECONDS) == "done"


def check_configuration_spreads(one: Lock, two: Lock) -> None:
    """By PUB and SUB: the second broker hears of a change without asking."""
    auth: dict[str, Any] = {"auth_token": (one.folder.parent / "token").read_text()}
    with client_of(one) as client:
        found = client.manage("get_config", **auth)
        brokers = [b for group in found["config"]["group_config"] for b in group["brokers"]]
        keys = {b["identity"]: b["endpoints"]["server_key"] for b in brokers}
        assert keys["east-1"] == one.server_key.decode()
        version = client.manage("patch_config", set={"heartbeat_liveness": 4}, remove=[], **auth)["version"]
    other: dict[str, Any] = {"auth_token": (two.folder.parent / "token").read_text()}
    with client_of(two) as client:
        until(lambda: client.manage("get_config", **other)["version"] >= version)


def check_a_client_goes_to_the_other(one: Lock, two: Lock) -> None:
    """A client that both know, by one key: the other broker's own key it learns from the first."""
    pair = one.new("frontend", "alice")
    two.store("frontend", "alice", pair)
    two.admitted("frontend", pair)
    file = one.folder / "local" / "alice.key_secret"
    file.touch(mode=0o600)
    file.write_text(f'curve\n    public-key = "{pair.public.decode()}"\n    secret-key = "{pair.secret.decode()}"\n')
    place = one.broker.endpoints["frontend"]
    with scale0.Client(place, key=file, server_key=one.server_key.decode(), retry=True) as client:
        until(lambda: client.ping()["broker"] == "east-1" and client.identity is not None)
        one.broker.kill9()
        until(lambda: client.call("scale0.ping", timeout=PATIENCE_SECONDS)["broker"] == "east-2")
        assert str(client.identity).startswith("alice.")
        one.broker.restart()


def check_a_revoked_peer_is_gone(two: Lock) -> None:
    until(lambda: peers_of(two).get("east-1") == "active")
    (two.folder / "peers" / "east-1.key").unlink()
    until(lambda: peers_of(two).get("east-1") != "active")
