"""The connections that a broker makes to others: over restarts, hostile peers and wrong keys."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import pytest
import zmq

from scale0.broker.edge import dialed_connections
from scale0.broker.edge.dialed_connections import DialedConnections
from scale0.broker.edge.subscriber_socket import SubscriberSocket
from scale0.kernel.limits import Limits
from scale0.transport.core.zmtp import DEALER, NullMechanism
from tests.fakes import zmtp_bytes
from tests.fakes.ports import free_port

pytestmark = pytest.mark.processes

SECONDS = 20.0


class Reader:
    """Reads connections as a runner does: whenever their descriptor is ready."""

    def __init__(self, made: DialedConnections | SubscriberSocket) -> None:
        self.made = made
        self.received: list[object] = []
        asyncio.get_running_loop().add_reader(made.descriptor, self.read)

    def read(self) -> None:
        self.received += self.made.drain(100)

    async def until(self, done: Callable[[], object]) -> None:
        async with asyncio.timeout(SECONDS):
            while not done():  # noqa: ASYNC110  # it waits for another process or the kernel
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def dialer() -> AsyncIterator[tuple[DialedConnections, Reader]]:
    made = DialedConnections(DEALER, Limits(), lambda _: NullMechanism(DEALER, is_client=True))
    try:
        yield made, Reader(made)
    finally:
        asyncio.get_running_loop().remove_reader(made.descriptor)
        made.close_all()


def test_it_connects_again_and_sends_nothing_late() -> None:
    async def story() -> None:
        endpoint = f"tcp://127.0.0.1:{free_port()}"
        with zmq.Context() as context:
            async with dialer() as (made, reader):
                made.open(endpoint)
                assert not made.send(endpoint, [b"too early"])
                for number in (b"1", b"2"):
                    with context.socket(zmq.ROUTER) as router:
                        router.set(zmq.LINGER, 0)
                        router.bind(endpoint)
                        await reader.until(lambda: made.send(endpoint, [b"hello", number]))  # noqa: B023
                        made.flush()
                        await reader.until(lambda: router.poll(0))
                        routing_id, *frames = router.recv_multipart()
                        assert frames == [b"hello", number]
                        router.send_multipart([routing_id, b"welcome", number])
                        await reader.until(lambda: reader.received)
                        assert reader.received.pop() == (endpoint, [b"welcome", number])
                    await reader.until(lambda: not made.send(endpoint, [b"lost"]))

    asyncio.run(story())


def test_a_peer_that_never_completes_its_handshake_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialed_connections, "HANDSHAKE_SECONDS", 0.1)
    monkeypatch.setattr(dialed_connections, "SWEEP_SECONDS", 0.05)

    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.setblocking(False)
            loop = asyncio.get_running_loop()
            async with dialer() as (made, _):
                made.open(f"tcp://127.0.0.1:{listening.getsockname()[1]}")
                for _ in range(3):
                    connection, _ = await asyncio.wait_for(loop.sock_accept(listening), SECONDS)
                    with connection:
                        while await asyncio.wait_for(loop.sock_recv(connection, 1_000), SECONDS):
                            pass

    asyncio.run(story())


def test_a_peer_that_does_not_read_counts_as_gone_and_uses_bounded_memory() -> None:
    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            endpoint = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
            async with dialer() as (made, reader):
                made.open(endpoint)
                connection, _ = listening.accept()
                with connection:
                    connection.sendall(zmtp_bytes.greeting() + zmtp_bytes.ready(b"ROUTER"))
                    await reader.until(lambda: made.send(endpoint, [b"x"]))
                    sent = 0
                    while made.send(endpoint, [b"x" * 1_000_000]):
                        made.flush()
                        sent += 1
                        assert sent < 100
                    assert sent * 1_000_000 >= dialed_connections.MAX_UNSENT_BYTES

    asyncio.run(story())


@pytest.mark.parametrize("endpoint", ["ipc:///tmp/x", "tcp://host", "tcp://no-such-host.invalid:5702"])
def test_an_endpoint_that_cannot_be_fails_no_turn(endpoint: str) -> None:
    async def story() -> None:
        ended: list[str] = []
        async with dialer() as (made, reader):
            made.on_end = lambda where, _cause: ended.append(where)
            made.open(endpoint)
            assert not made.send(endpoint, [b"x"])
            if endpoint.endswith(":5702"):
                await reader.until(lambda: ended == [endpoint])
            made.close(endpoint)
            assert endpoint not in made

    asyncio.run(story())


def test_a_subscriber_receives_what_libzmq_publishes() -> None:
    async def story() -> None:
        endpoint = f"tcp://127.0.0.1:{free_port()}"
        with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
            publisher.bind(endpoint)
            made = SubscriberSocket("config-sub", [endpoint], Limits())
            reader = Reader(made)
            await reader.until(lambda: publisher.poll(0))
            assert publisher.recv() == b"\x01"
            publisher.send_multipart([b"config", b"1"])
            await reader.until(lambda: reader.received)
            assert reader.received == [[b"", b"config", b"1"]]
            asyncio.get_running_loop().remove_reader(made.descriptor)
            made.close()

    asyncio.run(story())
