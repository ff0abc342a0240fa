"""`AsyncClient`: the same promises as `Client`, kept for coroutines."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

import scale0
from scale0 import errors
from tests.fakes.broker_process import BrokerProcess
from tests.fakes.waiting import eventually
from tests.processes.client.handlers import arguments, double, fails, same, waits
from tests.processes.client.net import client_of, started

pytestmark = pytest.mark.processes


def breaks_later(most: int) -> Iterator[int]:
    yield from range(most)
    raise KeyError("end")


@pytest.fixture(scope="module", autouse=True)
def worker(broker: BrokerProcess) -> Iterator[None]:
    made = scale0.Worker(broker.endpoints["backend"])
    for function in (arguments, breaks_later, fails):
        made.add(function.__name__, function)
    made.add("double", double, slots=50)
    made.add("waits", waits, slots=20)
    made.add("same", same, raw=True)
    with started(made):
        yield


def connected(broker: BrokerProcess, **options: Any) -> scale0.AsyncClient:
    return scale0.AsyncClient(broker.endpoints["frontend"], **{"timeout": 10, **options})


async def test_every_way_to_ask(broker: BrokerProcess) -> None:
    async with connected(broker) as net:
        assert await net.call("arguments", 1, a="ü") == [[1], {"a": "ü"}]
        assert await net.request("same", b"", b"\0") == [b"", b"\0"]
        assert [value async for value in net.map("double", range(250), in_flight=7)] == [2 * n for n in range(250)]
        assert [value async for value in net.map("same", [b"a"], raw=True)] == [[b"a"]]
        assert {"arguments", "double"} <= {row["service"] for row in await net.services()}
        await eventually(lambda: net.identity)  # CONFIG waits for a commit, and replies do not
        assert net.identity in {row["identity"] for row in await net.clients()}
        assert (await net.ping())["broker"] == "broker-1"
        assert (await net.manage("status", auth_token=broker.token))["broker"] == "broker-1"
        with pytest.raises(errors.WrongCredentials):
            await net.manage("status", auth_token="s0_wrong")


async def test_a_stream_gives_its_parts_and_then_its_error(broker: BrokerProcess) -> None:
    async with connected(broker) as net:
        stream = net.stream("breaks_later", 5)
        assert [await anext(stream) for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(errors.ServiceFailed, match="KeyError"):
            await anext(stream)


async def test_a_thousand_calls_at_once(broker: BrokerProcess) -> None:
    async with connected(broker) as net:
        assert await asyncio.gather(*(net.call("double", n) for n in range(1_000))) == [2 * n for n in range(1_000)]


async def test_each_code_has_its_error(broker: BrokerProcess) -> None:
    async with connected(broker) as net:
        for code, kind in errors.BY_CODE.items():
            with pytest.raises(kind) as caught:
                await net.call("fails", code)
            assert (type(caught.value), caught.value.code) == (kind, code)
        with pytest.raises(errors.NoSuchService):
            await net.call("nobody.offers.this", timeout=0.1)
        with pytest.raises(errors.NoAnswer):
            await net.call("waits", 1.0, timeout=0.1)


async def test_what_cannot_travel_or_be_read_is_its_callers_own_trouble(broker: BrokerProcess) -> None:
    async with connected(broker) as net:
        others = [asyncio.ensure_future(net.call("double", n)) for n in range(20)]
        with pytest.raises(TypeError):
            await net.request("same", "text")  # type: ignore[arg-type]
        with pytest.raises(ValueError):
            await net.call("double", 1, timeout=float("nan"))
        wrong = net._core.start("same", (b"{no JSON",), None, None, raw=False)
        with pytest.raises(ValueError):
            await net._result(wrong)
        assert await asyncio.gather(*others) == [2 * n for n in range(20)]


async def test_a_cancelled_call_breaks_no_other(broker: BrokerProcess) -> None:
    async with connected(broker) as net:
        calls = [asyncio.ensure_future(net.call("waits", 0.2)) for _ in range(10)]
        await eventually(lambda: len(net._core.session._calls) == 10)
        for call in calls[::2]:
            call.cancel()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert ended[1::2] == [0.2] * 5
        assert all(isinstance(one, asyncio.CancelledError) for one in ended[::2])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(net.call("waits", 0.5), 0.05)
        assert await net.call("double", 2) == 4


async def test_closing_ends_what_is_under_way_and_later_calls(broker: BrokerProcess) -> None:
    async with connected(broker) as net:
        calls = [asyncio.ensure_future(net.call("waits", 20.0)) for _ in range(5)]
        await eventually(lambda: len(net._core.session._calls) == 5)
        await net.close()
        await net.close()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(one) for one in ended] == [errors.NotServing] * 5
        with pytest.raises(RuntimeError, match="closed"):
            await net.call("double", 1)


def test_it_belongs_to_one_loop(broker: BrokerProcess) -> None:
    net = scale0.AsyncClient(broker.endpoints["frontend"])

    async def call() -> Any:
        return await net.call("double", 4)

    assert asyncio.run(call()) == 8
    # The loop is closed: the client cannot go on in another, and still can be closed there.
    with pytest.raises(RuntimeError, match="one event loop"):
        asyncio.run(call())
    asyncio.run(net.close())


async def test_it_reconnects_and_nothing_that_waits_is_forgotten(own: BrokerProcess) -> None:
    async with connected(own) as net:
        await net.ping()
        once = asyncio.ensure_future(net.call("late.double", 4, timeout=20))
        again = asyncio.ensure_future(net.call("late.double", 5, timeout=20, retry=True))
        await eventually(
            lambda: all(call.sent for call in net._core.session._calls.values()) and net._core.session._calls
        )
        own.kill9()
        await eventually(lambda: net._core.session.connection.state == "down")
        unsent = asyncio.ensure_future(net.call("late.double", 6, timeout=20))
        await asyncio.to_thread(own.restart)
        with pytest.raises(errors.BackendDied):
            await once
        worker = scale0.Worker(own.endpoints["backend"])
        worker.add("late.double", double)
        with started(worker):
            assert list(await asyncio.gather(again, unsent)) == [10, 12]


async def test_descriptors_of_a_lost_connection_are_not_watched_any_more(own: BrokerProcess) -> None:
    """Their numbers are soon somebody else's."""

    async with connected(own) as net:
        await net.ping()
        watcher = net._watcher
        assert watcher is not None
        assert watcher._watched >= 0
        own.kill9()
        await eventually(lambda: net._core.session.connection.state == "down")
        assert watcher._watched == -1
        pairs = [os.pipe() for _ in range(20)]
        loop = asyncio.get_running_loop()
        received: list[bytes] = []
        for reading, writing in pairs:
            loop.add_reader(reading, lambda number: received.append(os.read(number, 1)), reading)
            os.write(writing, b"x")
        await asyncio.to_thread(own.restart)
        await net.ping()
        await eventually(lambda: len(received) == len(pairs))
        for reading, writing in pairs:
            loop.remove_reader(reading)
            os.close(reading)
            os.close(writing)


