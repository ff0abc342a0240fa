"""What tasks need of the broker that they live in, as small Protocols: the rooms never import each other.

Lives here: names of what is needed. Never here: how the broker does it (`tasks/core/broker_adapter.py` joins them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message, PeerAddress
from scale0.kernel.limits import Limits
from scale0.kernel.timers import TimerWheel


class TaskConnection(PeerAddress, Protocol):
    """A connection, as tasks need to see it."""

    delimiter: bool
    arrays: bool
    """It has sent a JSON-RPC array: it may get one."""
    number: int
    """Unique over restarts; 0: not numbered yet."""
    waits: int
    """What it waits for: it is not forgotten meanwhile."""
    user_id: str

    @property
    def name(self) -> str: ...

    @property
    def takes_pushes(self) -> bool: ...


class Holder(Protocol):
    """A backend or node that holds tasks."""

    identity: str
    slots: int
    busy: int
    alive: bool
    prefetch: int
    pace: float
    """Seconds that one of its tasks takes, as its answers show; 0: unknown."""
    paced: float
    """Since when it has been at work without a pause, or when it last answered. Monotonic."""
    tasks: dict[str, Any]
    """What it has in hand, in the order of hand-out."""
    slotted: int
    """How many slots they hold; the rest is prefetched."""
    pushes: bool
    """It speaks TASKS."""
    returns: bool
    """It answers a recall."""

    @property
    def services(self) -> frozenset[str]: ...

    peer: Any
    """Its connection."""


class Slots(Protocol):
    """The roster: it alone knows who has room."""

    def take_pushing(self, name: str) -> Any:
        """A slot of the backend that was handed work longest ago among those that speak TASKS."""
        ...

    def take_from(self, backend: Any) -> bool:
        """A slot of this very backend, if it has one."""
        ...

    def give_back(self, backend: Any) -> None:
        """A slot is free again."""
        ...

    def offered(self, name: str) -> bool:
        """True if anybody offers this."""
        ...

    def backends_of(self, name: str) -> int:
        """How many do."""
        ...

    def has_room(self, name: str) -> bool:
        """True if one that speaks TASKS has a free slot."""
        ...


class OtherBrokers(Protocol):
    """The other brokers of a shared store, as leases need them (`sharing`)."""

    def claim(self, holder: Any, holds: Mapping[str, int] | None, now: Now, step: Effects) -> None:
        """A node says what it has in hand (None: it cannot say): it is found out what becomes of that."""
        ...

    def fetch(self, holder: Any, id_: str, attempt: int, now: Now, step: Effects) -> None:
        """A node has a result of a lease that is not ours: it shall come to us."""
        ...

    def restate(self, name: str, holds: Mapping[str, int] | None) -> None:
        """A node has this in hand now, and nothing else."""
        ...


class Policy(Protocol):
    """What the network document says of one method."""

    @property
    def timeout(self) -> float | None: ...
    @property
    def max_attempts(self) -> int | None: ...
    @property
    def concurrency(self) -> int | None: ...


class BrokerInfo(Protocol):
    """The broker's shared state."""

    identity: str
    owner: str
    """To whom a result may be told: this broker, or the group whose brokers share its store."""
    limits: Limits
    chance: Any
    full: bool
    draining: bool
    interval: float
    liveness: int
    boot: int

    @property
    def timers(self) -> TimerWheel[Any]: ...
    @property
    def policies(self) -> Mapping[str, Policy]: ...
    @property
    def group(self) -> str: ...
    @property
    def serving(self) -> bool: ...
    def count(self, what: str) -> None: ...


class TaskBroker(Protocol):
    """What the broker does for task clients and nodes."""

    def blame(self, line: Any, code: int, message: str, now: Now, step: Effects) -> None:
        """Count bad input."""
        ...

    def holder_of(self, line: Any) -> Holder | None:
        """The backend or node of this connection."""
        ...

    def node(self, node_id: str) -> tuple[Holder, Any] | None:
        """A live node or backend by name, and its connection."""
        ...

    def enlist(self, line: Any, node_id: str, methods: Sequence[str], now: Now, step: Effects) -> Holder:
        """A node joins, or joins again; Refusal if it cannot. What an older connection of it held is queued again."""
        ...

    def rebind(self, line: Any, node_id: str, now: Now, step: Effects) -> None:
        """A known node speaks from a new connection and goes on with its work."""
        ...

    def strike(self, line: Any, now: Now, step: Effects) -> None:
        """It leaves in order."""
        ...

    def force(self, line: Any, now: Now, step: Effects) -> None:
        """It must negotiate before it goes on."""
        ...

    def renegotiate(self, line: Any, now: Now, step: Effects) -> None:
        """It must negotiate anew, for no fault of its own."""
        ...

    def heard(self, line: Any) -> float:
        """When it last spoke; monotonic."""
        ...

    def serve(self, holder: Any, now: Now, step: Effects) -> None:
        """Requests that wait come before tasks: give it these."""
        ...

    def heartbeat(self, line: Any, now: Now) -> None:
        """Count one, for the minute's summary."""
        ...

    def say_status(self, line: Any, status: Any) -> None:
        """What a node says of itself, for whoever looks at it."""
        ...

    def is_shallow(self, data: bytes) -> bool:
        """True if JSON text nests no deeper than the limit."""
        ...

    def is_service(self, name: str) -> bool:
        """True for a name that a backend could offer."""
        ...


Deliver = Callable[[Any, Message], None]
