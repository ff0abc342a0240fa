"""Scale0's own ends, by what users import: `Client` and `Worker`.

Besides the measures that all have: `preload` submits tasks that stay (how fast at first and at last), and workers that
`drain` so many tasks and leave, that `hold` tasks for ever, or that are `quick` with the same ones.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import threading
import time
from typing import Any

import scale0
from benchmarks.ends import say
from benchmarks.task_peers.shared import (
    IDLE_QUEUE,
    PAYLOAD,
    QUEUE,
    RESULT_SECONDS,
    WARM_UP_TASKS,
    main,
    timed,
    timed_singly,
)

HOLD = "bench-hold"
HOLD_SLOTS = 1_000
IN_FLIGHT = 2_000
PRELOAD_SLICE = 20_000
"""Submitted at once: a client need not hold a million tasks to have submitted them."""
PRELOAD_SHOWN = 5
"""Slices at each end whose median is said."""


def ready(worker: Any) -> None:
    worker.start()
    if not worker.wait_until_up(RESULT_SECONDS):
        raise SystemExit("no broker")
    print("ready", flush=True)


def worker(place: str) -> None:
    node = scale0.Worker(place)

    @node.service(QUEUE, slots=1)
    def noop(payload: str) -> str:
        return payload

    ready(node)
    node.run()


def drain(place: str, count: int) -> None:
    """Do `count` tasks and leave; say `begun` and `done` when it is so."""
    node = scale0.Worker(place)
    left = count
    done = threading.Event()

    @node.service(IDLE_QUEUE, slots=1)
    def noop(payload: str) -> str:
        nonlocal left
        if left == count:
            print("begun", flush=True)
        left -= 1
        if left == 0:
            print("done", flush=True)
            done.set()
        return payload

    ready(node)
    done.wait(RESULT_SECONDS)
    node.stop()


def hold(place: str, count: int) -> None:
    """Take tasks and never finish them; say `holding` when there are `count`."""
    node = scale0.Worker(place)
    held = 0

    @node.service(HOLD, slots=HOLD_SLOTS)
    async def noop(payload: str) -> str:
        nonlocal held
        held += 1
        if held == count:
            print("holding", flush=True)
        await asyncio.Event().wait()
        return payload

    ready(node)
    node.run()


def quick(place: str) -> None:
    node = scale0.Worker(place)

    @node.service(HOLD, slots=1)
    def noop(payload: str) -> str:
        return payload

    ready(node)
    node.run()


def preload(net: scale0.Client, count: int) -> None:
    rates = []
    while count:
        size = min(count, PRELOAD_SLICE)
        start = time.perf_counter()
        net.task(notify=False).submit_many(IDLE_QUEUE, [PAYLOAD] * size)
        rates.append(size / (time.perf_counter() - start))
        count -= size
    say(first_rate=statistics.median(rates[:PRELOAD_SHOWN]), last_rate=statistics.median(rates[-PRELOAD_SHOWN:]))


def client(place: str, measure: str, count: int) -> None:
    with scale0.Client(place) as net:

        def through(count: int) -> None:
            items = (PAYLOAD for _ in range(count))
            got = sum(1 for _ in net.task().map(QUEUE, items, in_flight=IN_FLIGHT))
            if got != count:
                raise RuntimeError(f"{got} results of {count}")

        def one() -> float:
            start = time.perf_counter()
            net.submit(QUEUE, PAYLOAD).result(RESULT_SECONDS)
            return time.perf_counter() - start

        match measure:
            case "submit":
                timed(count, lambda count: net.submit_many(IDLE_QUEUE, (PAYLOAD for _ in range(count))))
            case "preload":
                preload(net, count)
            case "results":
                through(WARM_UP_TASKS)
                timed(count, through)
            case "single":
                through(WARM_UP_TASKS)
                timed_singly(count, one)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["drain", place, count]:
            drain(place, int(count))
        case ["hold", place, count]:
            hold(place, int(count))
        case ["quick", place]:
            quick(place)
        case _:
            main(worker, client)
