"""Plans everything that happens in a history, from the seed, and allocates time for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from scale0.pipeline.time_ranges import MINUTE_US
from simulator.history.plan import TooSmall
from simulator.history.script import Script
from simulator.history.script_checks import plant_checks
from simulator.history.script_clients import plant_clients
from simulator.history.script_sources import plant_sources

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simulator.history.plan import Plan

MARGIN_US: Final = 20 * MINUTE_US
"""Between two truths of one subject: longer than any silence, lease or timeout."""
TRIES: Final = 2_000


class Calendar:
    """Allocates intervals by key: the name of a source, client, agent or method. Intervals of one key keep a margin."""

    def __init__(self, from_us: int, to_us: int, rng: np.random.Generator) -> None:
        self._from_us = from_us
        self._to_us = to_us
        self._rng = rng
        self._taken: dict[str, list[tuple[int, int]]] = {}

    def slot(
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
                start = int(self._rng.integers(low, high))
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


PLANTING: Final = 1
"""The random stream of planting; the generators use others."""


def plant(plan: Plan) -> Script:
    """TooSmall if there is not enough time for all truths."""
    rng = np.random.Generator(np.random.PCG64([plan.seed, PLANTING]))
    calendar = Calendar(plan.start_us, plan.end_us, rng)
    sources = plant_sources(plan, calendar, rng)
    clients = plant_clients(plan, calendar, rng)
    monitoring = plant_checks(plan, calendar, rng)
    return Script(
        plan=plan,
        boots=sources.boots,
        steps=sources.steps,
        backends=clients.backends,
        releases=clients.releases,
        schedule=monitoring.schedule,
        episodes=monitoring.episodes,
        downtimes=monitoring.downtimes,
        absences=monitoring.absences,
        fillings=monitoring.fillings,
        truths=(*sources.truths, *clients.truths, *monitoring.truths),
    )
