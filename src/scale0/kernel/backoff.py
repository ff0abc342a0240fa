"""Exponential backoff: the pause before the next try doubles up to a maximum."""

from __future__ import annotations

MAX_DOUBLINGS = 32


def pause(first_seconds: float, max_seconds: float, failures: int) -> float:
    """Returns the pause after `failures` consecutive failures; with none, the first pause."""
    return min(max_seconds, first_seconds * 2.0 ** min(failures, MAX_DOUBLINGS))


class Backoff:
    """The pauses of one repeated operation; call `reset` when it succeeds."""

    __slots__ = ("_failures", "_first_seconds", "_max_seconds")

    def __init__(self, first_seconds: float, max_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._max_seconds = max_seconds
        self._failures = 0

    def next(self) -> float:
        """Returns the pause to make now; the next one is twice as long."""
        seconds = pause(self._first_seconds, self._max_seconds, self._failures)
        self._failures += 1
        return seconds

    def reset(self) -> None:
        self._failures = 0
