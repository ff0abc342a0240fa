"""What all ends share: the payload, the names, and how a figure is said. Nothing here imports a queue."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from benchmarks.ends import quantiles, say

PAYLOAD = "x" * 100
"""100 bytes: what a task carries, and what its result is."""
QUEUE = "bench-noop"
IDLE_QUEUE = "bench-idle"
"""Nobody works on it: submission alone is measured here."""
RESULT_SECONDS = 60
"""No result takes longer; a run that waits for more has failed, and says so."""
WARM_UP_TASKS = 200


def timed(count: int, work: Callable[[int], object]) -> None:
    """Say the rate of `work(count)`."""
    start = time.perf_counter()
    work(count)
    say(rate=count / (time.perf_counter() - start))


def timed_singly(count: int, one: Callable[[], float]) -> None:
    """Say the quantiles of `one()`, which tells how many seconds it took."""
    say(**quantiles([one() for _ in range(count)]))


def take(
    measure: str, count: int, submit: Callable[[int], object], through: Callable[[int], None], one: Callable[[], float]
) -> None:
    """Say the figure that is wanted: of submission alone, of the whole way, or of one task at a time."""
    if measure == "submit":
        timed(count, submit)
        return
    through(WARM_UP_TASKS)
    if measure == "results":
        timed(count, through)
    else:
        timed_singly(count, one)


def main(worker: Callable[[str], None], client: Callable[[str, str, int], None]) -> None:
    """Be the end that the command line names."""
    match sys.argv[1:]:
        case ["worker", place]:
            worker(place)
        case ["client", place, measure, count]:
            client(place, measure, int(count))
        case other:
            raise SystemExit(f"not understood: {other}")
