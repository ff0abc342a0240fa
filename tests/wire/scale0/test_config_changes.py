"""The network document: changed by management, kept, pushed to clients, published to brokers (PROTOCOL 4, 7, 12)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
import zmq

from tests.wire.scale0.conftest import own_broker, token_of
from tests.wire.scale0.raw import Raw, unique

pytestmark = pytest.mark.processes


@pytest.fixture
def fresh(tmp_path):
    """A new broker, connections to it, and its token."""
    with own_broker(tmp_path, default_heartbeat_interval=60) as (broker, net):
        yield broker, net, token_of(broker)


def current(client: Raw, auth: dict[str, str]) -> dict[str, Any]:
    body = client.manage("get_config", auth).body
    assert isinstance(body, dict)
    return body


# Promise: CONF-1
def test_a_new_document_is_the_next_version_and_names_its_parent(fresh):
    _, net, auth = fresh
    client = net.frontend()
    before = current(client, auth)
    wanted = {**before["config"], "network": "renamed"}
    made = client.manage("set_config", auth, config=wanted, base=1).body
    after = current(client, auth)
    assert made == {"version": 2, "hash": after["hash"]}
    assert after["config"]["network"] == "renamed"
    assert after["config"]["parent"] == before["hash"]


def test_a_document_may_come_as_the_body(fresh):
    _, net, auth = fresh
    client = net.frontend()
    wanted = {**current(client, auth)["config"], "network": "renamed"}
    assert client.manage("set_config", auth, json.dumps(wanted).encode(), base=1).body["version"] == 2


# Promise: CONF-1
@pytest.mark.parametrize("base", [None, 0, 2, 10**18])
def test_a_stale_base_is_refused_with_409_and_changes_nothing(caller, local, base):
    before = current(caller, local)
    stale = {} if base is None else {"base": base}
    assert caller.manage("set_config", local, config=before["config"], **stale).code == 409
    assert current(caller, local) == before


# Promise: CONF-1
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"netwrok": "x"}, "network"),
        ({"default_heartbeat_interval": -1}, "default_heartbeat_interval"),
        ({"heartbeat_liveness": "many"}, "heartbeat_liveness"),
        ({"group_config": [{"name": "a"}, {"name": "a"}]}, "group_config"),
        ({"group_config": [{"name": "a", "fallback_groups": ["b"]}]}, "there is no group b"),
    ],
    ids=str,
)
def test_an_invalid_document_is_refused_with_its_reasons(caller, local, change, reason):
    before = current(caller, local)
    wanted = {**before["config"], **change}
    refused = caller.manage("set_config", local, config=wanted, base=before["version"])
    assert refused.code == 400
    assert any(reason in text for text in refused.body["reasons"])
    assert current(caller, local) == before


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"network":"a","network":"b"}', b'{"version":NaN}']
)
def test_a_body_that_is_no_document_is_refused(caller, local, body):
    before = current(caller, local)
    assert caller.manage("set_config", local, body, base=before["version"]).code == 400
    assert current(caller, local) == before


def test_a_patch_is_rebased_by_the_broker(fresh):
    _, net, auth = fresh
    one, other = net.frontend(), net.frontend()
    assert one.manage("patch_config", auth, set={"network": "one"}).body["version"] == 2
    assert other.manage("patch_config", auth, set={"heartbeat_liveness": 5}).body["version"] == 3
    config = current(one, auth)["config"]
    assert (config["network"], config["heartbeat_liveness"]) == ("one", 5)
    assert one.manage("patch_config", auth, set={"nothing.like.it": 1}).code == 400
    assert one.manage("patch_config", auth, remove=["nothing"]).code == 400


def test_history_and_rollback_go_forward(fresh):
    _, net, auth = fresh
    client = net.frontend()
    first = current(client, auth)
    for name in ("two", "three"):
        client.manage("patch_config", auth, set={"network": name})
    rows = client.manage("config_history", auth).body["items"]
    assert [row["version"] for row in rows] == [3, 2, 1]
    assert [row["current"] for row in rows] == [True, False, False]
    assert rows[0]["parent"] == rows[1]["hash"]
    assert client.manage("rollback_config", auth, version=1).body["version"] == 4
    back = current(client, auth)["config"]
    assert back["network"] == first["config"]["network"]
    assert back["parent"] == rows[0]["hash"]


@pytest.mark.parametrize("version", [None, 0, 99, 2**63 - 1])
def test_a_rollback_to_nowhere_is_refused(net, local, version):
    asked = {} if version is None else {"version": version}
    assert net.frontend().manage("rollback_config", local, **asked).code in (400, 404)


@pytest.mark.parametrize("version", [-1, 2**63, 10**30, 1.5, "1"])
def test_a_version_that_no_store_could_keep_is_refused(caller, local, version):
    caller.say("MANAGEMENTREQ", {"command": "rollback_config", "id": 1, "version": version, **local})
    assert caller.hear().code == 400


@pytest.mark.parametrize("after", ["9" * 19, "9" * 5_000, "-1", "٣", "1_0", "x", ""])
def test_history_takes_any_text_as_its_place(net, local, after):
    assert net.frontend().manage("config_history", local, after=after).code == 200


@pytest.mark.parametrize("extra", [b"\xd4\x05x", b"\xc4\x01\xff", b"\xcb\x7f\xf8\0\0\0\0\0\0", b"\x91" * 500 + b"\x01"])
def test_what_only_messagepack_can_say_is_no_configuration(net, local, extra):
    import msgspec

    client = net.frontend()
    said = {"command": "set_config", "id": 7, "base": 1, **local, "config": 0}
    packed = msgspec.msgpack.encode([["MANAGEMENTREQ", said]])
    assert packed.endswith(b"\xa6config\x00")
    client.frames(b"SCALE0/1", b"BATCH", b"", packed[:-1] + extra)
    assert client.hear().code == 400
    assert net.frontend().request("scale0.ping").command == "REPLY"


# Promise: CONF-2, STORE-1
def test_a_change_survives_a_kill(fresh):
    broker, net, auth = fresh
    client = net.frontend()
    client.manage("patch_config", auth, set={"network": "kept"})
    before = current(client, auth)
    broker.kill9()
    broker.restart()
    assert current(net.frontend(), token_of(broker)) == before


# Promise: CONF-3
def test_clients_whose_part_changed_get_it_and_the_others_the_version(fresh):
    _, net, auth = fresh
    caller, worker = net.frontend(), net.backend(unique("echo"))
    caller.check(config_type="zpl")
    admin = net.frontend()
    made = admin.manage("patch_config", auth, set={"network": "same-for-clients"}).body
    for client in (caller, worker):
        told = client.hear()
        assert (told.command, told.options["config_version"]) == ("CONFIGACK", 2)
        assert told.options["config_hash"] == made["hash"]
    admin.manage("patch_config", auth, set={"default_heartbeat_interval": 61})
    assert caller.hear().options["config_type"] == "zpl"
    told = worker.hear()
    assert (told.command, told.options["config_version"]) == ("CONFIG", 3)
    assert told.body["config_version"] == 3


def test_ready_after_a_push_uses_the_new_version(fresh):
    _, net, auth = fresh
    service = unique("echo")
    worker = net.backend(service)
    net.frontend().manage("patch_config", auth, set={"network": "n"})
    assert worker.hear().options["config_version"] == 2
    assert worker.ask("READY", {"services": [service], "config_version": 2}).command == "READYOK"
    assert worker.ask("READY", {"services": [service], "config_version": 1}).command == "FORCENEGOTIATE"


# Promise: CONF-3
def test_changes_and_a_beacon_are_published(fresh):
    _, net, auth = fresh
    listener: zmq.Socket[bytes] = net.subscriber("config_pub")
    client = net.frontend()
    topic, version, hash_ = next_published(listener)
    first = current(client, auth)
    assert (topic, version, hash_) == (b"version", (1).to_bytes(8, "big"), first["hash"].encode())
    made = client.manage("patch_config", auth, set={"network": "published"}).body
    frames = next_published(listener)
    while frames[0] != b"config":
        frames = next_published(listener)
    assert frames[1:3] == [(2).to_bytes(8, "big"), made["hash"].encode()]
    assert hashlib.sha256(frames[3]).hexdigest() == made["hash"]
    assert json.loads(frames[3])["network"] == "published"
    assert next_published(listener)[0] == b"version"


def next_published(listener: zmq.Socket[bytes]) -> list[bytes]:
    assert listener.poll(5_000), "a beacon comes every second"
    return listener.recv_multipart()
