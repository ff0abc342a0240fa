"""What this room needs of a broker, and no more.

Lives here: Protocols. Never here: the broker; the composition root joins the two. A *desk* is the counter at which
Majordomo's peers are served: they hand in requests and answers, and are put on the list of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message
from scale0.kernel.limits import Limits
from scale0.kernel.timers import TimerWheel

FRONTEND: Final = "frontend"
"""The door that clients come to."""
BACKEND: Final = "backend"
"""The door that workers come to."""


class MajordomoPeer(Protocol):
    """One peer's connection."""

    delimiter: bool
    """Its last message had an empty frame before the header; what goes to it gets one too."""
    speaker: Any
    """Who packs what goes to it."""
    parts: dict[str | int, list[bytes]] | None
    """Parts of answers that wait for the last one, by the request's id."""

    @property
    def door(self) -> str:
        """Which socket it is on."""
        ...

    @property
    def routing_id(self) -> bytes:
        """What libzmq calls it."""
        ...

    def pack(self, messages: Sequence[Message]) -> list[list[bytes]]:
        """Wire messages in the framing that this peer speaks."""
        ...


L = TypeVar("L", bound=MajordomoPeer)
L_contra = TypeVar("L_contra", bound=MajordomoPeer, contravariant=True)


class MajordomoBroker(Protocol[L_contra]):
    """A broker, as Majordomo sees it."""

    @property
    def serving(self) -> bool:
        """False while nobody may be answered."""
        ...

    @property
    def limits(self) -> Limits:
        """As they are now."""
        ...

    @property
    def timers(self) -> TimerWheel[Any]:
        """Entries are (what to call with subject, now and step; the subject)."""
        ...

    def may_ask(self, connection: L_contra, now: Now) -> bool:
        """True for one more request in this second."""
        ...

    def submit(
        self, connection: L_contra, id_: str, service: str, bodies: Sequence[bytes], now: Now, step: Effects
    ) -> None:
        """Take a request in; it ends in REPLY or ERROR to the connection, or in silence."""
        ...

    def offered(self, service: str) -> bool:
        """True if at least one backend offers it, whatever it speaks."""
        ...

    def enlist(self, connection: L_contra, identity: str, service: str, now: Now, step: Effects) -> None:
        """Put a worker on the list, with one slot. Refusal if it cannot be."""
        ...

    def enlisted(self, connection: L_contra) -> bool:
        """True while this connection is a worker on the list."""
        ...

    def strike(self, connection: L_contra, now: Now, step: Effects) -> None:
        """Take a worker off the list; what it held goes back. No error if it is not there."""
        ...

    def judge(self, connection: L_contra, interval: float, patience: float, now: Now) -> None:
        """From now on this worker is dead after `patience` seconds of silence."""
        ...

    def heartbeat(self, connection: L_contra, now: Now) -> None:
        """Count a worker's sign of life."""
        ...

    def holds(self, connection: L_contra, id_: str) -> bool:
        """True while this worker works on the request of this id."""
        ...

    def partial(self, connection: L_contra, id_: str, bodies: Sequence[bytes], now: Now, step: Effects) -> None:
        """A part of an answer."""
        ...

    def reply(self, connection: L_contra, id_: str, bodies: Sequence[bytes], now: Now, step: Effects) -> None:
        """The last of an answer."""
        ...

    def blame(self, connection: L_contra, code: int, message: str, now: Now, step: Effects) -> None:
        """Count bad input."""
        ...
