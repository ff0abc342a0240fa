"""The record of one request in its broker.

`ended` means that no client waits for it, `backend` that it occupies a slot; the two are independent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scale0.broker.core.connections import Connection
from scale0.broker.core.request_memory import REQUEST_BYTES, Owner, cost_of
from scale0.broker.core.scheduler import Backend
from scale0.broker.core.slot_shares import SlotShares
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects

OriginId = str | int | tuple[str, str | int]
"""The id of a request at its origin: the client's own, or a command of the client and its id."""

Then = Callable[[Connection, int, str, Sequence[bytes], Now, Effects], None]
"""Called at a request's end in place of a message to its origin: the current origin, code, message and bodies."""


class RoutedRequest:
    """One request, from its acceptance until its slot is free."""

    __slots__ = (
        "accepted",
        "account",
        "backend",
        "bodies",
        "bucket",
        "charge",
        "deadline",
        "ended",
        "hops",
        "id",
        "number",
        "origin",
        "origin_id",
        "owner",
        "parts",
        "payer",
        "retry",
        "sender",
        "service",
        "shares",
        "size",
        "spoke",
        "then",
    )

    def __init__(
        self,
        id_: str,
        number: int,
        origin: Connection,
        origin_id: OriginId,
        service: str,
        bodies: Sequence[bytes],
        accepted: float,
        deadline: float,
        retry: bool,
        hops: int,
        then: Then | None = None,
        sender: str = "",
    ) -> None:
        self.sender = sender
        """The client that sent it to another broker; blank: `origin` is the client."""
        self.hops = hops
        """Brokers that forwarded it before this one."""
        self.id = id_
        self.origin = origin
        self.origin_id = origin_id
        self.owner: Any = None
        """While it waits: the key of its client in the queues, stable when the client reconnects."""
        self.account: Any
        self.shares: SlotShares
        """For whom and where it counts, while it has a slot of a backend here."""
        self.service = service
        self.bodies = bodies
        self.backend: Backend | None = None
        self.number = number
        """The order of acceptance: several requests may be accepted at the same time."""
        self.accepted = accepted
        self.deadline = deadline
        self.retry = retry
        self.spoke = False
        """A PARTIAL was forwarded, so it must not be retried elsewhere."""
        self.ended = False
        """Answered, or its origin is gone; the backend may still work on it."""
        self.then = then
        """None: its origin gets REPLY or ERROR. Otherwise this callback gets the result."""
        self.parts: list[bytes] | None = None
        """Of its answer: the broker keeps them for a client that takes one message for each request."""
        if len(bodies) == 1:
            self.size = len(bodies[0])
            self.charge = self.size + REQUEST_BYTES
        else:
            self.size = sum(map(len, bodies))
            self.charge = REQUEST_BYTES + cost_of(bodies)
        self.payer: Owner = sender or origin.sender or origin
        """The client whose memory has its bodies and parts, `charge` bytes, until it ends; also if it reconnects."""
        self.bucket = 0
