"""What a runner turns: the shapes of a machine, and of the doors by which messages come and go.

Lives here: Protocols. Never here: a loop (`runner`), a socket (`door`) or a protocol. Invariant: a machine is asked for
nothing that it would have to wait for, and a door for nothing that could make the loop wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from scale0.kernel.clock import Now
from scale0.kernel.effects import Message, Step
from scale0.transport.edge.broker_sockets import Sent


class Machine(Protocol):
    """What the runner turns."""

    def receive(self, door: str, routing_id: bytes, frames: list[bytes], now: Now, step: Step) -> None: ...
    def tick(self, now: Now, step: Step) -> None: ...
    def deadline(self) -> float | None: ...
    def answer(self, ask: object, value: object, now: Now, step: Step) -> None: ...
    def undelivered(self, connection: Any, messages: Sequence[Message], now: Now, step: Step) -> None: ...
    def overflow(self, connection: Any, now: Now, step: Step) -> None: ...
    def settle(self, now: Now, step: Step) -> None: ...
    def hear_subscription(self, frames: list[bytes], now: Now, step: Step) -> None: ...


class Door(Protocol):
    """Where messages come in and go out: a ROUTER socket, or whatever can be made to look like one."""

    name: str

    @property
    def descriptor(self) -> int: ...
    def drain(self, most: int) -> Iterator[list[bytes]]: ...
    def pending(self) -> bool: ...
    def send(self, routing_id: bytes, frames: list[bytes]) -> Sent: ...


@runtime_checkable
class ClosingDoor(Protocol):
    """A door that can end a connection, and make whoever stands there wait; a ROUTER socket can do neither."""

    def close_peer(self, routing_id: bytes) -> None: ...


@runtime_checkable
class DialingDoor(Protocol):
    """A door that goes to others."""

    def dial(self, endpoint: str) -> None: ...
    def hang_up(self, endpoint: str) -> None: ...
