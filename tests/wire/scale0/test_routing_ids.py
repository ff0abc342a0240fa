"""Routing ids that peers choose, protocols that are none, and connections that never finish: written as raw bytes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.fakes import zmtp_bytes as zmtp
from tests.wire.scale0.conftest import own_broker, token_of
from tests.wire.scale0.raw import unique

PING = [b"SCALE0/1", b"REQUEST", b'{"service":"scale0.ping","id":"1"}']


def answers(made: Any) -> bool:
    made.sendall(zmtp.message(PING))
    reply = zmtp.read_message(made)
    return reply[:2] == [b"SCALE0/1", b"REPLY"] or reply[1] == b"BATCH"


# Promise: ZMTP-4
def test_a_routing_id_that_libzmq_would_generate_ends_nothing(tmp_path):
    """libzmq counts from a number that nobody seeds: with ids from the whole neighbourhood taken, its next own id was
    one of them, and the assertion ended the process."""
    with own_broker(tmp_path) as (broker, net), zmtp.Dialer(broker.endpoints["frontend"]) as dialer:
        first = net("frontend")
        first.say("REQUEST", {"service": "scale0.ping", "id": "1"})
        assert first.hear().command == "REPLY"
        start = 0x6B8B4567
        taken = [dialer.connect(b"\0" + (start + n).to_bytes(4, "big")) for n in range(200)]
        assert answers(taken[0])
        for _ in range(100):
            plain = dialer.connect()
            assert answers(plain)
        first.say("REQUEST", {"service": "scale0.ping", "id": "2"})
        assert first.hear().command == "REPLY"


# Promise: ZMTP-4
def test_two_clients_with_one_routing_id_get_each_their_own_answers(tmp_path):
    with own_broker(tmp_path) as (broker, net), zmtp.Dialer(broker.endpoints["frontend"]) as dialer:
        service = unique("s")
        backend = net.backend(service, slots=4)
        one = dialer.connect(b"same")
        two = dialer.connect(b"same")
        for made, body in ((one, b"of one"), (two, b"of two")):
            made.sendall(
                zmtp.message([b"SCALE0/1", b"REQUEST", json.dumps({"service": service, "id": "1"}).encode(), body])
            )
        for _ in range(2):
            asked = backend.hear_until("REQUEST")
            backend.say("REPLY", {"id": asked.options["id"]}, asked.bodies[0])
        assert zmtp.read_message(one)[-1] == b"of one"
        assert zmtp.read_message(two)[-1] == b"of two"


# Promise: ZMTP-4
def test_an_answer_for_a_client_that_is_gone_reaches_no_later_client_with_its_id(tmp_path):
    with own_broker(tmp_path) as (broker, net), zmtp.Dialer(broker.endpoints["frontend"]) as dialer:
        service = unique("s")
        backend = net.backend(service)
        dead = dialer.connect(b"same")
        options = json.dumps({"service": service, "id": "1"}).encode()
        dead.sendall(zmtp.message([b"SCALE0/1", b"REQUEST", options, b"secret"]))
        asked = backend.hear_until("REQUEST")
        dead.close()
        heir = dialer.connect(b"same")
        assert answers(heir)
        backend.say("REPLY", {"id": asked.options["id"]}, b"secret")
        heir.sendall(zmtp.message(PING))
        assert b"secret" not in b"".join(zmtp.read_message(heir))


@pytest.mark.parametrize(
    "data",
    [
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1:5700\r\nContent-Length: 5\r\n\r\n\x05\x00abcd",
        b"\x01\x00\x09\x00SCALE0/1",
        zmtp.greeting(version=b"\x02\x00"),
        zmtp.greeting(mechanism=b"CURVE"),
    ],
    ids=["HTTP", "ZMTP 1", "ZMTP 2", "CURVE"],
)
# Promise: ZMTP-2
def test_what_is_not_zmtp_3_is_disconnected(broker, data):
    with zmtp.Dialer(broker.endpoints["frontend"]) as dialer:
        made = dialer.dial()
        made.sendall(data)
        assert zmtp.ends(made)
        assert answers(dialer.connect())


# Promise: ZMTP-4
def test_no_list_and_no_log_shows_a_routing_id(tmp_path):
    with (
        own_broker(tmp_path, error_client_limit=2) as (broker, net),
        zmtp.Dialer(broker.endpoints["frontend"]) as dialer,
    ):
        made = dialer.connect(b"hidden-id")
        for _ in range(5):
            made.sendall(zmtp.message([b"SCALE0/1", b"NONSENSE"]))
        listed = net("frontend").manage("list_error_clients", token_of(broker))
        assert len(msgspec.json.decode(listed.bodies[0])["items"]) == 1
        for shown in (listed.bodies[0], broker.log.read_bytes()):
            assert b"hidden-id" not in shown
            assert b"hidden-id".hex().encode() not in shown
