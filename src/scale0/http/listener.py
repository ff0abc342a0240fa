"""The door: connections, with a limit on how many and on how slow.

Lives here: what uvicorn leaves open: a head that never ends, an answer that nobody reads, connections without number.
Never here: a request. Invariant: a connection that does nothing for us is closed by us.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_SECONDS: Final = 10.0
"""How long a request's head may take, from the connection or the answer before it."""
MAX_HEAD_BYTES: Final = 32 * 1024
"""Of a request line with its headers."""
SEND_SECONDS: Final = 20.0
"""How long a client may read nothing of what waits for it."""
MAX_CONNECTIONS: Final = 512
MAX_ADDRESS_CONNECTIONS: Final = 384
"""Of one address: others still find a place."""
TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-type: application/json\r\n"
)
TOO_LARGE_BODY: Final = (
    b'{"status":431,"code":431,"message":"the head of the request is too long","next":"send fewer or shorter headers"}'
)


class HttpListener(HttpToolsProtocol):
    """One connection."""

    _head_timer: asyncio.TimerHandle | None = None
    _send_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _in_head = False
    _answering: RequestResponseCycle | None = None
    _begun = 0
    """Requests that have begun here."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take it in, if there is room."""
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        others: Any = self.connections
        same = sum(1 for one in others if getattr(one, "client", None) and one.client[0] == address)
        if len(self.connections) > MAX_CONNECTIONS or same > MAX_ADDRESS_CONNECTIONS:
            transport.abort()
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, for requests that came before the last one, too."""
        self._cancel()
        self.pipeline.clear()
        if self._answering is not None:
            self._answering.disconnected = True
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes; those of a head are counted."""
        before = self._begun
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            return
        if self._head_timer is None:
            self._expect_head()
        # Of a head that began within these bytes we do not know how many are its own; the next ones all are.
        self._head_bytes = self._head_bytes + len(data) if self._begun == before else 0
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse()

    def on_message_begin(self) -> None:
        """A head begins."""
        self._in_head = True
        self._begun += 1
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A head has ended."""
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
        """A piece of a body; one whose head was refused has nobody to go to."""
        if self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is whole."""
        if self.cycle is not None:
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def pause_writing(self) -> None:
        """The client does not read: it has so long."""
        super().pause_writing()
        if self._send_timer is None:
            self._send_timer = self.loop.call_later(SEND_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads again."""
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

    def _cancel(self) -> None:
        for timer in (self._head_timer, self._send_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._send_timer = None
