"""RFC 9 over raw ZeroMQ sockets, with a real broker that is killed, and with the package `majortomo`."""

# Promise: MDP-6
from __future__ import annotations

import time
from pathlib import Path

import majortomo
import pytest
import zmq

from tests.fakes.broker_process import broker_process
from tests.fakes.majordomo import (
    C01,
    C02,
    CLIENT_FINAL_02,
    CLIENT_REQUEST_02,
    EMPTY,
    FINAL_02,
    HEARTBEAT_02,
    READY,
    REPLY_01,
    REQUEST,
    W01,
    W02,
)
from tests.wire.majordomo.conftest import INTERVAL, Wire, heard, wait_until
from tests.wire.majordomo.test_majortomo import WAIT_SECONDS, Working

pytestmark = pytest.mark.processes

STORE, FETCH, CLOSE = b"titanic.request", b"titanic.reply", b"titanic.close"


class Client01:
    """A REQ socket, as RFC 7 has it."""

    def __init__(self, wire: Wire) -> None:
        self._socket = wire.open(zmq.REQ, "frontend")

    def ask(self, service: bytes, *frames: bytes) -> list[bytes]:
        self._socket.send_multipart([C01, service, *frames])
        header, name, *answer = heard(self._socket)
        assert (header, name) == (C01, service)
        return answer


class Client02:
    """A DEALER socket, as RFC 18 has it."""

    def __init__(self, wire: Wire) -> None:
        self._socket = wire.open(zmq.DEALER, "frontend")

    def ask(self, service: bytes, *frames: bytes) -> list[bytes]:
        self._socket.send_multipart([C02, CLIENT_REQUEST_02, service, *frames])
        header, command, name, *answer = heard(self._socket)
        assert (header, command, name) == (C02, CLIENT_FINAL_02, service)
        return answer


every_client = pytest.mark.parametrize("kind", [Client01, Client02])


def request_of(worker: zmq.Socket[bytes]) -> tuple[bytes, list[bytes]]:
    """The next request of a worker of 0.2, which lives meanwhile: its address and its body."""
    while (frames := heard(worker))[1] == HEARTBEAT_02:
        worker.send_multipart([W02, HEARTBEAT_02])
    assert (frames[1], frames[3]) == (REQUEST, EMPTY)
    return frames[2], frames[4:]


def fetched(client: Client01 | Client02, uuid: bytes) -> list[bytes]:
    """The answer, once it is there."""
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        answer = client.ask(FETCH, uuid)
        if answer != [b"300"]:
            return answer
    raise AssertionError("it is pending for ever")


@every_client
def test_a_request_is_kept_done_fetched_and_closed(wire, kind):
    service = b"kept." + kind.__name__.encode()
    client = kind(wire)
    assert client.ask(b"mmi.service", STORE) == [b"200"]
    status, uuid = client.ask(STORE, service, b"hello", b"\x00\xff")
    assert (status, len(uuid)) == (b"200", 32)
    assert client.ask(FETCH, uuid) == [b"300"]
    worker = wire.open(zmq.DEALER, "backend")
    worker.send_multipart([W02, READY, service])
    address, frames = request_of(worker)
    assert frames == [b"hello", b"\x00\xff"]
    assert client.ask(FETCH, uuid) == [b"300"]
    worker.send_multipart([W02, FINAL_02, address, EMPTY, b"answer", b""])
    assert fetched(client, uuid) == [b"200", b"answer", b""]
    assert client.ask(FETCH, uuid) == [b"200", b"answer", b""]
    for _ in range(2):
        assert client.ask(CLOSE, uuid) == [b"200"]
        assert client.ask(FETCH, uuid) == [b"400"]


@every_client
def test_what_is_unknown_or_makes_no_sense_is_400(wire, kind):
    client = kind(wire)
    assert client.ask(FETCH, b"0" * 32) == [b"400"]
    assert client.ask(CLOSE, b"0" * 32) == [b"200"]
    assert client.ask(FETCH, b"nonsense") == [b"400"]
    assert client.ask(STORE, b"no body") == [b"400"]
    assert client.ask(STORE, b"mmi.service", b"reserved") == [b"400"]


def test_a_worker_of_01_does_what_was_stored(wire):
    client = Client02(wire)
    _, uuid = client.ask(STORE, b"kept.old", b"hello")
    worker = wire.open(zmq.DEALER, "backend")
    worker.send_multipart([EMPTY, W01, READY, b"kept.old"])
    frames = heard(worker)
    assert (frames[2], frames[5:]) == (REQUEST, [b"hello"])
    worker.send_multipart([EMPTY, W01, REPLY_01, frames[3], EMPTY, b"answer"])
    assert fetched(client, uuid) == [b"200", b"answer"]


