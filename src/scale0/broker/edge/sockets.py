"""The sockets that a broker connects with libzmq: their options, and the subscriptions to other brokers' publishers.

Invariant: no call blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import zmq
import zmq.utils.monitor

from scale0.broker.edge.frames import drain, readable
from scale0.kernel.limits import Limits
from scale0.kernel.machine import Sent

if TYPE_CHECKING:
    from scale0.broker.edge.curve import Curve

HIGH_WATER_MARK: Final = 64
ZMTP_HEARTBEAT_MS: Final = 60_000
ZMTP_TIMEOUT_MS: Final = 10_000
"""How half-open connections end; our own heartbeats detect failures sooner."""
HANDSHAKE_MS: Final = 5_000
"""A peer that does not finish its handshake in this time is disconnected."""


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


def libzmq_version() -> str:
    """The version of libzmq, such as 4.3.5, for modules that may not import zmq."""
    return zmq.zmq_version()


def set_options(socket: zmq.Socket[bytes], limits: Limits) -> None:
    socket.set(zmq.LINGER, 200)
    socket.set(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.set(zmq.RCVHWM, HIGH_WATER_MARK)
    socket.set(zmq.MAXMSGSIZE, 2 * limits.max_message_bytes)
    socket.set(zmq.HEARTBEAT_IVL, ZMTP_HEARTBEAT_MS)
    socket.set(zmq.HEARTBEAT_TIMEOUT, ZMTP_TIMEOUT_MS)
    socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.set(zmq.IPV6, 1)
