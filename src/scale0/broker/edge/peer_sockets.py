"""The connections that a broker dials: one DEALER socket for each peer, by endpoint.

Invariants: no call blocks; a message that cannot be sent at once is never sent later, because it would be outdated.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import zmq

from scale0.broker.edge.frames import drain, readable, send_frames
from scale0.broker.edge.sockets import set_options
from scale0.kernel.limits import Limits
from scale0.kernel.log_context import about
from scale0.kernel.machine import Sent

if TYPE_CHECKING:
    from scale0.broker.edge.curve import Curve
    from scale0.transport.edge.curve_certificates import CurveCertificate

RECONNECT_MS: Final = 100
RECONNECT_MOST_MS: Final = 2_000
"""The longest reconnect interval: a broker that returns must be found quickly."""
LINGER_MS: Final = 200
SEND_MARK: Final = 1_000
"""Messages that libzmq queues for a slow peer; a peer that is further behind counts as gone."""

SUIT_SECONDS: Final = 1.0
"""How long one key is tried before the next, where several brokers may be at an address."""

log = logging.getLogger("scale0.dialer")


class PeerKeys(NamedTuple):
    key: str
    pair: CurveCertificate
    """Our own pair: a broker that does not know our new key yet knows the previous one."""
    since: float
    """Monotonic."""


class PeerSockets:
    """For the runner, this is a ROUTER whose routing ids are endpoints."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], name: str, limits: Limits, curve: Curve | None = None
    ) -> None:
        self.name = name
        self._curve = curve
        self._suits: dict[bytes, PeerKeys] = {}
        """By endpoint: the expected key."""
        if curve is not None:
            curve.dialed_user = self._user_of
        self._context = context
        self._limits = limits
        self._sockets: dict[bytes, zmq.Socket[bytes]] = {}
        self._epoll = select.epoll()
        self._turn = 0

    @property
    def descriptor(self) -> int:
        """Readable when any of the sockets may have an event."""
        return self._epoll.fileno()

    def dial(self, endpoint: str) -> None:
        """Connect, and reconnect until `disconnect`."""
        place = endpoint.encode()
        if place in self._sockets:
            return
        if self._curve is not None and not self._choose(place):
            log.warning(
                "cannot connect to the broker at %s: no peer key is stored; add one with scale0 keys",
                endpoint,
                extra=about(endpoint=endpoint),
            )
        self._connect(place)

    def _connect(self, place: bytes) -> None:
        endpoint = place.decode()
        try:
            socket = self._context.socket(zmq.DEALER)
        except zmq.ZMQError as error:
            log.warning("cannot open a socket for the broker at %s: %s", endpoint, error, extra=about(peer=endpoint))
            return
        try:
            set_options(socket, self._limits)
            # Without a connection nothing is queued, and `send` reports the peer as gone.
            socket.set(zmq.IMMEDIATE, 1)
            socket.set(zmq.SNDHWM, SEND_MARK)
            socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
            socket.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MOST_MS)
            if self._curve is not None:
                suit = self._suits.get(place)
                if suit is not None:
                    self._curve.call(socket, suit.key, suit.pair)
                else:
                    self._curve.call(socket, self._curve.own.public)
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            # Endpoints may come from other brokers: an invalid one must not fail the turn.
            log.warning("cannot connect to the broker at %s: %s", endpoint, error, extra=about(peer=endpoint))
            socket.close(linger=0)
            return
        self._sockets[place] = socket
        self._epoll.register(int(socket.get(zmq.FD)), select.EPOLLIN)

    def _choose(self, place: bytes) -> bool:
        """Select the next possible key of the broker there; False if there is none."""
        assert self._curve is not None
        suits = [(key, pair) for pair in self._curve.pairs.all for key in self._curve.candidates(place.decode())]
        before = self._suits.get(place)
        if not suits:
            return False
        tried = before[:2] if before is not None else None
        at = (suits.index(tried) + 1) % len(suits) if tried in suits else 0
        self._suits[place] = PeerKeys(*suits[at], time.monotonic())
        return True

    def _try_another(self, place: bytes) -> None:
        """No answer: the broker may have another key, or may not have known ours, and libzmq does not retry that."""
        suit = self._suits.get(place)
        if suit is not None and time.monotonic() - suit.since < SUIT_SECONDS:
            return
        if self._choose(place):
            self._close(place, 0)
            self._connect(place)

    def review(self) -> None:
        """Keys may have changed: close the connections to brokers whose key is no longer stored, and those by a key of
        ours that is retired."""
        if self._curve is None:
            return
        for place in list(self._sockets):
            suit = self._suits.get(place)
            if suit is None or not self._curve.peer_of(suit.key) or suit.pair not in self._curve.pairs.all:
                self._suits.pop(place, None)
                if self._choose(place) or suit is not None:
                    self._close(place, 0)
                    self._connect(place)

    def _user_of(self, place: bytes) -> str:
        suit = self._suits.get(place)
        return self._curve.peer_of(suit.key) if self._curve is not None and suit is not None else ""

    def disconnect(self, endpoint: str) -> None:
        self._close(endpoint.encode(), LINGER_MS)
        self._suits.pop(endpoint.encode(), None)

    def _close(self, place: bytes, linger: int) -> None:
        socket = self._sockets.pop(place, None)
        if socket is not None:
            self._epoll.unregister(int(socket.get(zmq.FD)))
            socket.close(linger=linger)

    def drain(self, most: int) -> Iterator[list[bytes]]:
        """Pending messages, each with its endpoint first; at most `most` messages."""
        return islice(self._all(most), most)

    def _all(self, most: int) -> Iterator[list[bytes]]:
        # A turn may end before all sockets are read, so each turn starts with another one.
        places = list(self._sockets.items())
        self._turn = (self._turn + 1) % max(1, len(places))
        for place, socket in places[self._turn :] + places[: self._turn]:
            for frames in drain(socket, most):
                yield [place, *frames]

    def pending(self) -> bool:
        """True if there is something to read. Must be called after every send, which may consume the signal."""
        return any(map(readable, self._sockets.values()))

    def send(self, routing_id: bytes, frames: list[bytes]) -> Sent:
        """Hand one message to libzmq; a peer that is not connected, or whose queue is full, counts as gone."""
        socket = self._sockets.get(routing_id)
        if socket is None:
            return "gone"
        try:
            send_frames(socket, frames)
        except zmq.Again:
            if self._curve is not None:
                self._try_another(routing_id)
            return "gone"
        return "sent"

    def close(self) -> None:
        for place in list(self._sockets):
            self.disconnect(place.decode())
        self._epoll.close()