def test_a_scale0_backend_does_what_was_stored(wire):
    client = Client01(wire)
    backend = wire.scale0_backend("kept.own")
    _, uuid = client.ask(STORE, b"kept.own", b"hello")
    magic, command, options, body = heard(backend)
    assert (command, body) == (b"REQUEST", b"hello")
    backend.send_multipart([magic, b"REPLY", options, b"answer"])
    assert fetched(client, uuid) == [b"200", b"answer"]


def test_a_worker_that_vanished_with_it_is_followed_by_another(wire):
    client = Client02(wire)
    vanishing = wire.open(zmq.DEALER, "backend")
    vanishing.send_multipart([W02, READY, b"kept.shaky"])
    _, uuid = client.ask(STORE, b"kept.shaky", b"hello")
    assert request_of(vanishing)[1] == [b"hello"]
    vanishing.close()
    worker = wire.open(zmq.DEALER, "backend")
    worker.send_multipart([W02, READY, b"kept.shaky"])
    address, frames = request_of(worker)
    assert frames == [b"hello"]
    worker.send_multipart([W02, FINAL_02, address, EMPTY, b"answer"])
    assert fetched(client, uuid) == [b"200", b"answer"]


def test_nobody_can_offer_the_three_services(wire):
    for service in (STORE, FETCH, CLOSE):
        worker = wire.open(zmq.DEALER, "backend")
        worker.send_multipart([W02, READY, service])
        assert heard(worker) == [W02, b"\x06"]


def test_many_at_once_are_all_done(wire):
    client = wire.open(zmq.DEALER, "frontend")
    for number in range(500):
        client.send_multipart([C02, CLIENT_REQUEST_02, STORE, b"kept.many", b"%d" % number])
    uuids = [heard(client)[4] for _ in range(500)]
    assert len(set(uuids)) == 500
    worker = wire.open(zmq.DEALER, "backend")
    worker.send_multipart([W02, READY, b"kept.many"])
    seen = []
    for _ in range(500):
        address, frames = request_of(worker)
        seen += frames
        worker.send_multipart([W02, FINAL_02, address, EMPTY, b"did", *frames])
    assert seen == [b"%d" % number for number in range(500)]
    asker = Client01(wire)
    assert [fetched(asker, uuid)[2] for uuid in uuids] == seen


@every_client
def test_what_was_stored_survives_kill_9_at_every_stage(tmp_path: Path, kind):
    with broker_process(tmp_path, mdp_heartbeat_interval=INTERVAL) as broker:
        wire = Wire(broker)
        try:
            _, uuid = kind(wire).ask(STORE, b"kept", b"hello")
            _, never = kind(wire).ask(STORE, b"kept", b"closed at once")
            assert kind(wire).ask(CLOSE, never) == [b"200"]
            broker.kill9()
            broker.restart()
            client = kind(wire)
            assert client.ask(FETCH, uuid) == [b"300"]
            worker = wire.open(zmq.DEALER, "backend")
            worker.send_multipart([W02, READY, b"kept"])
            assert request_of(worker)[1] == [b"hello"]
            broker.kill9()  # while somebody does it
            worker.close()
            broker.restart()
            worker = wire.open(zmq.DEALER, "backend")
            worker.send_multipart([W02, READY, b"kept"])
            address, frames = request_of(worker)
            assert frames == [b"hello"]
            worker.send_multipart([W02, FINAL_02, address, EMPTY, b"answer"])
            client = kind(wire)
            assert fetched(client, uuid) == [b"200", b"answer"]
            broker.kill9()
            broker.restart()
            client = kind(wire)
            assert client.ask(FETCH, uuid) == [b"200", b"answer"]
            assert client.ask(FETCH, never) == [b"400"]
            assert client.ask(CLOSE, uuid) == [b"200"]
            broker.kill9()
            broker.restart()
            assert kind(wire).ask(FETCH, uuid) == [b"400"]
        finally:
            wire.close()


def test_the_package_majortomo_stores_and_works(broker, wire):
    def ask(service: str, *frames: bytes) -> list[bytes]:
        client.send(service, *frames)
        answer: list[bytes] = client.recv_all_as_list(WAIT_SECONDS)
        return answer

    with zmq.Context() as context, majortomo.Client(broker.endpoints["frontend"], context) as client:
        _, uuid = ask("titanic.request", b"kept.tomo", b"stop")
        assert ask("titanic.reply", uuid) == [b"300"]
        working = Working(broker, "kept.tomo")
        until = time.monotonic() + WAIT_SECONDS
        while (answer := ask("titanic.reply", uuid)) == [b"300"] and time.monotonic() < until:
            pass
        assert answer == [b"200", b"got", b"stop", b"working", b"done"]
        working.join()
        wait_until(wire, b"kept.tomo", b"404")
        assert ask("titanic.close", uuid) == [b"200"]
        assert ask("titanic.reply", uuid) == [b"400"]
