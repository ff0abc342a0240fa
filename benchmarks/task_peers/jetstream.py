"""NATS JetStream by nats-py on uvloop: tasks in a work-queue stream, results as plain messages or in a stream.

Two ways to use it, both tuned. By nats-py's own names: `publish_async`, and `fetch` in batches, two at a time
(`results`, `submit`). By hand, on the same connection: acknowledgements of publishes are counted on one inbox, without
a future for each, and the next batch is asked for when half of one is worked off (`results_by_hand`, `submit_by_hand`).
There, results come back as plain messages, which a submitter that dies has lost; `results_stored` is by hand too, but
results come back through a second stream, and a task is acknowledged when its result has been.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import nats
import uvloop
from nats.js import api

from benchmarks.ends import say
from benchmarks.task_peers.shared import IDLE_QUEUE, PAYLOAD, QUEUE, RESULT_SECONDS, WARM_UP_TASKS, main

HAND_QUEUE = f"{QUEUE}-by-hand"
STORED_QUEUE = f"{QUEUE}-stored"
RESULTS = "bench-results"
REPLIES = "bench-replies"
AHEAD = 1_000
"""Publishes that are not yet acknowledged."""
PULL_TASKS = 1_000
FETCH_TASKS = 500
FETCHES = 2
"""At the same time: one is worked on while the other is on its way."""
FETCH_SECONDS = 0.2
"""nats-py may ask for less than nothing after a batch that was more than full, and then waits so long in vain."""
PENDING_BYTES = 16 * 1024 * 1024

Take = Callable[[Any], Awaitable[None]]


class Publisher:
    """Publishes into a stream, many at once; `settle` waits until all are acknowledged."""

    def __init__(self, connection: Any, subject: str) -> None:
        self._connection, self._subject = connection, subject
        self._inbox = connection.new_inbox()
        self._open = 0
        self._tasks: deque[Any] = deque()
        self._room, self._empty = asyncio.Event(), asyncio.Event()

    async def start(self) -> Publisher:
        await self._connection.subscribe(self._inbox, cb=self._acknowledged)
        return self

    async def _acknowledged(self, message: Any) -> None:
        if not message.data.startswith(b'{"stream"'):
            raise SystemExit(f"refused: {message.data!r}")
        if self._tasks:
            # Acknowledgements of one connection come in the order of its publishes.
            await self._tasks.popleft().ack()
        self._open -= 1
        if self._open < AHEAD:
            self._room.set()
        if not self._open:
            self._empty.set()

    async def publish(self, body: bytes) -> None:
        while self._open >= AHEAD:
            self._room.clear()
            await self._room.wait()
        self._open += 1
        self._empty.clear()
        await self._connection.publish(self._subject, body, reply=self._inbox)

    async def answer(self, task: Any) -> None:
        """Publish the task's result; when that is acknowledged, the task is."""
        self._tasks.append(task)
        await self.publish(task.data)

    async def settle(self) -> None:
        if self._open:
            await self._empty.wait()


class Results:
    """Counts results; `wait` ends when as many have come as were wanted."""

    def __init__(self) -> None:
        self._missing = 0
        self._complete = asyncio.Event()

    def expect(self, count: int) -> None:
        self._missing += count
        self._complete.clear()

    async def arrived(self, message: Any) -> None:
        self._missing -= 1
        if self._missing <= 0:
            self._complete.set()

    async def stored(self, message: Any) -> None:
        await message.ack()
        await self.arrived(message)

    async def wait(self) -> None:
        await asyncio.wait_for(self._complete.wait(), RESULT_SECONDS)


async def connect(place: str) -> tuple[Any, Any]:
    connection = await nats.connect(place, pending_size=PENDING_BYTES)
    return connection, connection.jetstream(publish_async_max_pending=AHEAD)


async def pull(connection: Any, stream: Any, name: str, take: Take) -> None:
    """From now on give `take` what the stream holds."""
    await stream.add_consumer(name, durable_name="ends", ack_policy=api.AckPolicy.EXPLICIT, max_ack_pending=20_000)
    inbox = connection.new_inbox()
    asked = 0

    async def ask(count: int) -> None:
        nonlocal asked
        asked += count
        wish = {"batch": count, "expires": RESULT_SECONDS * 1_000_000_000}
        await connection.publish(f"$JS.API.CONSUMER.MSG.NEXT.{name}.ends", json.dumps(wish).encode(), reply=inbox)

    async def arrived(message: Any) -> None:
        nonlocal asked
        if not message.reply:  # a status: what was asked for has expired
            asked = 0
            await ask(PULL_TASKS)
            return
        asked -= 1
        if asked == PULL_TASKS // 2:
            await ask(PULL_TASKS)
        await take(message)

    await connection.subscribe(inbox, cb=arrived)
    await ask(PULL_TASKS)


async def fetch(stream: Any, name: str, take: Take) -> None:
    """Give `take` what the stream holds, for ever."""
    tasks = await stream.pull_subscribe(name, durable="ends", config=api.ConsumerConfig(max_ack_pending=20_000))
    while True:
        try:
            messages = await tasks.fetch(FETCH_TASKS, timeout=FETCH_SECONDS)
        except TimeoutError:
            continue
        for message in messages:
            await take(message)


async def work(place: str) -> None:
    connection, stream = await connect(place)
    for name in (QUEUE, HAND_QUEUE, STORED_QUEUE, IDLE_QUEUE, RESULTS):
        kind = api.RetentionPolicy.WORK_QUEUE
        await stream.add_stream(name=name, subjects=[name], retention=kind, storage=api.StorageType.FILE)
    results = await Publisher(connection, RESULTS).start()

    async def answer(message: Any) -> None:
        await connection.publish(REPLIES, message.data)
        await message.ack()

    await pull(connection, stream, HAND_QUEUE, answer)
    await pull(connection, stream, STORED_QUEUE, results.answer)
    print("ready", flush=True)
    await asyncio.gather(*(fetch(stream, QUEUE, answer) for _ in range(FETCHES)))


async def submit(place: str, measure: str, count: int) -> None:
    connection, stream = await connect(place)
    body = PAYLOAD.encode()
    queue = {"results": QUEUE, "results_by_hand": HAND_QUEUE, "results_stored": STORED_QUEUE}.get(measure, IDLE_QUEUE)
    by_name = measure in ("results", "submit")
    tasks = await Publisher(connection, queue).start()
    results = Results()

    async def send(count: int) -> None:
        if by_name:
            for _ in range(count):
                await stream.publish_async(queue, body)
            await stream.publish_async_completed()
        else:
            for _ in range(count):
                await tasks.publish(body)
            await tasks.settle()

    async def through(count: int) -> None:
        results.expect(count)
        await send(count)
        await results.wait()

    measured = send if queue == IDLE_QUEUE else through
    if measured is through:
        await connection.subscribe(REPLIES, cb=results.arrived)
        await pull(connection, stream, RESULTS, results.stored)
        await through(WARM_UP_TASKS)
    start = time.perf_counter()
    await measured(count)
    say(rate=count / (time.perf_counter() - start))


def worker(place: str) -> None:
    uvloop.run(work(place))


def client(place: str, measure: str, count: int) -> None:
    uvloop.run(submit(place, measure, count))


if __name__ == "__main__":
    main(worker, client)
