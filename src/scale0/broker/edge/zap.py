"""The ZAP desk (ZeroMQ RFC 27): asked by libzmq at each handshake whether a key may use a socket.

Lives here: one inproc socket and its two messages. Never here: which keys there are. It works in the broker's own loop:
a handshake waits for a turn, as everything does, and nothing here waits. Invariants: no mechanism but CURVE is let in,
no key that is not stored for the socket's domain is, and the user id that libzmq puts on messages is the public key.
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
"""Routing id, delimiter, version, request id, domain, address, identity, mechanism, and the public key."""
TURN_HANDSHAKES: Final = 100
"""Answered in one turn."""
LOG_SECONDS: Final = 10.0
"""How often refusals are told at most: strangers may try all day."""

Allows = Callable[[str, str], bool]
"""Domain and public key: may it?"""


class ZapAuthenticator:
    """The one ZAP handler of a context."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], allows: Allows) -> None:
        self._allows = allows
        self._socket = context.socket(zmq.ROUTER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.set(zmq.RCVHWM, 0)
        self._socket.bind(PLACE)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.refused = 0
        self._told = -LOG_SECONDS
        self._untold = 0

    def start(self) -> None:
        """Answer from now on."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(int(self._socket.get(zmq.FD)), self._look)
        self._look()

    def close(self) -> None:
        """Let nobody in any more."""
        if self._loop is not None:
            self._loop.remove_reader(int(self._socket.get(zmq.FD)))
        self._loop = None
        self._socket.close(linger=0)

    def _look(self) -> None:
        """Until nothing is left: sending may swallow the signal that more came."""
        if self._loop is None:
            return
        try:
            for _ in range(TURN_HANDSHAKES):
                self._answer(receive_frames(self._socket))
        except zmq.Again:
            return
        self._loop.call_soon(self._look)

    def _answer(self, frames: list[bytes]) -> None:
        request = frames[3] if len(frames) > 3 else b""
        key = self._key_of(frames)
        status, text = (ALLOWED, b"OK") if key else (REFUSED, b"this key is not known here")
        try:
            send_frames(self._socket, [frames[0], b"", VERSION, request, status, text, key.encode(), b""])
        except zmq.ZMQError as error:
            log.warning("a handshake could not be answered: %s", error, extra=about())

    def _key_of(self, frames: list[bytes]) -> str:
        """The public key, if it may; else blank."""
        if len(frames) != PARTS or frames[2] != VERSION or frames[7] != CURVE or len(frames[8]) != 32:
            return ""
        domain, address = frames[4].decode("ascii", "replace"), frames[5].decode("ascii", "replace")
        key = zmq.utils.z85.encode(frames[8]).decode()
        if self._allows(domain, key):
            return key
        self._note(domain, address, key)
        return ""

    def _note(self, domain: str, address: str, key: str) -> None:
        self.refused += 1
        self._untold += 1
        now = time.monotonic()
        if now - self._told >= LOG_SECONDS:
            more = f" ({self._untold} since the last such line)" if self._untold > 1 else ""
            log.warning(
                "refused an unknown key at %s from %s: public key %s%s",
                *(domain, address, key, more),
                extra=about(socket=domain, address=address, public_key=key),
            )
            self._told, self._untold = now, 0
