"""A connection reads nothing while requests wait for earlier responses."""

# Promise: HTTP-5
from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from scale0.http.listener import MAX_PIPELINED, HttpListener

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Connection(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.is_paused = False
        self.is_closed = False
        self.written = b""

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


class Requests:
    """An application whose responses a test releases one by one."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        await receive()
        allowed = asyncio.Event()
        self.begun.put_nowait(allowed)
        await allowed.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})


def opened(app: Any) -> tuple[HttpListener, Connection]:
    connection = Connection()
    listener = HttpListener(uvicorn.Config(app, ws="none", log_config=None), ServerState(), {})
    assert listener.admit(None, ("127.0.0.1", 1))  # type: ignore[arg-type]  # no socket: nothing is aborted here
    listener.connection_made(connection)
    return listener, connection


async def test_nothing_is_read_while_requests_wait():
    app = Requests()
    listener, connection = opened(app)
    listener.data_received(GET * 3)
    for waiting in (2, 1):
        first = await app.begun.get()
        assert (len(listener.pipeline), connection.is_paused) == (waiting, True)
        first.set()
    last = await app.begun.get()
    assert (len(listener.pipeline), connection.is_paused) == (0, False)
    last.set()
    await asyncio.gather(*listener.tasks)
    assert connection.written.count(b" 204 ") == 3
    listener.connection_lost(None)


async def test_requests_beyond_the_limit_are_not_parsed():
    app = Requests()
    listener, connection = opened(app)
    listener.data_received(GET * 10_000)
    assert len(listener.pipeline) == MAX_PIPELINED + 1
    listener.data_received(GET * 10_000)
    assert len(listener.pipeline) == MAX_PIPELINED + 1
    for _ in range(MAX_PIPELINED + 1):
        (await app.begun.get()).set()
    while listener.tasks:
        await asyncio.gather(*listener.tasks)
    assert connection.written.count(b" 204 ") == MAX_PIPELINED + 1
    assert connection.written.count(b" 429 ") == 1
    assert connection.is_closed
    listener.connection_lost(None)
