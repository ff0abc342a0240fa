"""A reader that never reads: it is let go, memory stays bounded, and nobody else waits for it (PROTOCOL 5)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import psutil
import pytest
import zmq

from tests.fakes import zmtp_bytes as zmtp
from tests.fakes.waiting import until
from tests.wire.scale0.conftest import own_broker, token_of
from tests.wire.scale0.raw import Raw, Raws, unique

pytestmark = pytest.mark.processes

MIB = 1 << 20
ALLOWED = 16 * MIB
"""What may wait for one client."""


def deaf(net: Raws, socket: str) -> Raw:
    """A connection that reads as little as libzmq lets it."""
    raw = net(socket)
    raw.socket.close(linger=0)
    raw.socket = net.context.socket(zmq.DEALER)
    raw.socket.set(zmq.LINGER, 0)
    raw.socket.set(zmq.RCVHWM, 1)
    raw.socket.set(zmq.RCVBUF, 65_536)
    raw.socket.connect(net.endpoints[socket])
    return raw


def overflowed(admin: Raw, auth: dict[str, str]) -> bool:
    counters = admin.manage("status", auth).body["counters"]
    return bool(counters.get("clients_overflowed"))


def feed_until(done: Callable[[], bool], backend: Raw, body: bytes, seconds: float = 20) -> None:
    """Answer every request with a large body until something is true."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "a client that never reads must be let go"
        heard = backend.hear_or_none(0.02)
        if heard is not None and heard.command == "REQUEST":
            backend.say("REPLY", {"id": heard.options["id"]}, body)


# Promise: WIRE-6
@pytest.mark.parametrize("size", [4 * MIB, 256 * 1024, 16_384], ids=["4 MiB", "256 KiB", "16 KiB"])
def test_a_frontend_that_never_reads_is_let_go_and_costs_little(tmp_path, size):
    with own_broker(tmp_path, default_heartbeat_interval=60) as (broker, net):
        service, auth = unique("big"), token_of(broker)
        backend, admin, caller = net.backend(service, slots=20), net.frontend(), net.frontend()
        never = deaf(net, "frontend")
        process = psutil.Process(broker.pid)
        before = peak = process.memory_info().rss
        slowest = 0.0
        for number in range(max(200, 60 * MIB // size)):
            never.say("REQUEST", {"service": service, "id": number, "timeout": 60})

        def done() -> bool:
            nonlocal peak, slowest
            peak = max(peak, process.memory_info().rss)
            start = time.monotonic()
            assert caller.request("scale0.ping").command == "REPLY"
            slowest = max(slowest, time.monotonic() - start)
            return overflowed(admin, auth)

        feed_until(done, backend, b"x" * size)
        assert peak - before < 16 * min(size, 4 * MIB) + 4 * ALLOWED + 64 * MIB
        assert slowest < 1.0
        caller.say("REQUEST", {"service": service, "id": 1})

        def is_answered() -> bool:
            asked = backend.hear_or_none(0.01)  # a request of the client that is gone, or of this one
            if asked is not None and asked.command == "REQUEST":
                backend.say("REPLY", {"id": asked.options["id"]}, b"small")
            return caller.hear_or_none(0.05) is not None

        until(is_answered)


# Promise: WIRE-6
def test_the_connection_of_a_client_that_never_reads_is_closed(tmp_path):
    """It was forgotten and stayed open: its next request was accepted, and the answers before were lost silently."""
    with (
        own_broker(tmp_path, default_heartbeat_interval=60) as (broker, net),
        zmtp.Dialer(broker.endpoints["frontend"]) as dialer,
    ):
        service, auth = unique("big"), token_of(broker)
        backend, admin, never = net.backend(service, slots=100), net.frontend(), dialer.connect()
        for number in range(100):
            options = json.dumps({"service": service, "id": number}).encode()
            never.sendall(zmtp.message([b"SCALE0/1", b"REQUEST", options]))
        feed_until(lambda: overflowed(admin, auth), backend, b"x" * 2 * MIB)
        never.settimeout(5)
        assert zmtp.ends(never)


# Promise: WIRE-6
def test_a_backend_that_never_reads_is_let_go_and_its_work_moves(tmp_path):
    with own_broker(tmp_path, default_heartbeat_interval=60) as (broker, net):
        service, auth = unique("big"), token_of(broker)
        never = deaf(net, "backend")
        never.say("CHECKCONFIG", {"identity": "never"})
        never.say("READY", {"services": [service], "config_version": 1, "slots": 1_000})
        caller, admin = net.frontend(), net.frontend()
        process = psutil.Process(broker.pid)
        before = process.memory_info().rss
        end = time.monotonic() + 20
        sent = 0
        while not overflowed(admin, auth):
            assert time.monotonic() < end
            caller.say("REQUEST", {"service": service, "id": sent, "retry": True, "timeout": 60}, b"x" * MIB)
            sent += 1
        # Requests beyond the limit of waiting bytes are refused at once, so before the answer to a later ping.
        caller.say("REQUEST", {"service": "scale0.ping", "id": "ping"})
        while (refused := caller.hear()).options["id"] != "ping":
            assert refused.options["code"] == 429
            sent -= 1
        assert sent > 16
        # Few slots: all of these at once could be more than a burst to a busy reader, which would be disconnected.
        backend = net.backend(service, slots=8)
        for _ in range(sent):
            backend.answer(b"moved")
        assert {caller.hear().bodies[0] for _ in range(sent)} == {b"moved"}
        assert process.memory_info().rss - before < 200 * MIB


def test_a_backend_that_reads_is_not_let_go_for_a_burst_of_large_requests(tmp_path):
    with own_broker(tmp_path, default_heartbeat_interval=60) as (broker, net):
        service = unique("burst")
        backend, caller = net.backend(service, slots=100), net.frontend()
        for number in range(50):
            caller.say("REQUEST", {"service": service, "id": number, "timeout": 60}, b"x" * MIB)
        for _ in range(50):
            backend.answer(b"y" * MIB)
        assert {caller.hear().command for _ in range(50)} == {"REPLY"}
        assert not overflowed(caller, token_of(broker))
