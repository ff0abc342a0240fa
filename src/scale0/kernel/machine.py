"""Protocols: the machines that a runner drives, and its sockets and store. Invariant: no method of a machine or a
socket blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, Message, Readers

Sent = Literal["sent", "full", "gone"]
"""The outcome of a send: sent, the peer does not read, or the peer is gone."""


class Machine(Protocol):
    """The state machine that a runner drives."""

    def receive(self, socket: str, routing_id: bytes, frames: list[bytes], now: Now, effects: Effects) -> None: ...
    def tick(self, now: Now, effects: Effects) -> None: ...
    def deadline(self) -> float | None: ...
    def answer(self, ask: object, value: object, now: Now, effects: Effects) -> None: ...
    def undelivered(self, connection: Any, messages: Sequence[Message], now: Now, effects: Effects) -> None: ...
    def overflow(self, connection: Any, now: Now, effects: Effects) -> None: ...
    def settle(self, now: Now, effects: Effects) -> None: ...
    def receive_subscription(self, frames: list[bytes], now: Now, effects: Effects) -> None: ...


class MessageSocket(Protocol):
    """A ROUTER socket, or another transport with the same interface."""

    name: str

    @property
    def descriptor(self) -> int: ...
    def drain(self, most: int) -> Iterator[list[bytes]]: ...
    def pending(self) -> bool: ...
    def send(self, routing_id: bytes, frames: list[bytes]) -> Sent: ...


@runtime_checkable
class BufferedSocket(Protocol):
    """A socket that sends at the end of a turn what was passed to `send` or `publish`."""

    def flush(self) -> None: ...


@runtime_checkable
class FairSocket(Protocol):
    """A socket whose senders are served in turn."""

    def hold(self, routing_id: bytes) -> Any:
        """Takes no more messages of the sender of this connection; returns the sender, or None if it is gone."""
        ...

    def release(self, sender: Any) -> None: ...


@runtime_checkable
class ClosableSocket(Protocol):
    """A socket that can close a connection and apply flow control; a ROUTER socket can do neither."""

    def close_peer(self, routing_id: bytes) -> None: ...


@runtime_checkable
class DroppingSocket(Protocol):
    """A server that can end a connection, without flow control."""

    def drop_peer(self, routing_id: bytes) -> None: ...


@runtime_checkable
class CountingSocket(Protocol):
    """A server that limits the memory of its connections."""

    def note_backlog(self, routing_id: bytes, size: int) -> None:
        """So many bytes wait for this connection outside the socket."""
        ...


@runtime_checkable
class DialingSocket(Protocol):
    """A socket that connects to others."""

    def dial(self, endpoint: str) -> None: ...
    def disconnect(self, endpoint: str) -> None: ...


class PublishSocket(Protocol):
    """A PUB socket, or an XPUB socket whose subscriptions can be read."""

    name: str

    @property
    def descriptor(self) -> int: ...
    def subscriptions(self, most: int) -> Iterator[list[bytes]]: ...
    def pending(self) -> float | None:
        """The seconds until `subscriptions` may have more; None: not before the descriptor is readable."""
        ...

    def publish(self, frames: list[bytes], readers: Readers | None = None) -> None: ...


class CommitStore(Protocol):
    """The store's interface for the writer thread: ordered commits, and reads after or concurrent with them."""

    def commit(self, writes: list[Any]) -> None: ...
    def read(self, ask: Any) -> Any: ...
    def read_all(self, asks: list[Any]) -> list[Any]: ...
    def scan(self, ask: Any) -> Any: ...
    def trim_journal(self, up_to_seq: int) -> None: ...
    def close(self) -> None: ...
