"""The stub keeps its promises: it fails, is slow and remembers as it is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import scale0
from scale0.errors import BackendDied, BadArguments, NoAnswer, NoSuchService
from scale0.testing import StubNetwork

worker = scale0.Worker(identity="one")


@worker.service("double")
def double(number: int) -> int:
    return number * 2


@worker.service("later")
async def later(number: int) -> int:
    await asyncio.sleep(0)
    return number + 1


def test_a_call_runs_the_handler_and_is_remembered():
    with StubNetwork(worker) as net:
        assert net.call("double", 21, retry=True) == 42
        [call] = net.calls
        assert (call.service, call.args, call.kwargs, call.retry, call.timeout) == ("double", (21,), {}, True, 30.0)
        assert call.bodies == (b"[21]",)


def test_what_is_remembered_is_what_travelled():
    with StubNetwork(worker) as net:
        given = [1]
        net.start("double", number=given)
        given.append(2)
        assert net.calls_of("double")[0].kwargs == {"number": [1]}


def test_a_service_fails_as_it_is_told_and_for_as_long():
    with StubNetwork(worker) as net:
        net.fail("double", 502, times=2)
        for _ in range(2):
            with pytest.raises(BackendDied):
                net.call("double", 1)
        assert net.call("double", 1) == 2
        net.fail("double", 404, "gone")
        with pytest.raises(NoSuchService, match="gone"):
            net.call("double", 1)
        net.heal()
        assert net.call("double", 1) == 2
        assert len(net.calls) == 5


def test_only_errors_can_be_told():
    with pytest.raises(ValueError):
        StubNetwork().fail("double", 200)


def test_a_slow_service_outlasts_short_timeouts_without_waiting():
    with StubNetwork(worker) as net:
        net.slow("double", 3_600)
        with pytest.raises(NoAnswer):
            net.call("double", 1)
        assert net.call("double", 1, timeout=7_200) == 2
        net.heal("double")
        assert net.call("double", 1) == 2


def test_coroutines_run_with_and_without_a_loop_around():
    async def inside() -> Any:
        return StubNetwork(worker).call("later", 1)

    assert StubNetwork(worker).call("later", 1) == 2
    assert asyncio.run(inside()) == 2


def test_workers_take_turns_as_they_would():
    def named(name: str) -> scale0.Worker:
        made = scale0.Worker(identity=name)
        made.add("who", lambda: name)
        return made

    first, second = named("first"), named("second")
    with StubNetwork(first) as net:
        net.add(second)
        assert [net.call("who") for _ in range(4)] == ["first", "second", "first", "second"]
        net.remove(first)
        assert [net.call("who") for _ in range(2)] == ["second", "second"]
        net.remove(second)
        with pytest.raises(NoSuchService):
            net.call("who")


def test_a_service_that_is_added_later_is_there():
    late = scale0.Worker()
    with StubNetwork(late) as net:
        assert net.services() == []
        late.add("double", double, slots=3)
        assert net.call("double", 2) == 4
        assert [(row["service"], row["slots"], row["backends"]) for row in net.services()] == [("double", 3, 1)]


def test_map_stops_where_the_first_error_is():
    with StubNetwork(worker) as net:
        results = net.map("double", [1, 2, "three", 4])
        assert [next(results), next(results)] == [2, 4]
        with pytest.raises(BadArguments):
            next(results)


def test_a_closed_stub_refuses_as_a_closed_client_does():
    net = StubNetwork(worker)
    net.close()
    with pytest.raises(RuntimeError, match="closed"):
        net.call("double", 1)


def test_code_with_an_async_client_is_tested_too():
    async def under_test(net: Any) -> list[Any]:
        async with net:
            mapped = [value async for value in net.map("later", [1, 2])]
            streamed = [value async for value in net.stream("double", 4)]
            return [await net.call("double", 3), mapped, streamed, (await net.ping())["broker"]]

    assert asyncio.run(under_test(StubNetwork(worker).asynchronous)) == [6, [2, 3], [8], "stub"]
    wanted = [name for name in dir(scale0.AsyncClient) if not name.startswith("_") and name != "manage"]
    assert [name for name in wanted if not hasattr(StubNetwork().asynchronous, name)] == []


def test_it_has_the_methods_of_a_client():
    wanted = [name for name in dir(scale0.Client) if not name.startswith("_") and name != "manage"]
    assert [name for name in wanted if not hasattr(StubNetwork(), name)] == []
