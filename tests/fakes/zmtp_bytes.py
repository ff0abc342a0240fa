"""ZMTP 3 by hand, the client's end: what a program without libzmq writes to a socket."""

from __future__ import annotations

import socket
from collections.abc import Sequence

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
SECONDS = 60.0


def greeting(mechanism: bytes = b"NULL", version: bytes = b"\x03\x01") -> bytes:
    return SIGNATURE + version + mechanism.ljust(20, b"\0") + bytes(32)


def property_of(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value


def ready(socket_type: bytes = b"DEALER", identity: bytes = b"") -> bytes:
    return command(b"READY", property_of(b"Socket-Type", socket_type) + property_of(b"Identity", identity))


def command(name: bytes, body: bytes = b"") -> bytes:
    return frame(bytes((len(name),)) + name + body, 4)


def frame(body: bytes, flags: int = 0) -> bytes:
    if len(body) < 256:
        return bytes((flags, len(body))) + body
    return bytes((flags | 2,)) + len(body).to_bytes(8, "big") + body


def message(frames: Sequence[bytes]) -> bytes:
    return b"".join(frame(body, 1) for body in frames[:-1]) + frame(frames[-1])


class Dialer:
    """Makes connections to one address; they are closed with it."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self._address = (host, int(port))
        self._made: list[socket.socket] = []

    def dial(self) -> socket.socket:
        made = socket.create_connection(self._address, SECONDS)
        self._made.append(made)
        return made

    def connect(self, identity: bytes = b"", socket_type: bytes = b"DEALER") -> socket.socket:
        """A connection whose handshake is complete."""
        made = self.dial()
        made.sendall(greeting() + ready(socket_type, identity))
        read(made, 64)
        while read_frame(made)[0] != 4:
            pass
        return made

    def __enter__(self) -> Dialer:
        return self

    def __exit__(self, *_: object) -> None:
        for made in self._made:
            made.close()


def read(made: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = made.recv(size - len(found))
        if not more:
            raise EOFError(found)
        found += more
    return found


def read_frame(made: socket.socket) -> tuple[int, bytes]:
    """The flags, without LONG, and the body."""
    flags, size = read(made, 2)
    if flags & 2:
        size = int.from_bytes(bytes((size,)) + read(made, 7), "big")
    return flags & ~2, read(made, size)


def read_message(made: socket.socket) -> list[bytes]:
    """The next message; commands are passed over."""
    frames: list[bytes] = []
    while True:
        flags, body = read_frame(made)
        if flags & 4:
            continue
        frames.append(body)
        if not flags & 1:
            return frames


def ends(made: socket.socket) -> bool:
    """True when the other end closes the connection; what it still sends is passed over."""
    try:
        while made.recv(65_536):
            pass
    except ConnectionError:
        pass
    return True
