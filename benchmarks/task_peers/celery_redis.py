"""Celery on Redis, with results in Redis: an application, and a client that submits and joins results.

The worker is `celery --app benchmarks.task_peers.celery_redis worker`: this module is what it imports, and the place
comes from the environment.
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery  # type: ignore[import-not-found]
from celery.result import ResultSet  # type: ignore[import-not-found]

from benchmarks.task_peers.shared import (
    IDLE_QUEUE,
    PAYLOAD,
    QUEUE,
    RESULT_SECONDS,
    main,
    take,
)

URL = os.environ.get("BENCH_REDIS", "redis://127.0.0.1:6379")

app = Celery("bench", broker=URL, backend=URL)
app.conf.update(
    task_default_queue=QUEUE,
    worker_prefetch_multiplier=100,
    worker_disable_rate_limits=True,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="bench.noop")  # type: ignore[untyped-decorator]
def noop(payload: str) -> str:
    return payload


def submit(queue: str, count: int) -> list[Any]:
    with app.producer_pool.acquire(block=True) as producer:
        return [noop.apply_async((PAYLOAD,), queue=queue, producer=producer) for _ in range(count)]


def through(count: int) -> None:
    found = ResultSet(submit(QUEUE, count)).join_native(timeout=RESULT_SECONDS)
    if len(found) != count:
        raise RuntimeError(f"{len(found)} results of {count}")


def one() -> float:
    start = time.perf_counter()
    submit(QUEUE, 1)[0].get(timeout=RESULT_SECONDS)
    return time.perf_counter() - start


def worker(place: str) -> None:
    raise SystemExit(f"run `celery --app benchmarks.task_peers.celery_redis worker` with BENCH_REDIS={place}")


def client(place: str, measure: str, count: int) -> None:
    take(measure, count, lambda count: submit(IDLE_QUEUE, count), through, one)


if __name__ == "__main__":
    main(worker, client)
