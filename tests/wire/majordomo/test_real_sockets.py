"""A real broker process, and peers on raw ZeroMQ sockets by the letter of RFC 7, 8 and 18."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zmq

from tests.fakes.broker_process import broker_process
from tests.fakes.majordomo import (
    C01,
    C02,
    CLIENT_FINAL_02,
    CLIENT_PARTIAL_02,
    CLIENT_REQUEST_02,
    DISCONNECT_01,
    DISCONNECT_02,
    EMPTY,
    FINAL_02,
    HEARTBEAT_01,
    HEARTBEAT_02,
    PARTIAL_02,
    READY,
    REPLY_01,
    REQUEST,
    W01,
    W02,
)
from tests.wire.majordomo.conftest import INTERVAL, Wire, heard, heard_but, offered, wait_until

pytestmark = pytest.mark.processes


# Promise: MDP-1
def test_a_req_client_and_a_dealer_worker_of_01(wire):
    worker = wire.open(zmq.DEALER, "backend")
    worker.send_multipart([EMPTY, W01, READY, b"echo.01"])
    client = wire.open(zmq.REQ, "frontend")
    for round_ in (b"1", b"2", b"3"):
        client.send_multipart([C01, b"echo.01", b"ask", round_])
        empty, header, command, address, delimiter, *body = heard_but(worker, [EMPTY, W01, HEARTBEAT_01])
        assert (empty, header, command, delimiter, body) == (EMPTY, W01, REQUEST, EMPTY, [b"ask", round_])
        worker.send_multipart([EMPTY, W01, REPLY_01, address, EMPTY, b"answer", round_])
        assert heard(client) == [C01, b"echo.01", b"answer", round_]


def test_an_asynchronous_client_of_01_makes_the_empty_frame_itself(wire):
    worker = wire.open(zmq.DEALER, "backend")
    worker.send_multipart([EMPTY, W01, READY, b"dealer.01"])
    client = wire.open(zmq.DEALER, "frontend")
    client.send_multipart([EMPTY, C01, b"dealer.01", b"ask"])
    address = heard_but(worker, [EMPTY, W01, HEARTBEAT_01])[3]
    worker.send_multipart([EMPTY, W01, REPLY_01, address, EMPTY, b"answer"])
    assert heard(client) == [EMPTY, C01, b"dealer.01", b"answer"]


# Promise: MDP-1
def test_a_client_and_a_worker_of_02(wire):
    worker = wire.open(zmq.DEALER, "backend")
    worker.send_multipart([W02, READY, b"echo.02"])
    client = wire.open(zmq.DEALER, "frontend")
    for round_ in (b"1", b"2", b"3"):
        client.send_multipart([C02, CLIENT_REQUEST_02, b"echo.02", b"ask", round_])
        header, command, address, delimiter, *body = heard_but(worker, [W02, HEARTBEAT_02])
        assert (header, command, delimiter, body) == (W02, REQUEST, EMPTY, [b"ask", round_])
        worker.send_multipart([W02, PARTIAL_02, address, EMPTY, b"some"])
        assert heard(client) == [C02, CLIENT_PARTIAL_02, b"echo.02", b"some"]
        worker.send_multipart([W02, FINAL_02, address, EMPTY, b"rest", round_])
        assert heard(client) == [C02, CLIENT_FINAL_02, b"echo.02", b"rest", round_]


def test_a_client_of_01_gets_the_parts_of_a_worker_of_02_joined(wire):
    worker = wire.open(zmq.DEALER, "backend")
    worker.send_multipart([W02, READY, b"mixed"])
    client = wire.open(zmq.REQ, "frontend")
    client.send_multipart([C01, b"mixed", b"ask"])
    address = heard_but(worker, [W02, HEARTBEAT_02])[2]
    worker.send_multipart([W02, PARTIAL_02, address, EMPTY, b"a"])
    worker.send_multipart([W02, PARTIAL_02, address, EMPTY, b"b"])
    worker.send_multipart([W02, FINAL_02, address, EMPTY, b"c"])
    assert heard(client) == [C01, b"mixed", b"a", b"b", b"c"]


def test_a_client_of_02_reaches_a_worker_of_01(wire):
    worker = wire.open(zmq.DEALER, "backend")
    worker.send_multipart([EMPTY, W01, READY, b"old"])
    client = wire.open(zmq.DEALER, "frontend")
    client.send_multipart([C02, CLIENT_REQUEST_02, b"old", b"ask"])
    address = heard_but(worker, [EMPTY, W01, HEARTBEAT_01])[3]
    worker.send_multipart([EMPTY, W01, REPLY_01, address, EMPTY, b"answer"])
    assert heard(client) == [C02, CLIENT_FINAL_02, b"old", b"answer"]


# Promise: MDP-3
def test_a_majordomo_client_reaches_a_scale0_backend(wire):
    backend = wire.scale0_backend("own")
    for kind, request, reply in (
        (zmq.REQ, [C01, b"own"], [C01, b"own"]),
        (zmq.DEALER, [C02, CLIENT_REQUEST_02, b"own"], [C02, CLIENT_FINAL_02, b"own"]),
    ):
        client = wire.open(kind, "frontend")
        client.send_multipart([*request, b"ask"])
        magic, command, options, body = heard(backend)
        assert (magic, command, body) == (b"SCALE0/1", b"REQUEST", b"ask")
        backend.send_multipart([magic, b"REPLY", options, b"answer"])
        assert heard(client) == [*reply, b"answer"]


# Promise: MDP-3
def test_a_scale0_frontend_reaches_a_majordomo_worker(wire):
    worker = wire.open(zmq.DEALER, "backend")
    worker.send_multipart([W02, READY, b"theirs"])
    client = wire.open(zmq.DEALER, "frontend")
    client.send_multipart([b"SCALE0/1", b"REQUEST", b'{"service": "theirs", "id": 7}', b"ask"])
    address = heard_but(worker, [W02, HEARTBEAT_02])[2]
    worker.send_multipart([W02, PARTIAL_02, address, EMPTY, b"some"])
    worker.send_multipart([W02, FINAL_02, address, EMPTY, b"rest"])
    partial, reply = heard(client), heard(client)
    assert (partial[1], json.loads(partial[2])["id"], partial[3:]) == (b"PARTIAL", 7, [b"some"])
    assert (reply[1], json.loads(reply[2])["id"], reply[3:]) == (b"REPLY", 7, [b"rest"])


# Promise: MDP-1
@pytest.mark.parametrize(
    ("lead", "header", "beat"), [([EMPTY], W01, HEARTBEAT_01), ([], W02, HEARTBEAT_02)], ids=["0.1", "0.2"]
)
def test_heartbeats_keep_a_worker_and_silence_ends_it(wire, lead, header, beat):
    service = b"alive." + header
    worker = wire.open(zmq.DEALER, "backend")
    worker.send_multipart([*lead, header, READY, service])
    for _ in range(5):  # longer than the three intervals that silence may last
        assert heard(worker) == [*lead, header, beat]
        worker.send_multipart([*lead, header, beat])
    assert offered(wire, service) == b"200"
    wait_until(wire, service, b"404")


# Promise: MDP-5
@pytest.mark.parametrize(
    ("lead", "header", "beat", "bye"),
    [([EMPTY], W01, HEARTBEAT_01, DISCONNECT_01), ([], W02, HEARTBEAT_02, DISCONNECT_02)],
    ids=["0.1", "0.2"],
)
def test_out_of_turn_is_disconnect(wire, lead, header, beat, bye):
    stranger = wire.open(zmq.DEALER, "backend")
    stranger.send_multipart([*lead, header, beat])
    assert heard(stranger) == [*lead, header, bye]
    worker = wire.open(zmq.DEALER, "backend")
    worker.send_multipart([*lead, header, READY, b"mmi.service"])
    assert heard(worker) == [*lead, header, bye]
    twice = wire.open(zmq.DEALER, "backend")
    for _ in range(2):
        twice.send_multipart([*lead, header, READY, b"twice"])
    assert heard_but(twice, [*lead, header, beat]) == [*lead, header, bye]


def test_a_worker_that_leaves_in_order_is_off_the_list_at_once(wire):
    worker = wire.open(zmq.DEALER, "backend")
    worker.send_multipart([W02, READY, b"leaving"])
    wait_until(wire, b"leaving", b"200")
    worker.send_multipart([W02, DISCONNECT_02])
    wait_until(wire, b"leaving", b"404")


def test_a_request_of_a_worker_that_vanished_goes_to_the_next(wire):
    vanishing = wire.open(zmq.DEALER, "backend")
    vanishing.send_multipart([W02, READY, b"shaky"])
    client = wire.open(zmq.DEALER, "frontend")
    client.send_multipart([C02, CLIENT_REQUEST_02, b"shaky", b"ask"])
    assert heard_but(vanishing, [W02, HEARTBEAT_02])[1] == REQUEST
    vanishing.close()
    worker = wire.open(zmq.DEALER, "backend")
    worker.send_multipart([W02, READY, b"shaky"])
    while (frames := heard(worker)) == [W02, HEARTBEAT_02]:
        worker.send_multipart(frames)
    assert (frames[1], frames[4:]) == (REQUEST, [b"ask"])
    worker.send_multipart([W02, FINAL_02, frames[2], EMPTY, b"answer"])
    assert heard(client) == [C02, CLIENT_FINAL_02, b"shaky", b"answer"]


# Promise: MDP-2
def test_management_services_over_both_versions(wire):
    wire.scale0_backend("found")
    new = wire.open(zmq.DEALER, "frontend")
    for service, asked, code in (
        (b"mmi.service", b"found", b"200"),
        (b"mmi.service", b"lost", b"404"),
        (b"mmi.other", b"found", b"501"),
    ):
        new.send_multipart([C02, CLIENT_REQUEST_02, service, asked])
        assert heard(new) == [C02, CLIENT_FINAL_02, service, code]
        old = wire.open(zmq.REQ, "frontend")
        old.send_multipart([C01, service, asked])
        assert heard(old) == [C01, service, code]


def test_a_worker_meets_disconnect_after_the_broker_was_killed_and_registers_again(tmp_path: Path):
    with broker_process(tmp_path, mdp_heartbeat_interval=INTERVAL) as broker:
        wire = Wire(broker)
        try:
            worker = wire.open(zmq.DEALER, "backend")
            worker.send_multipart([W02, READY, b"again"])
            wait_until(wire, b"again", b"200")
            broker.kill9()
            broker.restart()
            assert offered(wire, b"again") == b"404"
            worker.send_multipart([W02, HEARTBEAT_02])
            assert heard_but(worker, [W02, HEARTBEAT_02]) == [W02, DISCONNECT_02]
            worker.close()
            worker = wire.open(zmq.DEALER, "backend")
            worker.send_multipart([W02, READY, b"again"])
            wait_until(wire, b"again", b"200")
        finally:
            wire.close()
