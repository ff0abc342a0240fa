"""What `scale0 chaos` does when, all of it from one seed.

Lives here: the schedule of kills, which tasks are submitted, and the words that the parts share. Never here: a process,
a clock or a socket. Invariant: the same seed and the same options give the same plan.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

BROKER: Final = "broker"
BROKER_SHARE: Final = 0.3
"""Of the kills; the rest are workers."""
AGAIN_SHARE: Final = 0.15
"""Of the kills that are followed by another one at once: two at a time, or one that has just started."""
FIRST_SECONDS: Final = 1.0
"""Before the first kill."""
LEAST_GAP_SECONDS: Final = 0.3
AGAIN_SECONDS: Final = 0.8
DOWN_SECONDS: Final = 1.5
"""At most so long until what was killed is started again."""

FINISHED: Final = "finished"
FAILED: Final = "failed"
MANY: Final = 30
"""Attempts of tasks that should finish: more than kills can use up."""
FEW: Final = 3
"""Attempts of tasks that always fail."""
CHAIN: Final = 3
"""Tasks in one chain."""

FOLDER: Final = "SCALE0_CHAOS_FOLDER"
"""The variable that tells a worker where to write its runs down."""
NAME: Final = "SCALE0_CHAOS_NAME"
"""The variable that tells a worker its identity."""
RUNS_ENDING: Final = ".runs"
BEGUN: Final = "begun"
ENDED: Final = "ended"


class Kill(NamedTuple):
    """One kill -9."""

    at: float
    """Seconds from the start."""
    victim: str
    down: float
    """Seconds until it is started again."""


class TaskKind(NamedTuple):
    """A kind of task."""

    service: str
    share: int
    """How often it is submitted, beside the others."""
    ends: str = FINISHED
    max_attempts: int = MANY
    options: dict[str, Any] = {}  # noqa: RUF012  # nobody changes it


SORTS: Final = {
    "quick": TaskKind("chaos.quick", 60),
    "slow": TaskKind("chaos.slow", 12),
    "flaky": TaskKind("chaos.flaky", 10, options={"backoff": 0.1}),
    "failing": TaskKind("chaos.failing", 6, FAILED, FEW),
    "hanging": TaskKind("chaos.hanging", 1, options={"timeout": 1.0}),
    "keyed": TaskKind("chaos.quick", 6),
    "chained": TaskKind("chaos.quick", 5),
}
"""quick: a no-op. slow: it sleeps. flaky: its first attempts raise. failing: all do. hanging: its first attempt
outlasts its timeout. keyed: submitted twice with one key. chained: three in a row by `after`."""


def kills(seed: int, seconds: float, workers: int, every: float) -> list[Kill]:
    """Whom to kill when: about one `every` so many seconds, a worker and a broker in any case."""
    dice = random.Random(f"kills {seed}")
    names = [f"worker-{number}" for number in range(1, workers + 1)]
    made: list[Kill] = []
    at = FIRST_SECONDS
    first = [BROKER, dice.choice(names)]
    while at < seconds or first:
        victim = first.pop() if first else BROKER if dice.random() < BROKER_SHARE else dice.choice(names)
        made.append(Kill(min(at, seconds), victim, dice.uniform(0.0, DOWN_SECONDS)))
        gap = AGAIN_SECONDS * dice.random() if dice.random() < AGAIN_SHARE else dice.expovariate(1.0 / every)
        at += max(LEAST_GAP_SECONDS, gap)
    return made


def kinds(seed: int) -> Iterator[str]:
    """Which kind of task comes next, without end."""
    dice = random.Random(f"tasks {seed}")
    names, shares = list(SORTS), [sort.share for sort in SORTS.values()]
    while True:
        yield from dice.choices(names, shares, k=100)
