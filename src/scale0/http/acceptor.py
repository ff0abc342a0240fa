"""Accepts HTTP connections one by one, so that they are counted and limited before a TLS handshake.

uvicorn learns of a TLS connection only when its handshake is complete.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

from scale0.http.listener import HttpListener
from scale0.transport.edge.tcp_listener import ACCEPTS, FULL, PAUSE_SECONDS


class Acceptor:
    def __init__(
        self, listener: socket.socket, context: ssl.SSLContext | None, factory: Callable[[], HttpListener]
    ) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._listener: Final = listener
        self._context: Final = context
        self._factory: Final = factory
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)

    def _resume(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                raw, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in FULL:  # otherwise the listening socket would be readable all the time
                    self._loop.remove_reader(self._listener)
                    self._pause = self._loop.call_later(PAUSE_SECONDS, self._resume)
                    return
                continue  # the client disconnected before the accept
            connection = self._factory()
            if connection.admit(raw, address[:2]):
                connection.opening = self._loop.create_task(self._open(connection, raw))
            else:
                raw.close()

    async def _open(self, connection: HttpListener, raw: socket.socket) -> None:
        raw.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(lambda: connection, raw, ssl=self._context)
        except OSError as error:  # a handshake that failed, or took too long
            raw.close()
            connection.connection_lost(error)
