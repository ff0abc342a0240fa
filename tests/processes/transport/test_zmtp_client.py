"""The connecting end of ZMTP over TCP: beside libzmq's own sockets, and servers that do not behave."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import zmq
import zmq.auth.thread

from scale0.kernel.limits import Limits
from scale0.transport.core.zmtp import DEALER, NullMechanism
from scale0.transport.edge.client_socket import ClientSocket
from scale0.transport.edge.curve_certificates import CurveCertificate, client_mechanism, new_certificate
from scale0.transport.edge.idle_sockets import IdleSockets
from scale0.transport.edge.zmtp_client import PING_SECONDS, PONG_SECONDS, ZmtpClient, split_endpoint
from tests.fakes import zmtp_bytes
from tests.fakes.ports import free_port
from tests.fakes.waiting import until
from tests.processes.client.test_reviewed import SilentSession

pytestmark = pytest.mark.processes

SECONDS = 20.0


drivers: list[Driver] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Every connection of a test is closed after it."""
    yield
    while drivers:
        drivers.pop().connection.close()


class Driver:
    """A connection, and the loop of its owner."""

    def __init__(self, endpoint: str, own: CurveCertificate | None = None, server_key: str = "") -> None:
        mechanism = NullMechanism(DEALER, is_client=True) if own is None else client_mechanism(own, server_key)
        self.resolved = threading.Event()
        self.connection = ZmtpClient(endpoint, mechanism, Limits(), time.monotonic(), self.resolved.set)
        self.received: list[list[bytes]] = []
        drivers.append(self)

    def run(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + SECONDS
        while not done():
            assert time.monotonic() < end, "it did not happen in time"
            self.received += self.connection.receive(time.monotonic())
            if self.connection.end is not None:
                assert done(), f"the connection ended: {self.connection.end}"
                return
            if self.connection.descriptor < 0:
                self.resolved.wait(SECONDS)
                continue
            writes = [self.connection.descriptor] if self.connection.wants_write else []
            select.select([self.connection.descriptor], writes, [], 0.05)

    def until_end(self) -> str:
        self.run(lambda: self.connection.end is not None)
        assert self.connection.end is not None
        return self.connection.end.cause


@contextlib.contextmanager
def router(secret: str = "", accepted: str = "") -> Iterator[tuple[zmq.Socket[bytes], str]]:
    """libzmq's own ROUTER; with `secret` it uses CURVE, and accepts one public key."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as made, contextlib.ExitStack() as stack:
        made.set(zmq.LINGER, 0)
        if secret:
            authenticator = zmq.auth.thread.ThreadAuthenticator(context)
            authenticator.start()
            stack.callback(authenticator.stop)

            class Accepts:
                def callback(self, _domain: str, key: bytes) -> bool:
                    return key == accepted.encode()

            authenticator.configure_curve_callback("*", Accepts())
            made.set(zmq.CURVE_SERVER, 1)
            made.set(zmq.CURVE_SECRETKEY, secret.encode())
        port = made.bind_to_random_port("tcp://127.0.0.1")
        yield made, f"tcp://127.0.0.1:{port}"


@contextlib.contextmanager
def handmade_server() -> Iterator[tuple[Driver, socket.socket]]:
    """A connection whose handshake is complete and read, and the server's end of it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        driver = Driver(f"tcp://127.0.0.1:{listening.getsockname()[1]}")
        server, _ = listening.accept()
        with server:
            server.sendall(zmtp_bytes.greeting() + zmtp_bytes.ready(b"ROUTER"))
            driver.run(lambda: driver.connection.is_ready)
            zmtp_bytes.read(server, 64)
            while zmtp_bytes.read_frame(server)[0] != 4:
                pass
            yield driver, server


def talks(driver: Driver, server: zmq.Socket[bytes]) -> None:
    """Messages of all sizes arrive in both directions."""
    messages = [[b"a", b""], [b"x" * 255, b"y" * 256], [b"z" * 3_000_000]]
    for frames in messages:
        driver.connection.send(frames)
    received: list[list[bytes]] = []

    def read() -> bool:
        driver.connection.flush()
        while server.poll(0):
            received.append(server.recv_multipart())
        return len(received) == len(messages)

    driver.run(read)
    assert [frames for _, *frames in received] == messages
    for frames in received:
        server.send_multipart(frames)
    driver.run(lambda: len(driver.received) == len(messages))
    assert driver.received == messages


# Promise: ZMTP-1
def test_it_talks_to_a_router_of_libzmq() -> None:
    with router() as (server, endpoint):
        driver = Driver(endpoint)
        talks(driver, server)
        driver.connection.close()


# Promise: ZMTP-1
def test_it_talks_to_a_router_of_libzmq_with_curve() -> None:
    own, theirs = new_certificate(), new_certificate()
    with router(theirs.secret, own.public) as (server, endpoint):
        driver = Driver(endpoint, own, theirs.public)
        talks(driver, server)
        driver.connection.close()


def test_why_a_connection_with_keys_cannot_be_made_is_known() -> None:
    own, theirs, other = new_certificate(), new_certificate(), new_certificate()
    with router(theirs.secret, own.public) as (_, endpoint):
        assert Driver(endpoint, other, theirs.public).until_end() == "refused"
        assert Driver(endpoint, own, other.public).until_end() == "handshake"
        # libzmq may end the connection before it has sent its mechanism.
        assert Driver(endpoint).until_end() in ("mechanism", "handshake")
    with router() as (_, endpoint):
        assert Driver(endpoint, own, theirs.public).until_end() in ("mechanism", "handshake")


def test_nothing_that_was_sent_before_the_handshake_was_complete_has_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        driver = Driver(f"tcp://127.0.0.1:{listening.getsockname()[1]}")
        driver.connection.send([b"secret"])
        server, _ = listening.accept()
        with server:
            driver.run(lambda: driver.connection.receive(time.monotonic()) == [] and readable(server))
            assert b"secret" not in server.recv(1_000)
            assert not driver.connection.is_ready
        assert driver.until_end() == "handshake"


def readable(raw: socket.socket) -> bool:
    return bool(select.select([raw], [], [], 0)[0])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_on_which_nobody_listens_cannot_be_reached(host: str) -> None:
    assert Driver(f"tcp://{host}:{free_port()}").until_end() == "unreachable"


def test_a_name_that_does_not_exist_cannot_be_reached_and_blocks_nobody() -> None:
    began = time.monotonic()
    driver = Driver("tcp://no-such-host.invalid:5700")
    assert time.monotonic() - began < 1.0
    assert driver.until_end() == "unreachable"


def test_a_name_is_resolved_and_its_addresses_are_tried_one_after_the_other() -> None:
    with router() as (server, endpoint):
        port = split_endpoint(endpoint)[1]
        driver = Driver(f"tcp://localhost:{port}")  # perhaps ::1 first, where nobody listens
        talks(driver, server)


@pytest.mark.parametrize(
    "endpoint", ["ipc:///tmp/x", "tcp://host", "tcp://:1", "tcp://h:99999", "tcp://[::1:5", "inproc://a", "tcp://a:b"]
)
def test_an_endpoint_that_is_no_address_is_an_error(endpoint: str) -> None:
    with pytest.raises(ValueError, match="tcp://HOST:PORT"):
        split_endpoint(endpoint)


def test_a_server_that_does_not_read_blocks_nobody_and_gets_everything_later() -> None:
    with handmade_server() as (driver, server):
        frames, count = [b"x" * 1_000_000], 20
        for _ in range(count):
            driver.connection.send(frames)
            assert driver.connection.flush()
        assert driver.connection.wants_write
        wanted, found = count * len(zmtp_bytes.message(frames)), 0

        def read() -> bool:
            nonlocal found
            while found < wanted and readable(server):
                found += len(server.recv(1 << 20))
            return found == wanted

        driver.run(read)
        assert not driver.connection.wants_write


def test_what_arrived_before_the_end_is_delivered_before_the_end() -> None:
    with handmade_server() as (driver, server):
        server.sendall(zmtp_bytes.message([b"goodbye"]))
    assert driver.until_end() == "broken"
    assert driver.received == [[b"goodbye"]]


def test_an_end_right_behind_a_message_is_noticed_before_something_is_sent() -> None:
    """What is sent on a connection that has ended may or may not have run, for all that its caller knows."""
    with handmade_server() as (driver, server):
        server.sendall(zmtp_bytes.message([b"goodbye"]))
    assert driver.connection.receive(time.monotonic(), to_end=True) == [[b"goodbye"]]
    assert driver.connection.end is not None


def test_a_server_that_is_silent_gets_a_ping_and_then_counts_as_lost() -> None:
    with handmade_server() as (driver, server):
        due = driver.connection.deadline()
        assert due is not None
        assert driver.connection.receive(due) == []
        while (found := zmtp_bytes.read_frame(server)) != (4, b"\x04PING\x00\x00"):
            assert found[0] == 4
        assert driver.connection.end is None
        driver.connection.receive(due + PONG_SECONDS)
        assert driver.connection.end is not None
        assert driver.connection.end.cause == "broken"
        assert due - time.monotonic() > PING_SECONDS / 2


def test_a_socket_that_nobody_waits_for_is_read() -> None:
    """Its broker would otherwise take it for dead after its PING."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        session = SilentSession()
        received: list[list[bytes]] = []
        session.receive = lambda frames, now, out: received.append(frames)  # type: ignore[method-assign]
        client = ClientSocket(session, lambda _: None)
        endpoint = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        client.act(lambda _, effects: setattr(effects, "open", endpoint))
        idle = IdleSockets()
        idle.add(client)
        server, _ = listening.accept()
        with server:
            server.settimeout(SECONDS)
            server.sendall(zmtp_bytes.greeting() + zmtp_bytes.ready(b"ROUTER"))
            server.sendall(zmtp_bytes.message([b"pushed"]) + zmtp_bytes.command(b"PING", b"\x00\x00"))
            zmtp_bytes.read(server, 64)
            while zmtp_bytes.read_frame(server) != (4, b"\x04PONG"):
                pass
        until(lambda: received == [[b"pushed"]])
        client.close(lambda _now, _effects: None)
        until(lambda: not idle.is_running)
