"""HTTP connections with the limits that uvicorn lacks: on the time and size of a request's head, on the bytes that
surround a body, on the requests that wait for earlier responses, on the time that a client may leave a response unread,
and on the number of connections, which counts those in a TLS handshake."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from typing import Any, Final

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from scale0.kernel.errors import Scale0Error

HEAD_SECONDS: Final = 10.0
"""How long a request's head may take, from the accept, with the TLS handshake, or from its first byte."""
MAX_HEAD_BYTES: Final = 32 * 1024
"""Of the request line and the headers; also of what may arrive without a part of a body, such as one trailer."""
MAX_PIPELINED: Final = 8
"""Requests of one connection that may wait for earlier responses; browsers send none before the response."""
SEND_SECONDS: Final = 20.0
"""How long a client may leave a response unread."""
MAX_CONNECTIONS: Final = 512
MAX_ADDRESS_CONNECTIONS: Final = 384
"""Of one address, so that others can still connect."""
TOO_LARGE: Final = (
    b'{"status":431,"code":431,"message":"the request headers are too long","next":"send fewer or shorter headers"}'
)
TRAILERS: Final = (
    b'{"status":431,"code":431,"message":"trailers and long chunk headers are refused","next":"send headers only"}'
)
TOO_MANY: Final = (
    b'{"status":429,"code":429,"message":"more than %d requests wait for earlier responses of this connection",'
    b'"next":"wait for a response before the next request"}'
) % MAX_PIPELINED


class Refused(Scale0Error):
    """The parser drops what it was given and did not parse."""


class ReadFlow(FlowControl):
    """Reads nothing while requests wait for earlier responses."""

    def __init__(self, transport: asyncio.Transport, waiting: deque[Any]) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        if not self._waiting:
            super().resume_reading()


async def answer_too_many(_scope: Any, _receive: Any, send: Any) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(TOO_MANY)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 429, "headers": headers})
    await send({"type": "http.response.body", "body": TOO_MANY, "more_body": False})


class HttpListener(HttpToolsProtocol):
    opening: asyncio.Task[None] | None = None
    """Kept here, because the loop keeps no tasks."""
    _raw: socket.socket | None = None
    _head_timer: asyncio.TimerHandle | None = None
    _send_timer: asyncio.TimerHandle | None = None
    _held_bytes = 0
    """Received since the last event of the parser, which may hold them."""
    _in_head = False
    _in_body = False
    _is_refused = False
    _current_cycle: RequestResponseCycle | None = None
    _events = 0
    """Heads, parts of bodies and ends of requests that the parser has reported."""

    def admit(self, raw: socket.socket, address: tuple[str, int]) -> bool:
        """Count an accepted connection, whose TLS handshake has not begun; False if there is no room for it. The oldest
        connections whose handshake or head is incomplete make room."""
        others: Any = self.connections
        if sum(1 for one in others if one.client[0] == address[0]) >= MAX_ADDRESS_CONNECTIONS:
            return False
        if len(others) >= MAX_CONNECTIONS - 1:  # with the last one, requests are answered with 503
            expected = [one for one in others if one._head_timer is not None]
            if expected:
                oldest = min(expected, key=lambda one: one._head_timer.when())
                others.discard(oldest)
                oldest.abort()
            elif len(others) >= MAX_CONNECTIONS:
                return False
        self._raw, self.client = raw, address
        others.add(self)
        self._expect_head()
        return True

    def abort(self) -> None:
        if self.scheme is not None:  # the connection was made
            self.transport.abort()
        elif self._raw is not None:
            with contextlib.suppress(OSError):  # it has ended
                self._raw.shutdown(socket.SHUT_RDWR)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        is_counted = self in self.connections
        super().connection_made(transport)
        self.flow = ReadFlow(transport, self.pipeline)
        if not is_counted:  # it had to make room
            transport.abort()

    def shutdown(self) -> None:
        if self.scheme is None:
            self.abort()
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timers()
        self.pipeline.clear()
        if self._current_cycle is not None:
            self._current_cycle.disconnected = True
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_ending():
            return
        before = self._events
        super().data_received(data)
        if self._is_ending():
            return
        is_silent = self._events == before
        # An event may have occurred in the middle of these bytes: count from the next ones on.
        self._held_bytes = self._held_bytes + len(data) if is_silent else 0
        if self._held_bytes > MAX_HEAD_BYTES:
            self._refuse(TRAILERS if self._in_body else TOO_LARGE)
        elif self._head_timer is None and (self._in_head or (is_silent and self._is_idle())):
            self._expect_head()  # also after empty lines, which have ended uvicorn's timer

    def on_message_begin(self) -> None:
        self._events += 1
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            self._refuse(TRAILERS)
            raise Refused("a trailer")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._events += 1
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._refuse(TOO_LARGE)
            raise Refused("a head that is too large")
        if len(self.pipeline) >= MAX_PIPELINED:
            self._is_refused = True
            self.app = answer_too_many  # in its turn, and nothing after it
            super().on_headers_complete()
            raise Refused("too many requests that wait")
        self._in_body = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._events += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._events += 1
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self.flow.resume_reading()  # uvicorn tries before it takes the last request that waits

    def send_400_response(self, msg: str) -> None:
        if self._is_refused:
            return  # it has its answer
        if self._may_answer():
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._current_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._send_timer is None:
            self._send_timer = self.loop.call_later(SEND_SECONDS, self.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.abort)

    def _is_ending(self) -> bool:
        return self._is_refused or self.transport.is_closing()

    def _is_idle(self) -> bool:
        """Whether no request is incomplete, and no response is expected."""
        last: RequestResponseCycle | None = self.cycle
        return not self._in_body and (last is None or last.response_complete)

    def _may_answer(self) -> bool:
        """Whether a response may be written now: not inside another one, and not in place of an earlier one."""
        current = self._current_cycle
        if current is None or current.response_complete:
            return True
        return self._in_body and current is self.cycle and not current.response_started

    def _refuse(self, body: bytes) -> None:
        """Answer if possible, and close the connection."""
        self._is_refused = True
        if self._may_answer():
            head = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n"
            head += b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
            self.transport.write(head + body)
        self.transport.close()

    def _cancel_timers(self) -> None:
        for timer in (self._head_timer, self._send_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._send_timer = None
