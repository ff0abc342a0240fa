"""What comes in by one door, cut so that no message takes longer than its turn.

Lives here: what is left of a long message until the next turn. Never here: what a message means, or how it is cut.
Invariants: the order in which messages came is kept, for each peer; nothing is read from a door before what was read
earlier has been handed out, so what waits here is never more than one message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

Cut = Callable[[str, list[bytes]], Sequence[list[bytes]]]
"""A message of a door, routing id first, as the portions that mean the same; as it is, if it is short."""


class InboxSource(Protocol):
    """A door, as far as it is read from."""

    name: str

    def drain(self, most: int) -> Iterator[list[bytes]]: ...


def whole(_door: str, message: list[bytes]) -> Sequence[list[bytes]]:
    """For doors whose messages are short."""
    return (message,)


class Inbox:
    """One door's messages, in portions."""

    __slots__ = ("_cut", "_rest", "_source")

    def __init__(self, source: InboxSource, cut: Cut) -> None:
        self._source = source
        self._cut = cut
        self._rest: deque[list[bytes]] = deque()

    def take(self, most: int) -> Iterator[list[bytes]]:
        """What is left from before, then at most `most` messages that wait at the door. May be left at any time."""
        rest = self._rest
        while rest:
            yield rest.popleft()
        for message in self._source.drain(most):
            rest.extend(self._cut(self._source.name, message))
            while rest:
                yield rest.popleft()
