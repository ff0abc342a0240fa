"""The peer socket: brokers that nobody here wrote, and real ones (PROTOCOL 7).

Promise: CONF-3, CONF-7, REQ-8
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.fakes.broker_process import BrokerProcess
from tests.fakes.messages import MAGIC, decode
from tests.fakes.waiting import until
from tests.wire.scale0.conftest import own_broker, quiet_broker, token_of
from tests.wire.scale0.raw import Raw, raws
from tests.wire.scale0.rpc import Backend, client

pytestmark = pytest.mark.processes

PATIENCE_SECONDS = 20.0


def hello(identity: str = "foreign", version: int = 0, hash_: str = "", **more: Any) -> dict[str, Any]:
    return {
        "identity": identity,
        "group": "",
        "state": "active",
        "services": "all",
        "endpoints": {},
        "config_version": version,
        "config_hash": hash_,
        "time": time.time(),
        **more,
    }


def next_document(body: bytes, **changes: Any) -> tuple[bytes, int, str]:
    """The document after this one, as another broker might write it: its bytes are its own."""
    old = json.loads(body)
    new = {**old, "version": old["version"] + 1, "parent": hashlib.sha256(body).hexdigest(), **changes}
    text = json.dumps(new, indent=1).encode()
    return text, new["version"], hashlib.sha256(text).hexdigest()


@pytest.fixture
def one(tmp_path: Path) -> Iterator[tuple[BrokerProcess, Any]]:
    with own_broker(tmp_path, default_heartbeat_interval=0.2) as made:
        yield made


def known_document(peer: Raw) -> tuple[bytes, int, str]:
    peer.say("CHECKCONFIG", {"config_type": "json", "role": "broker", "identity": "foreign"})
    heard = peer.hear_until("CONFIG")
    return heard.bodies[0], heard.options["config_version"], heard.options["config_hash"]


def test_nobody_is_believed_before_hello(one):
    _, net = one
    peer = net("peer")
    assert peer.ask("HEARTBEAT", {"time": time.time(), "state": "active", "config_version": 9}).command == (
        "FORCENEGOTIATE"
    )
    said = peer.ask("HELLO", hello())
    assert said.command == "HELLO"
    assert said.options["identity"] == "broker-1"
    assert said.options["state"] == "active"
    assert said.options["services"] == "all"
    assert said.options["config_version"] == 1
    assert said.options["endpoints"]["peer"] == net.endpoints["peer"]
    beat = peer.hear_until("HEARTBEAT")
    assert {"time", "state", "config_version", "load"} <= beat.options.keys()


def test_who_is_silent_is_lost_and_comes_back_by_hello(one):
    broker, net = one
    peer, admin = net("peer"), net.frontend()
    peer.ask("HELLO", hello())

    def state() -> str:
        rows = admin.manage("list_peers", token_of(broker)).body["items"]
        return str(next(row["state"] for row in rows if row["broker"] == "foreign"))

    assert state() == "active"
    until(lambda: state() == "lost")
    peer.say("HEARTBEAT", {"time": time.time(), "state": "active", "config_version": 0})
    peer.hear_until("FORCENEGOTIATE")
    peer.say("HELLO", hello())
    until(lambda: state() == "active")


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (hello("broker-1"), 409),
        (hello("not a name"), 400),
        (hello(services="some"), 400),
        (hello(endpoints={"peer": "nowhere"}), 400),
        (hello(endpoints={"peer": "inproc://within-you"}), 400),
        ({**hello(), "config_version": -1}, 400),
        ({}, 400),
    ],
)
def test_a_wrong_hello_is_refused(one, said, code):
    _, net = one
    heard = net("peer").ask("HELLO", said)
    assert (heard.command, heard.code) == ("DISCONNECTERROR", code)


def test_a_connection_is_one_broker_and_the_newest_of_one_name_counts(one):
    _, net = one
    first, second = net("peer"), net("peer")
    first.ask("HELLO", hello())
    other = first.ask("HELLO", hello("another"))
    assert (other.command, other.code) == ("DISCONNECTERROR", 409)
    second.ask("HELLO", hello())
    replaced = first.hear_until("DISCONNECTERROR")
    assert replaced.code == 409
    second.hear_until("HEARTBEAT")


def test_a_peer_that_is_an_error_client_is_told_nothing(one):
    _, net = one
    peer = net("peer")
    peer.ask("HELLO", hello())
    for _ in range(30):
        peer.say("HELLO", b"{")
    until(lambda: peer.hear_or_none(1.0) is None)


def test_a_request_socket_is_answered_and_not_called(one):
    """A REQ socket would take a heartbeat for its answer."""
    _, net = one
    peer = net("peer", zmq.REQ)
    assert peer.ask("HELLO", hello()).command == "HELLO"
    assert peer.ask("CHECKCONFIG", {"config_type": "json", "role": "broker"}).command == "CONFIG"


@pytest.mark.parametrize("command", ["REQUEST", "READY", "TASKSDONE", "NEEDBROKER"])
def test_what_is_for_clients_is_refused_here(one, command):
    _, net = one
    heard = net("peer").ask(command, {})
    assert (heard.command, heard.code) == ("DISCONNECTERROR", 403)


@pytest.mark.parametrize("socket", ["frontend", "backend"])
def test_a_client_is_no_broker(one, socket):
    _, net = one
    heard = net(socket).ask("HELLO", hello())
    assert (heard.command, heard.code) == ("DISCONNECTERROR", 403)


def test_a_broker_gets_the_whole_document_or_an_acknowledgement(one):
    _, net = one
    peer = net("peer")
    refused = peer.ask("CHECKCONFIG", {"config_type": "json"})
    assert (refused.command, refused.code) == ("DISCONNECTERROR", 403)
    body, version, hash_ = known_document(peer)
    assert hashlib.sha256(body).hexdigest() == hash_
    assert json.loads(body)["version"] == version
    same = {"config_type": "json", "role": "broker", "config_version": version, "config_hash": hash_}
    assert peer.ask("CHECKCONFIG", same).command == "CONFIGACK"


def test_a_newer_document_is_asked_for_and_taken_in_its_very_bytes(one):
    broker, net = one
    peer, admin = net("peer"), net.frontend()
    body, version, hash_ = next_document(known_document(peer)[0], default_heartbeat_interval=0.25)
    peer.say("HELLO", hello(version=version, hash_=hash_))
    asked = peer.hear_until("CHECKCONFIG")
    assert (asked.options["role"], asked.options["config_version"]) == ("broker", 1)
    said = {"identity": "foreign", "config_type": "json", "config_version": version, "config_hash": hash_}
    peer.say("CONFIG", said, body)

    def current() -> Any:
        return admin.manage("get_config", token_of(broker)).body

    until(lambda: current()["version"] == version)
    assert current()["hash"] == hash_
    assert known_document(peer) == (body, version, hash_)
    events = admin.manage("config_history", token_of(broker)).body["items"]
    assert [row["version"] for row in events] == [2, 1]


# Promise: CONF-7
def test_a_newer_document_with_a_time_that_is_refused_here_is_taken_in_its_very_bytes_and_lowered(one):
    broker, net = one
    peer, admin = net("peer"), net.frontend()
    body, version, hash_ = next_document(known_document(peer)[0], default_heartbeat_interval=1e308)
    peer.say("HELLO", hello(version=version, hash_=hash_))
    peer.hear_until("CHECKCONFIG")
    said = {"identity": "foreign", "config_type": "json", "config_version": version, "config_hash": hash_}
    peer.say("CONFIG", said, body)
    until(lambda: admin.manage("get_config", token_of(broker)).body["version"] == version)
    assert admin.manage("status", token_of(broker)).body["heartbeat_interval"] == 86_400
    assert known_document(peer) == (body, version, hash_)
    assert admin.manage("patch_config", token_of(broker), set={"default_heartbeat_interval": 1}).code == 200


def test_nothing_wrong_is_taken(one):
    broker, net = one
    admin = net.frontend()
    first = known_document(net("peer"))
    body, version, hash_ = next_document(first[0])
    wrong = [
        (body + b" ", version, hash_, 400),
        (body, version + 1, hash_, 400),
        *((*next_document(first[0], network="another"), 403),),
        *((*next_document(first[0], colour="red"), 400),),
        (b"{", version, hashlib.sha256(b"{").hexdigest(), 400),
        (b"", version, hashlib.sha256(b"").hexdigest(), 400),
    ]
    for text, number, digest, code in wrong:
        peer = net("peer")
        assert peer.ask("HELLO", hello(version=number, hash_=digest)).command == "HELLO"
        peer.hear_until("CHECKCONFIG")
        said = {"identity": "foreign", "config_type": "json", "config_version": number, "config_hash": digest}
        peer.say("CONFIG", said, text)
        assert peer.hear_until("DISCONNECTERROR").code == code, text
    old = json.dumps({**json.loads(first[0]), "version": 1, "heartbeat_liveness": 9}).encode()
    peer = net("peer")
    said = {"identity": "x", "config_type": "json", "config_version": 1, "config_hash": ""}
    assert peer.ask("CONFIG", said, old).command == "FORCENEGOTIATE", "nobody is believed before HELLO"
    for _ in range(50):
        peer.say("TABLE", {"seq": 1, "full": True}, b"{}")
        assert peer.hear().command == "FORCENEGOTIATE", "and nobody is banned for it"
    peer.say("FORWARD", {"service": "s", "id": "f", "timeout": 5, "hops": 1})
    back = peer.hear_until("ERROR")
    assert (back.code, back.options["unrun"]) == (503, True)
    assert admin.manage("get_config", token_of(broker)).body["hash"] == first[2]


def test_a_broker_joins_whoever_answers(tmp_path: Path):
    """We are the first broker: a socket, and the words of the protocol."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    first = context.socket(zmq.ROUTER)
    first.bind("tcp://127.0.0.1:*")
    place = first.get(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()  # type: ignore[union-attr]
    document = {"network": "scale0", "version": 7, "default_heartbeat_interval": 0.5, "heartbeat_liveness": 3}
    body = json.dumps(document).encode()
    hash_ = hashlib.sha256(body).hexdigest()

    def hear(command: str) -> tuple[bytes, dict[str, Any]]:
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            if first.poll(1000):
                who, *frames = first.recv_multipart()
                for heard in decode(frames):
                    if heard.command == command:
                        return who, heard.options
        raise AssertionError(f"{command} was never heard")

    def say(who: bytes, command: str, options: dict[str, Any], *bodies: bytes) -> None:
        first.send_multipart([who, MAGIC, command.encode(), json.dumps(options).encode(), *bodies])

    try:
        with quiet_broker(tmp_path, state="joining", peers=[place]) as newcomer, raws(newcomer.endpoints) as net:
            client = net.frontend()
            assert client.check().code == 503
            who, said = hear("HELLO")
            assert (said["identity"], said["state"], said["config_version"]) == ("broker-1", "joining", 0)
            say(who, "HELLO", hello(version=7, hash_=hash_))
            who, asked = hear("CHECKCONFIG")
            assert asked["role"] == "broker"
            answer = {"identity": "foreign", "config_type": "json", "config_version": 7, "config_hash": hash_}
            say(who, "CONFIG", answer, body)
            fresh = net.frontend()
            assert until(lambda: fresh.check().options.get("config_version")) == 7
    finally:
        first.close(linger=0)
        context.term()


def test_a_broker_takes_what_is_published_and_nothing_older(tmp_path: Path, one):
    _, source = one
    body, version, _ = known_document(source("peer"))
    newer, number, hash_ = next_document(body)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    publisher = context.socket(zmq.PUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    try:
        with own_broker(
            tmp_path / "other", identity="other", state="joining", config_sub_ports=[f"tcp://127.0.0.1:{port}"]
        ) as (other, net):
            admin = net.frontend()

            def publish(version: int, name: str, document: bytes) -> None:
                publisher.send_multipart([b"config", version.to_bytes(8, "big"), name.encode(), document])

            def held() -> int:
                # Not a word of this is right, and none of it may hurt.
                publisher.send_multipart([b"config"])
                publisher.send_multipart([b"version", b"\xff" * 9, b"\xff", b""])
                publisher.send_multipart([b"version", b"\xff" * 8, b"\xff"])
                publish(number + 1, hash_, newer)
                publish(number, "0" * 64, newer)
                publish(number, hash_, newer)
                publish(version, hashlib.sha256(body).hexdigest(), body)
                return int(admin.request("scale0.ping").body["config_version"])

            until(lambda: held() == number)
            for _ in range(20):
                assert held() == number
            status = admin.manage("status", token_of(other)).body
            assert status["state"] == "active", "it has a configuration now"
            assert status["counters"]["config_sub_refused"] > 0
    finally:
        publisher.close(linger=0)
        context.term()


def test_three_real_brokers_lose_one_and_take_it_back(tmp_path: Path):
    with ExitStack() as stack:
        first = stack.enter_context(quiet_broker(tmp_path / "a", identity="a", config_service=True, group="east"))
        others = [
            stack.enter_context(
                quiet_broker(
                    tmp_path / name,
                    identity=name,
                    group="east",
                    state="joining",
                    peers=[first.endpoints["peer"]],
                )
            )
            for name in "bc"
        ]
        brokers = {"a": first, "b": others[0], "c": others[1]}
        nets = {name: stack.enter_context(raws(broker.endpoints)) for name, broker in brokers.items()}

        def seen(by: str) -> dict[str, str]:
            heard = nets[by].frontend().request("scale0.brokers")
            if heard.command != "REPLY":
                return {}
            return {row["broker"]: row["state"] for row in heard.body["items"]}

        def versions() -> set[int]:
            return {nets[by].frontend().request("scale0.ping").body["config_version"] for by in brokers}

        everybody = dict.fromkeys("abc", "active")
        until(lambda: all(seen(by) == everybody for by in brokers))
        until(lambda: len(versions()) == 1)
        worker = nets["b"].backend("paint")
        caller = nets["a"].frontend()
        caller.say("REQUEST", {"service": "paint", "id": "one", "timeout": 20}, b"red")
        worker.answer(b"it is red", seconds=20)
        told = caller.hear_until("REPLY", "ERROR", seconds=20)
        assert (told.command, told.options["id"], told.bodies) == ("REPLY", "one", [b"it is red"])
        where = {row["service"]: row["where"] for row in nets["c"].frontend().request("scale0.services").body["items"]}
        assert where == {"paint": ["b"]}
        others[1].kill9()
        until(lambda: seen("b").get("c") == "lost" and seen("a").get("c") == "lost")
        changed = (
            nets["a"]
            .frontend()
            .manage("patch_config", token_of(first), set={"services.hello": {"name": "hello", "timeout": 9}})
        )
        assert changed.code == 200
        others[1].restart()
        until(lambda: all(seen(by) == everybody for by in brokers))
        until(lambda: versions() == {changed.body["version"]})


def test_a_table_counts_the_queued_and_running_tasks_of_each_method(one: tuple[BrokerProcess, Any]):
    _, net = one
    backend, owner = Backend(net, "m"), client(net)
    for number in range(3):
        owner.submit("m", [number])
    backend.tasks()
    peer = net("peer")
    peer.ask("HELLO", hello())

    def work() -> dict[str, dict[str, int]]:
        peer.say("TABLEREQ", {})
        found: dict[str, dict[str, int]] = peer.hear_until("TABLE").body["work"]
        return found

    # Tasks in memory are counted; the first of a new method may still be read from the store.
    until(lambda: work() == {"m": {"queued": 2, "running": 1}})
