"""The package `majortomo` as a real peer: its Client and its Worker, at our broker and across protocols."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import majortomo
import majortomo.error
import pytest
import zmq

from tests.fakes.broker_process import BrokerProcess
from tests.fakes.majordomo import C01, C02, CLIENT_FINAL_02, CLIENT_PARTIAL_02, CLIENT_REQUEST_02
from tests.wire.majordomo.conftest import INTERVAL, WAIT_MS, heard, wait_until

pytestmark = pytest.mark.processes

WAIT_SECONDS = WAIT_MS / 1_000


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[majortomo.Client]:
    with zmq.Context() as context, majortomo.Client(broker.endpoints["frontend"], context) as out:
        yield out


class Working:
    """A majortomo.Worker in a thread: it answers each request in two parts and a last one, until it is told `stop`."""

    def __init__(self, broker: BrokerProcess, service: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._place, self._service = broker.endpoints["backend"], service
        self._thread = threading.Thread(target=self._work)
        self.served = 0
        self._thread.start()

    def _work(self) -> None:
        worker = majortomo.Worker(self._place, self._service, heartbeat_interval=INTERVAL, zmq_context=self._context)
        with worker:
            while True:
                client, request = worker.wait_for_request()
                worker.send_reply_partial(client, [b"got", *request])
                worker.send_reply_partial(client, [b"working"])
                worker.send_reply_final(client, [b"done"])
                self.served += 1
                if request == [b"stop"]:
                    return

    def join(self) -> None:
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()
        self._context.destroy(linger=0)


# Promise: MDP-4
def test_its_client_and_its_worker_talk_through_our_broker(broker, client, wire):
    working = Working(broker, "tomo.both")
    for request in ([b"1"], [b"2", b"and more"], [b"stop"]):
        client.send("tomo.both", *request)
        assert list(client.recv_all(WAIT_SECONDS)) == [[b"got", *request], [b"working"], [b"done"]]
    working.join()
    assert working.served == 3
    wait_until(wire, b"tomo.both", b"404")  # it said DISCONNECT


# Promise: MDP-3
def test_its_client_reaches_a_scale0_backend(wire, client):
    backend = wire.scale0_backend("tomo.own")
    client.send("tomo.own", b"ask", b"more")
    magic, command, options, *bodies = heard(backend)
    assert (command, bodies) == (b"REQUEST", [b"ask", b"more"])
    backend.send_multipart([magic, b"PARTIAL", options, b"some"])
    assert client.recv_part(WAIT_SECONDS) == [b"some"]
    backend.send_multipart([magic, b"REPLY", options, b"rest"])
    assert client.recv_part(WAIT_SECONDS) == [b"rest"]
    assert client.recv_part(WAIT_SECONDS) is None


def test_its_client_hears_nothing_of_an_error_and_times_out(wire, client):
    backend = wire.scale0_backend("tomo.error")
    client.send("tomo.error", b"ask")
    magic, _, options, _ = heard(backend)
    failed = {"id": json.loads(options)["id"], "code": 500, "message": "no"}
    backend.send_multipart([magic, b"ERROR", json.dumps(failed).encode()])
    with pytest.raises(majortomo.error.Timeout):
        client.recv_part(0.3)


def test_its_client_can_ask_the_management_services(wire, client):
    wire.scale0_backend("tomo.found")
    for service, asked, code in (
        ("mmi.service", b"tomo.found", b"200"),
        ("mmi.service", b"nobody", b"404"),
        ("mmi.else", b"", b"501"),
    ):
        client.send(service, asked)
        assert client.recv_all_as_list(WAIT_SECONDS) == [code]


# Promise: MDP-4
def test_every_kind_of_client_reaches_its_worker(broker, wire):
    working = Working(broker, "tomo.worker")
    own = wire.open(zmq.DEALER, "frontend")
    own.send_multipart([b"SCALE0/1", b"REQUEST", b'{"service": "tomo.worker", "id": "a"}', b"1"])
    answers = [heard(own) for _ in range(3)]
    assert [(frames[1], *frames[3:]) for frames in answers] == [
        (b"PARTIAL", b"got", b"1"),
        (b"PARTIAL", b"working"),
        (b"REPLY", b"done"),
    ]
    new = wire.open(zmq.DEALER, "frontend")
    new.send_multipart([C02, CLIENT_REQUEST_02, b"tomo.worker", b"2"])
    assert [heard(new) for _ in range(3)] == [
        [C02, CLIENT_PARTIAL_02, b"tomo.worker", b"got", b"2"],
        [C02, CLIENT_PARTIAL_02, b"tomo.worker", b"working"],
        [C02, CLIENT_FINAL_02, b"tomo.worker", b"done"],
    ]
    old = wire.open(zmq.REQ, "frontend")
    old.send_multipart([C01, b"tomo.worker", b"stop"])
    assert heard(old) == [C01, b"tomo.worker", b"got", b"stop", b"working", b"done"]
    working.join()


def test_its_worker_stays_on_the_list_by_heartbeats_alone(broker, wire):
    working = Working(broker, "tomo.idle")
    witness = wire.open(zmq.DEALER, "backend")
    witness.send_multipart([b"MDPW02", b"\x01", b"tomo.witness"])
    for _ in range(5):  # each round is one interval: longer than three
        witness.send_multipart(heard(witness))
    wait_until(wire, b"tomo.idle", b"200")
    client = wire.open(zmq.REQ, "frontend")
    client.send_multipart([C01, b"tomo.idle", b"stop"])
    assert heard(client)[-1] == b"done"
    working.join()


def test_its_worker_is_told_to_go_when_its_service_is_reserved(broker):
    with zmq.Context() as context:
        worker = majortomo.Worker(broker.endpoints["backend"], "mmi.service", zmq_context=context)
        worker.connect()
        with pytest.raises(majortomo.error.Disconnected):
            worker.wait_for_request()
