"""HTTP connections with the limits that uvicorn lacks: on the time and size of a request's head, on the time that a
client may leave a response unread, and on the number of connections."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_SECONDS: Final = 10.0
"""How long a request's head may take, from the connection or the previous response."""
MAX_HEAD_BYTES: Final = 32 * 1024
"""Of the request line and the headers."""
SEND_SECONDS: Final = 20.0
"""How long a client may leave a response unread."""
MAX_CONNECTIONS: Final = 512
MAX_ADDRESS_CONNECTIONS: Final = 384
"""Of one address, so that others can still connect."""
TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-type: application/json\r\n"
)
TOO_LARGE_BODY: Final = (
    b'{"status":431,"code":431,"message":"the request headers are too long","next":"send fewer or shorter headers"}'
)


class HttpListener(HttpToolsProtocol):
    _head_timer: asyncio.TimerHandle | None = None
    _send_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _in_head = False
    _current_cycle: RequestResponseCycle | None = None
    _begun = 0
    """Number of requests that have begun on this connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        others: Any = self.connections
        same = sum(1 for one in others if getattr(one, "client", None) and one.client[0] == address)
        if len(self.connections) > MAX_CONNECTIONS or same > MAX_ADDRESS_CONNECTIONS:
            transport.abort()
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timers()
        self.pipeline.clear()
        if self._current_cycle is not None:
            self._current_cycle.disconnected = True
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self._begun
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            return
        if self._head_timer is None:
            self._expect_head()
        # The head may have begun in the middle of these bytes: count from the next ones on.
        self._head_bytes = self._head_bytes + len(data) if self._begun == before else 0
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._begun += 1
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._refuse()
        elif not self.transport.is_closing():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle is not None:  # None: the head was refused
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.cycle is not None:
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._current_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._send_timer is None:
            self._send_timer = self.loop.call_later(SEND_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _refuse(self) -> None:
        length = f"content-length: {len(TOO_LARGE_BODY)}\r\n\r\n".encode()
        self.transport.write(TOO_LARGE + length + TOO_LARGE_BODY)
        self.transport.close()

    def _cancel_timers(self) -> None:
        for timer in (self._head_timer, self._send_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._send_timer = None
