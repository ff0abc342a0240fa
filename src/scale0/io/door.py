"""A door: one ZeroMQ socket of a broker, drained and fed without blocking.

Lives here: socket options, frames in, frames out. Never here: what a frame means. Invariant: nothing here waits; a peer
that is gone or does not read is reported, not waited for.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from typing import Final, Literal

import zmq

from scale0.base.limits import Limits
from scale0.io.frames import drain, readable, send_frames

HIGH_WATER_MARK: Final = 64
"""Messages that libzmq keeps per peer and direction."""
ROUTER_SEND_MARK: Final = 16
"""Messages that libzmq keeps for one client, whatever their size; beyond it we count bytes ourselves."""
ZMTP_HEARTBEAT_MS: Final = 60_000
"""So that half-open connections end. Rare, because libzmq looks through the timers of all connections to cancel one:
with 10,000 of them, every 5 s cost more than half a core. Our own heartbeats are the quick ones."""
ZMTP_TIMEOUT_MS: Final = 10_000
"""Short against the above: it is found near the front of those timers."""
HANDSHAKE_MS: Final = 5_000
"""A stranger that does not finish its handshake is let go."""
BACKLOG: Final = 4_096
"""Connections that wait to be accepted: a fleet reconnects at once."""

Sent = Literal["sent", "full", "gone"]


class Door:
    """A ROUTER socket that clients connect to."""

    __slots__ = ("_socket", "name")

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], name: str, endpoint: str, limits: Limits) -> None:
        self.name = name
        self._socket = context.socket(zmq.ROUTER)
        set_options(self._socket, limits)
        self._socket.set(zmq.ROUTER_MANDATORY, 1)
        self._socket.set(zmq.SNDHWM, ROUTER_SEND_MARK)
        bind(self._socket, endpoint)

    @property
    def descriptor(self) -> int:
        """Readable when there may be something to do."""
        return int(self._socket.get(zmq.FD))

    @property
    def endpoint(self) -> str:
        """Where it really listens."""
        return last_endpoint(self._socket)

    def drain(self, most: int) -> Iterator[list[bytes]]:
        """What waits, routing id first; at most `most` messages."""
        return drain(self._socket, most)

    def pending(self) -> bool:
        """True if there is something to read. To be asked after every send: sending may swallow the signal."""
        return readable(self._socket)

    def send(self, routing_id: bytes, frames: list[bytes]) -> Sent:
        """Hand one message to libzmq, or say why not."""
        try:
            send_frames(self._socket, [routing_id, *frames])
        except zmq.Again:
            return "full"
        except zmq.ZMQError as error:
            if error.errno == errno.EHOSTUNREACH:
                return "gone"
            raise
        return "sent"

    def close(self) -> None:
        """Let it go; what was sent still leaves for a moment."""
        self._socket.close(linger=200)


class Subscriber:
    """A SUB socket that hears several publishers. Looks to the runner like a ROUTER that nobody reads from."""

    __slots__ = ("_socket", "name")

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], name: str, sources: Iterable[str], limits: Limits
    ) -> None:
        self.name = name
        self._socket = context.socket(zmq.SUB)
        set_options(self._socket, limits)
        self._socket.set(zmq.SUBSCRIBE, b"")
        for endpoint in sources:
            self._socket.connect(endpoint)

    @property
    def descriptor(self) -> int:
        """Readable when there may be something to hear."""
        return int(self._socket.get(zmq.FD))

    def drain(self, most: int) -> Iterator[list[bytes]]:
        """What was published, after a routing id that says nothing."""
        return ([b"", *frames] for frames in drain(self._socket, most))

    def pending(self) -> bool:
        """True if there is something to read."""
        return readable(self._socket)

    def send(self, routing_id: bytes, frames: list[bytes]) -> Sent:
        """Nobody can be told anything here."""
        del routing_id, frames
        return "gone"

    def close(self) -> None:
        """Let it go."""
        self._socket.close(linger=0)


class Publisher:
    """A PUB socket, or an XPUB that also tells who subscribed: whoever listens, hears."""

    __slots__ = ("_socket", "_tells", "name")

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], name: str, endpoint: str, limits: Limits, tells: bool = False
    ) -> None:
        """`tells`: what is subscribed can be read."""
        self.name = name
        self._tells = tells
        self._socket = context.socket(zmq.XPUB if tells else zmq.PUB)
        set_options(self._socket, limits)
        bind(self._socket, endpoint)

    @property
    def endpoint(self) -> str:
        """Where it really listens."""
        return last_endpoint(self._socket)

    @property
    def descriptor(self) -> int:
        """Readable when there may be something to hear."""
        return int(self._socket.get(zmq.FD))

    def subscriptions(self, most: int) -> Iterator[list[bytes]]:
        """What subscribers say: one frame, 1 or 0 and the topic."""
        return drain(self._socket, most) if self._tells else iter(())

    def publish(self, frames: list[bytes]) -> None:
        """To everybody who subscribed; those who do not read miss it."""
        send_frames(self._socket, frames)

    def close(self) -> None:
        """Let it go."""
        self._socket.close(linger=200)


def set_options(socket: zmq.Socket[bytes], limits: Limits) -> None:
    """What all sockets of a broker have in common."""
    socket.set(zmq.LINGER, 200)
    socket.set(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.set(zmq.RCVHWM, HIGH_WATER_MARK)
    socket.set(zmq.MAXMSGSIZE, 2 * limits.max_message_bytes)
    socket.set(zmq.HEARTBEAT_IVL, ZMTP_HEARTBEAT_MS)
    socket.set(zmq.HEARTBEAT_TIMEOUT, ZMTP_TIMEOUT_MS)
    socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.set(zmq.BACKLOG, BACKLOG)
    socket.set(zmq.IPV6, 1)


def last_endpoint(socket: zmq.Socket[bytes]) -> str:
    """Where a socket was bound to."""
    place = socket.get(zmq.LAST_ENDPOINT)
    return place.rstrip(b"\0").decode() if isinstance(place, bytes) else ""


def bind(socket: zmq.Socket[bytes], endpoint: str) -> None:
    """Bind, with an error that says what to do."""
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise OSError(
            error.errno,
            f"cannot listen on {endpoint}: {error.strerror}. Is another broker running? Choose another port.",
        ) from error
