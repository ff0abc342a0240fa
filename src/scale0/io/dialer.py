"""The dialer: the connections that a broker makes to its peers, as one door.

Lives here: a DEALER socket for each peer that is dialed, by its endpoint. Never here: whom to dial, or what is said.
Invariants: nothing here waits; what cannot leave now does not leave later, because by then it would be old news.
"""

from __future__ import annotations

import logging
import select
from collections.abc import Iterator
from itertools import islice
from typing import Final

import zmq

from scale0.base.about import about
from scale0.base.limits import Limits
from scale0.io.door import Sent, set_options
from scale0.io.frames import drain, readable, send_frames

RECONNECT_MS: Final = 100
RECONNECT_MOST_MS: Final = 2_000
"""How often a peer that is not there is tried: a broker that comes back is missed by everybody."""
LINGER_MS: Final = 200
SEND_MARK: Final = 1_000
"""Messages that libzmq keeps for a peer that is connected and slow; one that is further behind counts as gone."""

log = logging.getLogger("scale0.dialer")


class Dialer:
    """Looks to the runner like a ROUTER whose routing ids are endpoints."""

    __slots__ = ("_context", "_epoll", "_limits", "_sockets", "_turn", "name")

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], name: str, limits: Limits) -> None:
        self.name = name
        self._context = context
        self._limits = limits
        self._sockets: dict[bytes, zmq.Socket[bytes]] = {}
        self._epoll = select.epoll()
        self._turn = 0

    @property
    def descriptor(self) -> int:
        """Readable when there may be something to do at any of them."""
        return self._epoll.fileno()

    def dial(self, endpoint: str) -> None:
        """Connect, and keep connecting until `hang_up`."""
        place = endpoint.encode()
        if place in self._sockets:
            return
        try:
            socket = self._context.socket(zmq.DEALER)
        except zmq.ZMQError as error:
            log.warning("no socket is left for the broker at %s: %s", endpoint, error, extra=about(peer=endpoint))
            return
        try:
            set_options(socket, self._limits)
            # Without a connection nothing is queued: `send` says "gone".
            socket.set(zmq.IMMEDIATE, 1)
            socket.set(zmq.SNDHWM, SEND_MARK)
            socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
            socket.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MOST_MS)
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            # Others name addresses, too: one that is none must not cost us the turn.
            log.warning("the broker at %s cannot be dialed: %s", endpoint, error, extra=about(peer=endpoint))
            socket.close(linger=0)
            return
        self._sockets[place] = socket
        self._epoll.register(int(socket.get(zmq.FD)), select.EPOLLIN)

    def hang_up(self, endpoint: str) -> None:
        """Never again, unless it is dialed anew."""
        socket = self._sockets.pop(endpoint.encode(), None)
        if socket is not None:
            self._epoll.unregister(int(socket.get(zmq.FD)))
            socket.close(linger=LINGER_MS)

    def drain(self, most: int) -> Iterator[list[bytes]]:
        """What waits, the endpoint that it came from first; at most `most` messages."""
        return islice(self._all(most), most)

    def _all(self, most: int) -> Iterator[list[bytes]]:
        # A turn may end before all were heard: each time another one is first.
        places = list(self._sockets.items())
        self._turn = (self._turn + 1) % max(1, len(places))
        for place, socket in places[self._turn :] + places[: self._turn]:
            for frames in drain(socket, most):
                yield [place, *frames]

    def pending(self) -> bool:
        """True if there is something to read. To be asked after every send: sending may swallow the signal."""
        return any(map(readable, self._sockets.values()))

    def send(self, routing_id: bytes, frames: list[bytes]) -> Sent:
        """Hand one message to libzmq; a peer that is not connected, or takes nothing more, is gone for now."""
        socket = self._sockets.get(routing_id)
        if socket is None:
            return "gone"
        try:
            send_frames(socket, frames)
        except zmq.Again:
            return "gone"
        return "sent"

    def close(self) -> None:
        """Let all of them go."""
        for place in list(self._sockets):
            self.hang_up(place.decode())
        self._epoll.close()
