"""The ZeroMQ sockets of a broker: options, incoming and outgoing frames.

Invariant: no call blocks; a peer that is gone or does not read is reported to the caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import zmq
import zmq.utils.monitor

from scale0.kernel.limits import Limits
from scale0.kernel.machine import Sent
from scale0.transport.edge.frames import drain, drain_admitted, readable, send_frames
from scale0.transport.edge.zmq_context import ZMTP_HEARTBEAT_MS, ZMTP_TIMEOUT_MS

if TYPE_CHECKING:
    from scale0.broker.edge.curve import Curve

HIGH_WATER_MARK: Final = 64
ROUTER_SEND_MARK: Final = 16
"""Messages that libzmq queues for one client, whatever their size; beyond that the broker counts bytes itself."""
HANDSHAKE_MS: Final = 5_000
"""A client that does not finish its handshake in this time is disconnected."""
BACKLOG: Final = 4_096
"""Connections that wait to be accepted: a whole fleet may reconnect at once."""
BIND_TRIES: Final = 200
BIND_RETRY_SECONDS: Final = 0.01
"""The number of attempts to bind a port that is still being released, and the time between them."""


class RouterSocket:
    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        name: str,
        endpoint: str,
        limits: Limits,
        curve: Curve | None = None,
    ) -> None:
        self.name = name
        self._authenticator = curve.authenticator(name) if curve is not None else None
        self._socket = context.socket(zmq.ROUTER)
        set_options(self._socket, limits)
        if curve is not None:
            curve.serve(self._socket, name)
        self._socket.set(zmq.ROUTER_MANDATORY, 1)
        self._socket.set(zmq.SNDHWM, ROUTER_SEND_MARK)
        bind(self._socket, endpoint)

    @property
    def descriptor(self) -> int:
        """Readable when there may be an event."""
        return int(self._socket.get(zmq.FD))

    @property
    def endpoint(self) -> str:
        return last_endpoint(self._socket)

    def drain(self, most: int) -> Iterator[list[bytes]]:
        """Pending messages, routing id first; at most `most` messages."""
        if self._authenticator is not None:
            return drain_admitted(self._socket, most, self._authenticator.admits)
        return drain(self._socket, most)

    def pending(self) -> bool:
        """True if there is something to read. Must be called after every send, which may consume the signal."""
        return readable(self._socket)

    def send(self, routing_id: bytes, frames: list[bytes]) -> Sent:
        """Hand one message to libzmq, or report why it cannot be sent."""
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
        """Close it; libzmq still sends queued messages for a moment."""
        self._socket.close(linger=200)


class SubscriberSocket:
    """A SUB socket for several publishers. For the runner, this is a ROUTER that cannot send."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        name: str,
        sources: Iterable[str],
        limits: Limits,
        curve: Curve | None = None,
    ) -> None:
        self.name = name
        self._curve = curve
        self._sources = tuple(sources)
        self._connected: dict[str, str] = {}
        """By endpoint: the expected key."""
        self._socket = context.socket(zmq.SUB)
        set_options(self._socket, limits)
        self._socket.set(zmq.SUBSCRIBE, b"")
        self._monitor: zmq.Socket[bytes] | None = None
        if curve is not None:
            self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        self.connect()

    def _forget_refused(self) -> None:
        """libzmq does not retry an address that refused our key; the key may be stored there by now."""
        while self._monitor is not None and readable(self._monitor):
            place = zmq.utils.monitor.recv_monitor_message(self._monitor)["endpoint"].decode()
            if self._connected.pop(place, None) is not None:
                self._socket.disconnect(place)

    def connect(self) -> None:
        """Connect to the publishers. With CURVE a publisher's key must be known first, from its broker's HELLO."""
        self._forget_refused()
        for endpoint in self._sources:
            before = self._connected.get(endpoint)
            if before is not None and (self._curve is None or self._curve.peer_of(before)):
                continue
            keys = self._curve.candidates(endpoint) if self._curve is not None else [""]
            if len(keys) != 1:
                continue
            if self._curve is not None:
                self._curve.call(self._socket, keys[0])
            if before is not None:
                self._socket.disconnect(endpoint)
            self._socket.connect(endpoint)
            self._connected[endpoint] = keys[0]

    @property
    def descriptor(self) -> int:
        return int(self._socket.get(zmq.FD))

    def drain(self, most: int) -> Iterator[list[bytes]]:
        """Published messages, each with an empty routing id first."""
        return ([b"", *frames] for frames in drain(self._socket, most))

    def pending(self) -> bool:
        return readable(self._socket)

    def send(self, routing_id: bytes, frames: list[bytes]) -> Sent:
        del routing_id, frames
        return "gone"

    def close(self) -> None:
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
        self._socket.close(linger=0)


class PublisherSocket:
    """A PUB socket, or an XPUB socket that also reports subscriptions."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        name: str,
        endpoint: str,
        limits: Limits,
        tells: bool = False,
        curve: Curve | None = None,
    ) -> None:
        """`tells`: subscriptions can be read."""
        self.name = name
        self._tells = tells
        self._socket = context.socket(zmq.XPUB if tells else zmq.PUB)
        set_options(self._socket, limits)
        if curve is not None:
            curve.serve(self._socket, name)
        bind(self._socket, endpoint)
        self._place = last_endpoint(self._socket)

    def rebind(self) -> None:
        """End all connections, so that each must authenticate again: ZAP decides at the handshake only."""
        with contextlib.suppress(zmq.ZMQError):
            self._socket.unbind(self._place)  # not bound: an earlier change is still in progress
        self._try_bind(BIND_TRIES)

    def _try_bind(self, tries: int) -> None:
        """libzmq releases the port in its own thread, a moment later."""
        try:
            self._socket.bind(self._place)
        except zmq.ZMQError as error:
            if self._socket.closed or error.errno != errno.EADDRINUSE:
                return
            if not tries:
                raise OSError(error.errno, f"cannot listen on {self._place} again: {error.strerror}") from error
            asyncio.get_running_loop().call_later(BIND_RETRY_SECONDS, self._try_bind, tries - 1)

    @property
    def endpoint(self) -> str:
        return self._place

    @property
    def descriptor(self) -> int:
        return int(self._socket.get(zmq.FD))

    def subscriptions(self, most: int) -> Iterator[list[bytes]]:
        """Messages of subscribers: one frame, 1 or 0 and the topic."""
        return drain(self._socket, most) if self._tells else iter(())

    def publish(self, frames: list[bytes]) -> None:
        """Send to all subscribers; those that do not read miss it."""
        send_frames(self._socket, frames)

    def close(self) -> None:
        self._socket.close(linger=200)


def set_options(socket: zmq.Socket[bytes], limits: Limits) -> None:
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
    place = socket.get(zmq.LAST_ENDPOINT)
    return place.rstrip(b"\0").decode() if isinstance(place, bytes) else ""


def bind(socket: zmq.Socket[bytes], endpoint: str) -> None:
    """Bind; on failure the error says what to do."""
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise OSError(
            error.errno,
            f"cannot listen on {endpoint}: {error.strerror}. Is another broker running? Choose another port.",
        ) from error
