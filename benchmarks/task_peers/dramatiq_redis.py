"""Dramatiq on Redis, with its Redis result backend: an actor, and a client that enqueues and fetches results.

The worker is `dramatiq benchmarks.task_peers.dramatiq_redis --processes 1`: this module is what it imports, and the
place comes from the environment.
"""

from __future__ import annotations

import os
import time
from typing import Any

import dramatiq  # type: ignore[import-not-found]
from dramatiq.brokers.redis import RedisBroker  # type: ignore[import-not-found]
from dramatiq.results import Results  # type: ignore[import-not-found]
from dramatiq.results.backends import RedisBackend  # type: ignore[import-not-found]

from benchmarks.task_peers.shared import (
    IDLE_QUEUE,
    PAYLOAD,
    QUEUE,
    RESULT_SECONDS,
    main,
    take,
)

URL = os.environ.get("BENCH_REDIS", "redis://127.0.0.1:6379")

backend = RedisBackend(url=URL)
broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=backend))
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=QUEUE, store_results=True)  # type: ignore[untyped-decorator]
def noop(payload: str) -> str:
    return payload


@dramatiq.actor(queue_name=IDLE_QUEUE, store_results=True)  # type: ignore[untyped-decorator]
def nobody(payload: str) -> str:
    return payload


def submit(actor: Any, count: int) -> list[Any]:
    return [actor.send(PAYLOAD) for _ in range(count)]


def through(count: int) -> None:
    for message in submit(noop, count):
        message.get_result(backend=backend, block=True, timeout=RESULT_SECONDS * 1_000)


def one() -> float:
    start = time.perf_counter()
    through(1)
    return time.perf_counter() - start


def worker(place: str) -> None:
    raise SystemExit(f"run `dramatiq benchmarks.task_peers.dramatiq_redis` with BENCH_REDIS={place}")


def client(place: str, measure: str, count: int) -> None:
    take(measure, count, lambda count: submit(nobody, count), through, one)


if __name__ == "__main__":
    main(worker, client)
