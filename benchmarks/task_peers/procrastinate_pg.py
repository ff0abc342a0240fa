"""Procrastinate on PostgreSQL: a worker that runs a task which does nothing, and a client that defers it.

It keeps no results: a client is done when all of its jobs are in the state `succeeded`. Both ends run on uvloop and
psycopg's binary build.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import procrastinate  # type: ignore[import-not-found,unused-ignore]
import uvloop

from benchmarks.ends import say
from benchmarks.task_peers.shared import IDLE_QUEUE, PAYLOAD, QUEUE, RESULT_SECONDS, WARM_UP_TASKS

CONNECTIONS = 4
"""Its default; 10 and 20 were slower."""
IN_FLIGHT = 100
"""Coroutines that defer singly at one time."""
BATCH = 1_000
POLL_SECONDS = 0.02

LEFT = "SELECT count(*) AS left FROM procrastinate_jobs WHERE queue_name = %(queue)s AND status IN ('todo', 'doing')"
DONE = "SELECT count(*) AS done FROM procrastinate_jobs WHERE queue_name = %(queue)s AND status = 'succeeded'"


def application(place: str) -> tuple[Any, Any, Any]:
    """The application, a task that a worker runs, and one that nobody does."""
    app = procrastinate.App(
        connector=procrastinate.PsycopgConnector(conninfo=place, min_size=CONNECTIONS, max_size=CONNECTIONS)
    )

    @app.task(queue=QUEUE, name="noop")  # type: ignore[untyped-decorator,unused-ignore]
    async def noop(payload: str) -> str:
        return payload

    @app.task(queue=IDLE_QUEUE, name="nobody")  # type: ignore[untyped-decorator,unused-ignore]
    async def nobody(payload: str) -> str:
        return payload

    return app, noop, nobody


async def schema(place: str) -> None:
    app, _, _ = application(place)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def worker(place: str, concurrency: int) -> None:
    app, _, _ = application(place)
    async with app.open_async():
        print("ready", flush=True)
        await app.run_worker_async(queues=[QUEUE], concurrency=concurrency)


async def singly(task: Any, count: int) -> None:
    left = iter(range(count))

    async def some() -> None:
        for _ in left:
            await task.defer_async(payload=PAYLOAD)

    await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))


async def in_batches(task: Any, count: int) -> None:
    for first in range(0, count, BATCH):
        await task.batch_defer_async(*({"payload": PAYLOAD} for _ in range(min(BATCH, count - first))))


async def finished(app: Any, expected: int) -> None:
    """Wait until no job is left, and see that all of them succeeded."""
    until = time.monotonic() + RESULT_SECONDS
    while (await app.connector.execute_query_one_async(LEFT, queue=QUEUE))["left"]:
        if time.monotonic() > until:
            raise RuntimeError("jobs are left")
        await asyncio.sleep(POLL_SECONDS)
    done = (await app.connector.execute_query_one_async(DONE, queue=QUEUE))["done"]
    if done != expected:
        raise RuntimeError(f"{done} jobs succeeded of {expected}")


async def client(place: str, measure: str, count: int) -> None:
    app, noop, nobody = application(place)
    defer: Callable[[Any, int], Awaitable[None]] = in_batches if measure.endswith("_batch") else singly
    async with app.open_async():
        if measure.startswith("submit"):
            start = time.perf_counter()
            await defer(nobody, count)
        else:
            await defer(noop, WARM_UP_TASKS)
            await finished(app, WARM_UP_TASKS)
            start = time.perf_counter()
            await defer(noop, count)
            await finished(app, WARM_UP_TASKS + count)
        say(rate=count / (time.perf_counter() - start))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["schema", place]:
            uvloop.run(schema(place))
        case ["worker", place, concurrency]:
            uvloop.run(worker(place, int(concurrency)))
        case ["client", place, measure, count]:
            uvloop.run(client(place, measure, int(count)))
        case other:
            raise SystemExit(f"not understood: {other}")
