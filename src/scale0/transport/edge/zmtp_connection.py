"""One connection of a ZMTP server: its socket, its session, and what was read or is to be sent.

Invariant: it is in no cycle of references, so that a connection that ended is freed at once. The cycle collector runs
rarely in a broker, and anybody can open connections.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING

from scale0.transport.core.zmtp import ZmtpSession

if TYPE_CHECKING:
    from scale0.transport.edge.zmtp_server import ZmtpServer

Sender = str | bytes
"""A public key (Z85); without keys, the routing id of a connection. Senders are served in turn."""


class ZmtpConnection:
    __slots__ = (
        *(
            "address",
            "charged",
            "descriptor",
            "ending",
            "heard_at",
            "inbox",
            "inbox_bytes",
            "is_closed",
            "is_gone",
            "is_queued",
            "is_ready",
            "kept",
            "key",
            "outgoing",
            "outgoing_bytes",
            "owner",
        ),
        *("pinged", "readable", "routing_id", "sender", "server", "server_key", "session", "since", "socket", "unsent"),
    )

    def __init__(
        self,
        server: ZmtpServer,
        raw: socket.socket,
        routing_id: bytes,
        address: str,
        session: ZmtpSession,
        mono: float,
    ) -> None:
        self.server = server
        self.socket = raw
        self.descriptor = raw.fileno()
        self.routing_id = routing_id
        self.address = address
        self.session = session
        self.since = self.heard_at = mono
        self.pinged = False
        self.key = ""
        """The public key (Z85); blank without keys."""
        self.server_key = b""
        """Our public key that the peer used; blank without keys."""
        self.inbox: deque[list[bytes]] = deque()
        self.inbox_bytes = 0
        self.kept = 0
        """Bytes that others hold for it: messages that it does not read, or subscriptions."""
        self.charged = 0
        """Its bytes in the account."""
        self.owner: Hashable = object()
        """Whose bytes they are: those of its key, if that is not the key of local programs; otherwise its own."""
        self.readable = False
        """There may be more to read."""
        self.is_ready = False
        """Its handshake is complete."""
        self.is_closed = False
        self.is_gone = False
        """Closed, with messages that nobody took yet."""
        self.ending = False
        """The peer has closed its end: the last read is an empty one."""
        self.is_queued = False
        """In the queue of its key, or, before the end of its handshake, in that of handshakes."""
        self.outgoing: list[bytes] = []
        self.outgoing_bytes = 0
        self.unsent: bytes | memoryview = b""
        self.sender: Sender = routing_id
        """With whom it shares its turns: the connections of its key, if that is not the key of local programs."""
