"""Where in a history a truth has room: nothing that concerns one subject touches anything else of it.

Lives here: `Calendar`. Never here: what the time is used for. Invariant: intervals of one key keep a margin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scale0.pipeline.time_ranges import MINUTE_US
from simulator.history.plan import TooSmall

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np

MARGIN_US: Final = 20 * MINUTE_US
"""Between two things that concern one subject: longer than any silence, lease or patience."""
TRIES: Final = 2_000


class Calendar:
    """Who is busy when, by key: the name of a source, client, agent or method."""

    __slots__ = ("_dice", "_from_us", "_taken", "_to_us")

    def __init__(self, from_us: int, to_us: int, dice: np.random.Generator) -> None:
        self._from_us = from_us
        self._to_us = to_us
        self._dice = dice
        self._taken: dict[str, list[tuple[int, int]]] = {}

    def place(
        self, length_us: int, keys: Iterable[str], clear_of: Iterable[str] = (), first: float = 0.05, last: float = 0.95
    ) -> int:
        """A start, somewhere between the shares `first` and `last` of the history, free for all these keys.

        It is taken for `keys`; `clear_of` must be free too, and may be used by others at the same time.
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
        raise TooSmall("these days have no room for all the truths: take more of them, or more events")

    def take(self, from_us: int, to_us: int, keys: Iterable[str]) -> None:
        """Nothing else of these keys happens then."""
        for key in keys:
            self._taken.setdefault(key, []).append((from_us, to_us))

    def _is_free(self, key: str, from_us: int, to_us: int) -> bool:
        return all(
            to_us + MARGIN_US <= begins or ends + MARGIN_US <= from_us for begins, ends in self._taken.get(key, ())
        )
