"""Raw ZeroMQ sockets by the letter of RFC 7, 8 and 18, and a real broker process for each file of tests."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
import zmq

from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.majordomo import C01

WAIT_MS = 10_000
"""Long enough for a busy machine; nothing waits so long when all is well."""
INTERVAL = 0.5
"""Of heartbeats, so that three missed are soon over."""


class Wire:
    """Sockets of one test, connected to one broker, and closed with it."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []

    def open(self, kind: int, socket_name: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.linger = 0
        self._sockets.append(socket)
        socket.connect(self.broker.endpoints[socket_name])
        return socket

    def close(self) -> None:
        for socket in self._sockets:
            socket.close(linger=0)
        self._context.term()

    def scale0_backend(self, service: str) -> zmq.Socket[bytes]:
        """A raw backend of Scale0's own, in the queue."""
        socket = self.open(zmq.DEALER, "backend")
        socket.send_multipart([b"SCALE0/1", b"CHECKCONFIG", b'{"config_type": "json"}'])
        version = json.loads(heard(socket)[2])["config_version"]
        ready = {"services": [service], "config_version": version, "heartbeat_interval": 60}
        socket.send_multipart([b"SCALE0/1", b"READY", json.dumps(ready).encode()])
        assert heard(socket)[1] == b"READYOK"
        return socket


def heard(socket: zmq.Socket[bytes]) -> list[bytes]:
    """The next message, which must come."""
    assert socket.poll(WAIT_MS), "nothing came"
    return socket.recv_multipart()


def heard_but(socket: zmq.Socket[bytes], beat: list[bytes]) -> list[bytes]:
    """The next message that is not a heartbeat."""
    while (frames := heard(socket)) == beat:
        pass
    return frames


def offered(wire: Wire, service: bytes) -> bytes:
    """What `mmi.service` says about a service."""
    client = wire.open(zmq.REQ, "frontend")
    client.send_multipart([C01, b"mmi.service", service])
    header, name, code = heard(client)
    assert (header, name) == (C01, b"mmi.service")
    return code


def wait_until(wire: Wire, service: bytes, code: bytes) -> None:
    """Ask again and again until it is so."""
    client = wire.open(zmq.REQ, "frontend")
    until = time.monotonic() + WAIT_MS / 1_000
    while time.monotonic() < until:
        client.send_multipart([C01, b"mmi.service", service])
        if heard(client)[2] == code:
            return
    raise AssertionError(f"mmi.service never said {code!r} of {service!r}")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("broker"), mdp_heartbeat_interval=INTERVAL) as running:
        yield running


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    out = Wire(broker)
    yield out
    out.close()
