"""One request on its way, as its broker knows it.

Lives here: the record. Never here: what becomes of it (`requests`). Invariant: `ended` says that nobody waits for it,
`backend` that a slot is taken for it; each may be so without the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scale0.broker.core.connections import Connection
from scale0.broker.core.scheduler import Backend
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects

Then = Callable[[Connection, int, str, Sequence[bytes], Now, Effects], None]
"""Who hears of a request's end in place of its origin: the origin as it is then, code, message and bodies."""


class RoutedRequest:
    """One request, from its acceptance until its slot is free."""

    __slots__ = (
        "accepted",
        "backend",
        "bodies",
        "bucket",
        "deadline",
        "ended",
        "hops",
        "id",
        "number",
        "origin",
        "origin_id",
        "owner",
        "retry",
        "service",
        "size",
        "spoke",
        "then",
    )

    def __init__(
        self,
        id_: str,
        number: int,
        origin: Connection,
        origin_id: str | int,
        service: str,
        bodies: Sequence[bytes],
        accepted: float,
        deadline: float,
        retry: bool,
        hops: int,
        then: Then | None = None,
    ) -> None:
        self.hops = hops
        """Brokers that it has passed before this one."""
        self.id = id_
        self.origin = origin
        self.origin_id = origin_id
        self.owner: Any = None
        """While it waits: what stands for its client, also after that came back on another connection."""
        self.service = service
        self.bodies = bodies
        self.backend: Backend | None = None
        self.number = number
        """In the order of acceptance: many are accepted in one turn, at one time."""
        self.accepted = accepted
        self.deadline = deadline
        self.retry = retry
        self.spoke = False
        """A PARTIAL was passed on: it cannot be tried elsewhere any more."""
        self.ended = False
        """Answered, or its origin is gone; the backend may still be at it."""
        self.then = then
        """None: its origin gets REPLY or ERROR. Else it was a command, and its answer is that command's."""
        self.size = len(bodies[0]) if len(bodies) == 1 else sum(map(len, bodies))
        self.bucket = 0
