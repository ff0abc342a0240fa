"""The measurements of `scale0 bench`, through the public `Client` and `AsyncClient`.

Each one runs for a time or a number of operations, whichever ends first. It waits for all that it has begun, also after
a signal, so that no task is left; the broker deletes each task within seconds.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from scale0.client.async_client import AsyncClient
    from scale0.client.client import Client

RUN: Final = "SCALE0_BENCH_RUN"
"""The variable with the id of a run, which makes its service names unique; for the worker."""
BODY_BYTES: Final = 100
IN_FLIGHT: Final = 100
TASKS_IN_FLIGHT: Final = 2_000
SUBMIT_TASKS: Final = 500
"""Submitted at once, between two checks of the clock."""
RESULT_TTL_SECONDS: Final = 5.0
"""How long a result is kept: long enough to fetch it."""
TASK_SECONDS: Final = 30.0
WARM_UP: Final = 50
PROBE_BYTES: Final = 4_096
PROBES: Final = 500
CORE_STEPS: Final = 100_000
MICRO: Final = 1e6


def service_of(run: str) -> str:
    """The service for requests; names that begin with `scale0.` are reserved."""
    return f"scale0-bench.{run}.echo"


def task_service_of(run: str) -> str:
    return f"scale0-bench.{run}.noop"


class Figure(NamedTuple):
    """One measurement: operations per second, and latencies if they ran one by one."""

    rate: float
    p50_us: float | None = None
    p99_us: float | None = None
    done: int = 0


class Bounds:
    """The limits of a measurement in time and in number; the event ends it."""

    def __init__(self, seconds: float, most: int, ended: threading.Event) -> None:
        self._until = time.monotonic() + seconds
        self._ended = ended
        self.left = most

    def more(self) -> bool:
        """True if one more may begin, which is counted."""
        if self.left <= 0 or self._ended.is_set() or time.monotonic() >= self._until:
            return False
        self.left -= 1
        return True

    def each(self, item: Any) -> Iterator[Any]:
        while self.more():
            yield item


def figure_of(seconds: list[float]) -> Figure:
    ordered = sorted(seconds)
    p50, p99 = (ordered[min(len(ordered) - 1, len(ordered) * share // 100)] * MICRO for share in (50, 99))
    return Figure(len(ordered) / sum(ordered), p50, p99, len(ordered))


def one_by_one(bounds: Bounds, act: Callable[[], object]) -> Figure:
    """One operation after the other, at least one."""
    times: list[float] = []
    while bounds.more() or not times:
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return figure_of(times)


def rate_of(count: int, start: float) -> Figure:
    return Figure(count / max(time.perf_counter() - start, 1e-9), done=count)


def requests_single(net: Client, run: str, bounds: Bounds) -> Figure:
    """A client that waits for each answer."""
    service, body = service_of(run), b"x" * BODY_BYTES
    for _ in range(WARM_UP):
        net.request(service, body)
    return one_by_one(bounds, lambda: net.request(service, body))


def requests_batched(net: Client, run: str, bounds: Bounds) -> Figure:
    """`Client.map`: many in flight, and requests that are sent together are one message."""
    items = bounds.each(b"x" * BODY_BYTES)
    start = time.perf_counter()
    answered = sum(1 for _ in net.map(service_of(run), items, in_flight=IN_FLIGHT, raw=True))
    return rate_of(answered, start)


def requests_in_flight(make: Callable[[], AsyncClient], run: str, bounds: Bounds) -> Figure:
    """Many coroutines of one client, each of which waits for its answer."""

    async def run_all() -> Figure:
        service, body = service_of(run), b"x" * BODY_BYTES
        answered = 0
        async with make() as net:
            await net.request(service, body)

            async def one() -> None:
                nonlocal answered
                while bounds.more():
                    await net.request(service, body)
                    answered += 1

            start = time.perf_counter()
            await asyncio.gather(*(one() for _ in range(IN_FLIGHT)))
            return rate_of(answered, start)

    return asyncio.run(run_all())


def tasks_single(net: Client, run: str, bounds: Bounds) -> Figure:
    """A client that waits for each result."""
    service, text = task_service_of(run), "x" * BODY_BYTES
    submission = net.task(result_ttl=RESULT_TTL_SECONDS)
    submission.submit(service, text).result(TASK_SECONDS)
    return one_by_one(bounds, lambda: submission.submit(service, text).result(TASK_SECONDS))


def tasks_submitted(net: Client, run: str, bounds: Bounds) -> Figure:
    """Tasks acknowledged, so stored on disk, while the worker runs them; waiting for the results does not count."""
    service, text = task_service_of(run), "x" * BODY_BYTES
    submission = net.task(result_ttl=RESULT_TTL_SECONDS)
    tasks = []
    start = time.perf_counter()
    while bounds.more():
        some = min(SUBMIT_TASKS, bounds.left + 1)
        bounds.left -= some - 1
        tasks += submission.submit_many(service, [text] * some)
    found = rate_of(len(tasks), start)
    for task in tasks:
        task.result(TASK_SECONDS)
    return found


def tasks_completed(net: Client, run: str, bounds: Bounds) -> Figure:
    """From submission to the received result, many in flight."""
    items = bounds.each("x" * BODY_BYTES)
    start = time.perf_counter()
    submission = net.task(result_ttl=RESULT_TTL_SECONDS)
    got = sum(1 for _ in submission.map(task_service_of(run), items, in_flight=TASKS_IN_FLIGHT))
    return rate_of(got, start)


def fsync(folder: Path, bounds: Bounds) -> Figure:
    """Writes of 4 KiB with fdatasync, in a file that has its final size."""
    path = folder / f"fsync-{os.getpid()}.probe"
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.pwrite(number, b"x" * PROBE_BYTES * PROBES, 0)
        os.fsync(number)
        blocks = iter(range(PROBES))

        def write() -> None:
            os.pwrite(number, b"y" * PROBE_BYTES, next(blocks) * PROBE_BYTES)
            os.fdatasync(number)

        return one_by_one(bounds, write)
    finally:
        os.close(number)
        path.unlink()


def core(bounds: Bounds) -> float:
    """Steps of a plain Python loop per second on one core, the best of several runs."""
    best = 0.0
    while bounds.more() or not best:
        start, total = time.perf_counter(), 0
        for step in range(CORE_STEPS):
            total += step * step & 0xFF
        best = max(best, CORE_STEPS / (time.perf_counter() - start))
    return best
