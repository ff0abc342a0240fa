"""RQ on Redis: a function, and a client that enqueues it and waits for results.

The worker is `rq worker --worker-class rq.worker.SimpleWorker`, which runs jobs in its own process: the usual one forks
for each job, and is slower. The place comes from the environment.
"""

from __future__ import annotations

import os
import time
from typing import Any

from redis import Redis  # type: ignore[import-not-found,unused-ignore]
from rq import Queue  # type: ignore[import-not-found,unused-ignore]

from benchmarks.task_peers.shared import (
    IDLE_QUEUE,
    PAYLOAD,
    QUEUE,
    RESULT_SECONDS,
    main,
    take,
)

URL = os.environ.get("BENCH_REDIS", "redis://127.0.0.1:6379")
BATCH = 100
"""Enqueued with one round trip, as `enqueue_many` is for."""

FUNCTION = "benchmarks.task_peers.rq_redis.noop"
"""By name: where this file is run, it has another one."""

connection = Redis.from_url(URL)


def noop(payload: str) -> str:
    return payload


def submit(name: str, count: int) -> list[Any]:
    queue = Queue(name, connection=connection)
    jobs: list[Any] = []
    for first in range(0, count, BATCH):
        some = range(min(BATCH, count - first))
        jobs += queue.enqueue_many([Queue.prepare_data(FUNCTION, args=(PAYLOAD,)) for _ in some])
    return jobs


def through(count: int) -> None:
    for job in submit(QUEUE, count):
        found = job.latest_result(timeout=RESULT_SECONDS)
        if found is None or found.return_value != PAYLOAD:
            raise RuntimeError("a result is missing")


def one() -> float:
    start = time.perf_counter()
    through(1)
    return time.perf_counter() - start


def worker(place: str) -> None:
    raise SystemExit(f"run `rq worker {QUEUE} --url {place} --worker-class rq.worker.SimpleWorker`")


def client(place: str, measure: str, count: int) -> None:
    take(measure, count, lambda count: submit(IDLE_QUEUE, count), through, one)


if __name__ == "__main__":
    main(worker, client)