async def test_409_ends_it_and_says_so(own: BrokerProcess) -> None:
    async with connected(own, identity="twin") as net:
        await net.ping()
        under_way = asyncio.ensure_future(net.call("nobody.offers.this"))
        await eventually(lambda: net._core.session._calls)
        with client_of(own, identity="twin") as second:
            await asyncio.to_thread(second.ping)
            with pytest.raises(errors.Conflict):
                await under_way
            with pytest.raises(errors.Conflict):
                await net.ping()
            assert await asyncio.to_thread(second.ping)


async def test_it_gives_up_in_time_when_nobody_is_there() -> None:
    async with scale0.AsyncClient("tcp://127.0.0.1:9", timeout=30, patience=0.3) as net:
        begin = time.monotonic()
        with pytest.raises(errors.Unreachable):
            await net.call("double", 1)
        assert time.monotonic() - begin < 3
        with pytest.raises(errors.Unreachable):
            await net.manage("status")


async def test_an_end_that_is_read_in_the_turn_in_which_somebody_begins_to_wait_wakes_it(broker: BrokerProcess) -> None:
    async with connected(broker) as net:
        task = await net.submit("double", 5)
        # Our own loop stands still meanwhile, so the end of the task waits in our socket: a later one has ended.
        with client_of(broker, timeout=10) as other:
            assert other.submit("double", 6).result(10) == 12
        async with asyncio.timeout(5):
            assert await asyncio.create_task(task.result()) == 10
