"""What rides on a frontend's line beside requests: another protocol, named by what the line needs of it.

Lives here: a Protocol. Never here: who keeps it; the rooms never import each other, and the client joins them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from scale0.kernel.clock import Now
from scale0.transport.core.session_effects import SessionEffects


class SubProtocol(Protocol):
    """Another protocol on the same line: what it says is ready frames, each a message of its own."""

    @property
    def waiting(self) -> bool:
        """True while it expects an answer: silence then means something."""
        ...

    @property
    def bound(self) -> bool:
        """True while it expects something that only the broker which it asked can tell."""
        ...

    def receive(self, frame: bytes, now: Now, out: SessionEffects) -> None:
        """One frame for it."""
        ...

    def resume(self, broker: str, now: Now, out: SessionEffects) -> None:
        """There is a new connection, to this broker, or one that shares a store with others; empty: nobody knows."""
        ...

    def meet(self, owner: str, shared: bool) -> None:
        """The broker says whose tasks it tells of: its own, or those of a group that shares a store."""
        ...

    def flush(self, now: Now, out: SessionEffects) -> None:
        """Send what is to be sent; only while there is a connection."""
        ...

    def unsent(self, frame: bytes) -> None:
        """This never left."""
        ...

    def never_connected(self) -> None:
        """Nothing that was sent on the last connection has left."""
        ...

    def tick(self, why: Callable[[], tuple[int, str]], now: Now, out: SessionEffects) -> None:
        """Give up what is over; `why` says why nothing came."""
        ...

    def deadline(self, live: bool) -> float | None:
        """When `tick` or, with a connection (`live`), `flush` has something to do."""
        ...

    def fail(self, code: int, message: str, out: SessionEffects) -> None:
        """There will be no answers for now: tell whoever waits."""
        ...
