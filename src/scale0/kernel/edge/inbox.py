"""Divides the long messages of one socket, so that no message takes longer than a turn. Invariants: the order of each
peer's messages is kept; nothing is read from the socket before the rest of the last message was handled, so the inbox
holds at most one message."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

Cut = Callable[[str, list[bytes]], Sequence[list[bytes]]]
"""Divides a message (routing id first) into equivalent parts; returns a short message unchanged."""


class InboxSource(Protocol):
    """The reading side of a socket."""

    name: str

    def drain(self, most: int) -> Iterator[list[bytes]]: ...


def whole(_socket: str, message: list[bytes]) -> Sequence[list[bytes]]:
    """The `Cut` for sockets whose messages are short."""
    return (message,)


class Inbox:
    __slots__ = ("_cut", "_rest", "_source")

    def __init__(self, source: InboxSource, cut: Cut) -> None:
        self._source = source
        self._cut = cut
        self._rest: deque[list[bytes]] = deque()

    def take(self, most: int) -> Iterator[list[bytes]]:
        """Yields the rest of the last message, then at most `most` new ones. The caller may stop at any time."""
        rest = self._rest
        while rest:
            yield rest.popleft()
        for message in self._source.drain(most):
            rest.extend(self._cut(self._source.name, message))
            while rest:
                yield rest.popleft()
