"""Whose identity is whose, with keys (PROTOCOL 2, 5 and 6).

Promise: CURVE-5, CURVE-6, CURVE-7
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from scale0.monitoring.helen.edge.network_client import NetworkClient
from tests.wire.curve.keys import Lock, locked
from tests.wire.scale0.raw import Raw, unique

pytestmark = pytest.mark.processes


def call(raw: Raw, method: str, *params: Any) -> dict[str, Any]:
    raw.frames(
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": f"zerotask.broker.{method}", "params": params}).encode()
    )
    frames = raw.receive()
    assert frames is not None
    answer: dict[str, Any] = json.loads(frames[-1])
    return answer


@pytest.mark.parametrize("socket", ["frontend", "backend"])
def test_an_identity_begins_with_the_name_of_the_key(lock: Lock, socket: str) -> None:
    name = unique("owner")
    pair = lock.new(socket, name)
    for identity in (name, f"{name}.one", f"{name}.one.two"):
        assert lock.raw(socket, pair).check(identity).command == "CONFIG"
    for identity in (f"{name}x", name[:-1], "other", f"x.{name}", f"{name}-1"):
        refused = lock.raw(socket, pair).check(identity)
        assert (refused.command, refused.code) == ("DISCONNECTERROR", 403), identity


def test_helen_asks_by_her_own_name_with_the_key_of_local_programs(lock: Lock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALE0_DATA_DIR", lock.broker.config["data_dir"])
    monkeypatch.setenv("HOME", lock.broker.config["data_dir"])

    async def ask() -> tuple[str, list[str]]:
        asks = NetworkClient("helen-1.asks", {lock.broker.endpoints["frontend"]: ""}, None)
        try:
            return asks.identity, await asks.services()
        finally:
            asks.close()

    assert asyncio.run(ask()) == ("helen-1.asks", [])


def test_the_longest_stored_name_decides(lock: Lock) -> None:
    name = unique("site")
    above, beneath = lock.new("frontend", name), lock.new("frontend", f"{name}.web")
    assert lock.raw("frontend", above).check(f"{name}.db").command == "CONFIG"
    assert lock.raw("frontend", above).check(f"{name}.web").code == 403
    assert lock.raw("frontend", above).check(f"{name}.web.1").code == 403
    assert lock.raw("frontend", beneath).check(f"{name}.web.1").command == "CONFIG"
    assert lock.raw("frontend", beneath).check(name).code == 403


def test_an_identity_that_the_broker_makes_is_the_keys_own(lock: Lock) -> None:
    name = unique("nameless")
    heard = lock.raw("frontend", lock.new("frontend", name)).check()
    assert heard.options["identity"].startswith(f"{name}.")
    node = call(lock.raw("backend", lock.new("backend", name)), "node_connect")
    assert node["result"].startswith(f"{name}.")


def test_a_node_id_is_an_identity_too(lock: Lock) -> None:
    name = unique("node")
    pair, other = lock.new("backend", name), lock.new("backend", unique("thief"))
    first = lock.raw("backend", pair)
    assert call(first, "node_connect", f"{name}.1")["result"] == f"{name}.1"
    for method, params in (("node_connect", (f"{name}.1",)), ("node_heartbeat", (f"{name}.1",))):
        assert call(lock.raw("backend", other), method, *params)["error"]["code"] == -32030


def test_a_peer_is_whom_its_key_says(lock: Lock) -> None:
    pair = lock.new("peer", unique("peer"))
    raw = lock.raw("peer", pair)
    raw.say("HELLO", {"identity": "another-peer"})
    heard = raw.hear()
    assert (heard.command, heard.code) == ("DISCONNECTERROR", 403)


def test_a_task_client_id_belongs_to_the_key_that_first_used_it(lock: Lock) -> None:
    mine, id_ = lock.new("frontend", unique("submitter")), unique("tasks-of")
    first = lock.raw("frontend", mine)
    assert call(first, "client_connect", id_)["result"] == id_
    task = call(first, "client_new_task", id_, "nobody.does", [1])["result"]
    thief = lock.raw("frontend", lock.new("frontend", unique("reader")))
    assert call(thief, "client_connect", id_)["error"]["code"] == -32010
    for method in ("client_task_status", "client_task_result", "client_task_cancel"):
        assert call(thief, method, id_, task)["error"]["code"] == -32010
    assert call(thief, "client_disconnect", id_)["error"]["code"] == -32010
    assert call(lock.raw("frontend", mine), "client_task_status", id_, task)["result"]["status"] == "queued"


def test_a_task_client_id_stays_its_keys_over_a_restart(tmp_path: Any) -> None:
    with locked(tmp_path) as lock:
        mine, thief = lock.new("frontend", "mine"), lock.new("frontend", "thief")
        raw = lock.raw("frontend", mine)
        assert call(raw, "client_connect", "kept")["result"] == "kept"
        task = call(raw, "client_new_task", "kept", "nobody.does", [1])["result"]
        lock.broker.kill9()
        lock.broker.restart()
        for method, params in (("client_connect", ("kept",)), ("client_task_status", ("kept", task))):
            assert call(lock.raw("frontend", thief), method, *params)["error"]["code"] == -32010, method
        assert call(lock.raw("frontend", mine), "client_task_status", "kept", task)["result"]["task_id"] == task


def test_an_error_client_is_a_key_and_not_a_connection(lock: Lock) -> None:
    name = unique("rude")
    rude, polite = lock.new("frontend", name), lock.new("frontend", unique("polite"))
    raw = lock.raw("frontend", rude)
    for _ in range(12):
        raw.say("NONSENSE")
        raw.hear_or_none(0.2)
    again = lock.raw("frontend", rude)
    again.say("REQUEST", {"service": "scale0.ping", "id": 1})
    assert again.silent()
    assert lock.raw("frontend", polite).request("scale0.ping").command == "REPLY"
    token = {"auth_token": (lock.folder.parent / "token").read_text()}
    listed = lock.raw("frontend", polite).manage("list_error_clients", token).body["items"]
    assert [row["client"] for row in listed] == [f"frontend/{name}"]
    assert lock.raw("frontend", polite).manage("forgive", token, client=f"frontend/{name}").code == 200
    again.say("REQUEST", {"service": "scale0.ping", "id": 2})
    assert again.hear().command == "REPLY"


@pytest.mark.parametrize("routing_id", [b"the-same", b"\0made"])
def test_a_routing_id_that_another_key_has_next_inherits_nothing(lock: Lock, routing_id: bytes) -> None:
    first, second = unique("first"), unique("second")
    one, two = lock.new("frontend", first), lock.new("frontend", second)
    raw = lock.raw("frontend", one, routing_id)
    assert raw.check(first).command == "CONFIG"
    raw.close()
    for _ in range(50):
        # A socket that comes before the broker saw the first one go is never heard: libzmq lets one have a routing id.
        other = lock.raw("frontend", two, routing_id)
        other.say("CHECKCONFIG", {"identity": second, "config_type": "json"})
        heard = other.hear_or_none(0.2)
        if heard is not None:
            break
        other.close()
    assert heard is not None
    assert (heard.command, heard.options.get("identity")) == ("CONFIG", second)
