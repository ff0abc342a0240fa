"""The ZAP handler (ZeroMQ RFC 27): libzmq asks it at each handshake whether a key may use a socket.

It runs in the broker's own loop and never blocks. Invariants: only the CURVE mechanism is accepted, only with a key
that is stored for the socket's domain, and the user id that libzmq attaches to messages is the public key.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

import zmq
import zmq.utils.z85

from scale0.kernel.log_context import about
from scale0.transport.edge.frames import receive_frames, send_frames

log = logging.getLogger("scale0.keys")

PLACE: Final = "inproc://zeromq.zap.01"
VERSION: Final = b"1.0"
CURVE: Final = b"CURVE"
ALLOWED: Final = b"200"
REFUSED: Final = b"400"
PARTS: Final = 9
"""Frames: routing id, delimiter, version, request id, domain, address, identity, mechanism and public key."""
TURN_HANDSHAKES: Final = 100
LOG_SECONDS: Final = 10.0
"""The shortest time between two log messages about refusals."""

Allows = Callable[[str, str], bool]
"""True if this domain admits this public key."""


class ZapAuthenticator:
    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], allows: Allows) -> None:
        self._allows = allows
        self._socket = context.socket(zmq.ROUTER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.set(zmq.RCVHWM, 0)
        self._socket.bind(PLACE)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.refused = 0
        self._last_logged = -LOG_SECONDS
        self._not_logged = 0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(int(self._socket.get(zmq.FD)), self._read)
        self._read()

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(int(self._socket.get(zmq.FD)))
        self._loop = None
        self._socket.close(linger=0)

    def _read(self) -> None:
        """Read until nothing is left: sending may consume the signal of further requests."""
        if self._loop is None:
            return
        try:
            for _ in range(TURN_HANDSHAKES):
                self._answer(receive_frames(self._socket))
        except zmq.Again:
            return
        self._loop.call_soon(self._read)

    def _answer(self, frames: list[bytes]) -> None:
        request = frames[3] if len(frames) > 3 else b""
        key = self._key_of(frames)
        status, text = (ALLOWED, b"OK") if key else (REFUSED, b"this key is not known here")
        try:
            send_frames(self._socket, [frames[0], b"", VERSION, request, status, text, key.encode(), b""])
        except zmq.ZMQError as error:
            log.warning("cannot answer a ZAP request: %s", error, extra=about())

    def _key_of(self, frames: list[bytes]) -> str:
        """The public key if it is admitted, or else blank."""
        if len(frames) != PARTS or frames[2] != VERSION or frames[7] != CURVE or len(frames[8]) != 32:
            return ""
        domain, address = frames[4].decode("ascii", "replace"), frames[5].decode("ascii", "replace")
        key = zmq.utils.z85.encode(frames[8]).decode()
        if self._allows(domain, key):
            return key
        self._log_refused(domain, address, key)
        return ""

    def _log_refused(self, domain: str, address: str, key: str) -> None:
        self.refused += 1
        self._not_logged += 1
        now = time.monotonic()
        if now - self._last_logged >= LOG_SECONDS:
            more = f" ({self._not_logged} since the last such line)" if self._not_logged > 1 else ""
            log.warning(
                "refused an unknown key at %s from %s: public key %s%s",
                *(domain, address, key, more),
                extra=about(socket=domain, address=address, public_key=key),
            )
            self._last_logged, self._not_logged = now, 0
