"""Time slots for truths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scale0.pipeline.time_ranges import MINUTE_US
from simulator.history.plan import TooSmall

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np

MARGIN_US: Final = 20 * MINUTE_US
"""Between two truths of one subject: longer than any silence, lease or timeout."""
TRIES: Final = 2_000


class Calendar:
    """Allocates intervals by key: the name of a source, client, agent or method. Intervals of one key keep a margin."""

    __slots__ = ("_dice", "_from_us", "_taken", "_to_us")

    def __init__(self, from_us: int, to_us: int, dice: np.random.Generator) -> None:
        self._from_us = from_us
        self._to_us = to_us
        self._dice = dice
        self._taken: dict[str, list[tuple[int, int]]] = {}

    def place(
        self, length_us: int, keys: Iterable[str], clear_of: Iterable[str] = (), first: float = 0.05, last: float = 0.95
    ) -> int:
        """Allocate an interval for `keys` between the shares `first` and `last` of the history, and return its start.

        `clear_of` must be free too, but others may use it at the same time.
        """
        keys, others = list(keys), list(clear_of)
        span_us = self._to_us - self._from_us
        low, high = self._from_us + int(span_us * first), self._from_us + int(span_us * last) - length_us
        if high > low:
            for _ in range(TRIES):
                start = int(self._dice.integers(low, high))
                if all(self._is_free(key, start, start + length_us) for key in [*keys, *others]):
                    self.take(start, start + length_us, keys)
                    return start
        raise TooSmall("there is not enough time for all the truths: use more days or more events")

    def take(self, from_us: int, to_us: int, keys: Iterable[str]) -> None:
        for key in keys:
            self._taken.setdefault(key, []).append((from_us, to_us))

    def _is_free(self, key: str, from_us: int, to_us: int) -> bool:
        return all(
            to_us + MARGIN_US <= begins or ends + MARGIN_US <= from_us for begins, ends in self._taken.get(key, ())
        )
