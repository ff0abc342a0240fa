"""One account of the memory that connections occupy at the transport, by owner and in total.

An owner is a key, over all of its connections at all sockets; without keys, a connection. Counted are bytes that no
reader has taken yet: messages that are not complete, messages that the broker has not handled, messages that the peer
does not read, and subscriptions. Invariant: after `excess` returned None, no owner and not all together exceed their
limit.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from scale0.kernel.limits import Limits

CHUNK_BYTES: Final = 64
"""What a piece of bytes needs beside its content."""

Holder = TypeVar("Holder", bound=Hashable)


class OwnerBytes(Generic[Holder]):
    __slots__ = ("bytes", "of")

    def __init__(self) -> None:
        self.bytes = 0
        self.of: dict[Holder, int] = {}


class BufferAccount(Generic[Holder]):
    def __init__(self, limits: Limits) -> None:
        self.bytes = 0
        self._most = limits.max_buffered_bytes
        self._most_of_one = limits.max_key_buffered_bytes or (limits.max_buffered_bytes + 1) // 2
        self._owners: dict[Hashable, OwnerBytes[Holder]] = {}

    def of(self, owner: Hashable) -> int:
        found = self._owners.get(owner)
        return 0 if found is None else found.bytes

    def change(self, owner: Hashable, holder: Holder, size: int) -> None:
        """A connection of this owner occupies `size` bytes now."""
        found = self._owners.get(owner)
        if found is None:
            if not size:
                return
            self._owners[owner] = found = OwnerBytes()
        change = size - found.of.get(holder, 0)
        found.bytes += change
        self.bytes += change
        if size:
            found.of[holder] = size
        elif found.of.pop(holder, None) is not None and not found.of:
            del self._owners[owner]

    def excess(self, owner: Hashable) -> tuple[Holder, str] | None:
        """The connection that must be closed, and why: the largest of this owner, or of the largest one; None: all
        limits are kept."""
        found = self._owners.get(owner)
        if found is None:
            return None
        limit, most = "max_key_buffered_bytes", self._most_of_one
        together = f"the connections of its key have {found.bytes}" if isinstance(owner, str) else "it has no key"
        if found.bytes <= most:
            limit, most = "max_buffered_bytes", self._most
            if self.bytes <= most:
                return None
            found = max(self._owners.values(), key=lambda one: one.bytes)
            together = f"all connections have {self.bytes}, those of its key {found.bytes}"
        largest = max(found.of, key=found.of.__getitem__)
        return largest, (
            f"too many bytes of messages that are incomplete or not read, and of subscriptions: {together},"
            f" it has {found.of[largest]}; {limit} is {most}. Read faster, use fewer connections, or raise {limit}"
        )
