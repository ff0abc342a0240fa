"""A coroutine that waits for a task is woken, also if the end comes in the turn in which it begins to wait."""

from __future__ import annotations

import asyncio

import pytest

import scale0
from tests.fakes.broker_process import BrokerProcess
from tests.processes.client.net import client_of, started

pytestmark = pytest.mark.processes


def test_an_end_that_is_read_in_the_turn_in_which_somebody_begins_to_wait_wakes_it(broker: BrokerProcess) -> None:
    worker = scale0.Worker(broker.endpoints["backend"])
    worker.add("echo", lambda value: value)

    async def main() -> None:
        async with scale0.AsyncClient(broker.endpoints["frontend"], timeout=10) as net:
            task = await net.submit("echo", 5)
            # Our own loop stands still meanwhile, so the end of the task waits in our socket: a later one has ended.
            with client_of(broker, timeout=10) as other:
                assert other.submit("echo", 6).result(10) == 6
            async with asyncio.timeout(5):
                assert await asyncio.create_task(task.result()) == 5

    with started(worker):
        asyncio.run(main())
