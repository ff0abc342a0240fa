"""`Worker`: handlers in threads and coroutines, slots, heartbeats, errors, and changing what is offered."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import scale0
from scale0 import errors
from scale0.kernel.errors import Refusal
from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.waiting import PATIENCE_SECONDS, until
from tests.processes.client.net import Concurrency, Together, client_of, offered, started, working

pytestmark = pytest.mark.processes

INTERVAL_SECONDS = 0.2
LIVENESS = 6
SILENCE_SECONDS = LIVENESS * INTERVAL_SECONDS
"""After which a worker is considered dead: more than a busy machine takes a processor away from one."""


@pytest.fixture(scope="module")
def quick_beat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that soon considers the silent dead."""
    beat = {"default_heartbeat_interval": INTERVAL_SECONDS, "heartbeat_liveness": LIVENESS}
    with broker_process(tmp_path_factory.mktemp("quick"), **beat) as running:
        yield running


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def test_a_burst_of_slow_requests_runs_at_once(broker: BrokerProcess, net: scale0.Client) -> None:
    inside = Concurrency()

    def slow(number: int) -> int:
        with inside:
            pause(0.05)
            return number

    with working(broker, slow, slots=100):
        begin = time.monotonic()
        calls = [net.start("slow", number) for number in range(100)]
        assert [call.result() for call in calls] == list(range(100))
        assert time.monotonic() - begin < 2.0, "one by one it would take 5 s"
        assert inside.most > 10


def test_no_more_run_at_once_than_there_are_slots(broker: BrokerProcess, net: scale0.Client) -> None:
    inside = Concurrency()

    def few() -> None:
        with inside:
            pause(0.01)

    with working(broker, few, slots=3):
        for call in [net.start("few") for _ in range(30)]:
            call.result()
    assert inside.most == 3


def test_each_service_keeps_to_its_own_slots(broker: BrokerProcess, net: scale0.Client) -> None:
    """Also against a broker that knows only the total: within a worker each service is counted."""
    counts = {name: Concurrency() for name in ("threads", "coroutines", "wide")}

    def threads() -> None:
        with counts["threads"]:
            pause(0.02)

    async def coroutines() -> None:
        with counts["coroutines"]:
            await asyncio.sleep(0.02)

    def wide() -> None:
        with counts["wide"]:
            pause(0.02)

    worker = scale0.Worker(broker.endpoints["backend"])
    worker.add("threads", threads, slots=2)
    worker.add("coroutines", coroutines, slots=3)
    worker.add("wide", wide, slots=20)
    with started(worker):
        calls = [net.start(name) for _ in range(20) for name in counts]
        for call in calls:
            call.result()
        # And while it changes: what began before the change counts, too.
        calls = [net.start("threads") for _ in range(10)]
        worker.add("more", wide)
        calls += [net.start("threads") for _ in range(10)]
        for call in calls:
            call.result()
    assert counts["threads"].most == 2
    assert counts["coroutines"].most == 3
    assert 3 < counts["wide"].most <= 20


def test_quick_handlers_stay_in_the_thread_that_reads(broker: BrokerProcess, net: scale0.Client) -> None:
    names: set[str] = set()

    def quick(number: int) -> int:
        names.add(threading.current_thread().name)
        return number

    with working(broker, quick, slots=100):
        assert list(net.map("quick", range(2_000))) == list(range(2_000))
    assert len(names) <= 10, f"{len(names)} threads for work of microseconds"


def alive(broker: BrokerProcess, identity: str) -> dict[str, Any]:
    with client_of(broker) as net:
        found = [row for row in net.clients() if row["identity"] == identity]
    assert found, f"{identity} was considered dead"
    return found[0]


# Promise: CLIENT-3
@pytest.mark.parametrize("is_coroutine", [False, True], ids=["thread", "coroutine"])
def test_a_handler_that_blocks_does_not_delay_heartbeats(quick_beat: BrokerProcess, is_coroutine: bool) -> None:
    """A coroutine that blocks its loop neither."""
    done = threading.Event()

    def blocks() -> str:
        pause(2 * SILENCE_SECONDS)
        done.set()
        return "through"

    async def blocks_loop() -> str:
        return blocks()

    handler = blocks_loop if is_coroutine else blocks
    with working(quick_beat, handler, identity="blocked") as worker, client_of(quick_beat) as net:
        since = alive(quick_beat, "blocked")["since"]
        call = net.start(handler.__name__)
        while not done.is_set():
            assert alive(quick_beat, "blocked")["since"] == since
            assert worker.wait_until_up(0)
            done.wait(INTERVAL_SECONDS)
        assert call.result() == "through"


def test_a_worker_that_only_answers_and_one_that_only_waits_stay_members(quick_beat: BrokerProcess) -> None:
    def busy(number: int) -> int:
        return number

    with working(quick_beat, busy, identity="busy", slots=10), client_of(quick_beat) as net:
        since = alive(quick_beat, "busy")["since"]
        until_time = time.monotonic() + 1.5 * SILENCE_SECONDS
        while time.monotonic() < until_time:
            assert list(net.map("busy", range(100))) == list(range(100))
        assert alive(quick_beat, "busy")["since"] == since


def test_coroutines_wait_together_and_stream(broker: BrokerProcess, net: scale0.Client) -> None:
    async def waits(number: int) -> int:
        await asyncio.sleep(0.1)
        return number

    async def counts(most: int) -> AsyncIterator[int]:
        for number in range(most):
            yield number
            await asyncio.sleep(0)

    async def gives_up() -> None:
        raise asyncio.CancelledError

    with working(broker, waits, counts, gives_up):
        begin = time.monotonic()
        calls = [net.start("waits", number) for number in range(50)]
        assert [call.result() for call in calls] == list(range(50))
        assert time.monotonic() - begin < 2
        assert list(net.stream("counts", 20)) == list(range(20))
        with pytest.raises(errors.ServiceFailed, match="CancelledError"):
            net.call("gives_up")
        assert net.call("waits", 1) == 1


def test_generators_stream_and_their_return_value_is_the_last(broker: BrokerProcess, net: scale0.Client) -> None:
    def counts(most: int) -> Iterator[int]:
        yield from range(most)
        return {"most": most}  # type: ignore[return-value]

    with working(broker, counts):
        assert list(net.stream("counts", 3)) == [0, 1, 2, {"most": 3}]
        assert net.call("counts", 3) == {"most": 3}


def test_whatever_a_handler_does_its_caller_is_answered(broker: BrokerProcess, net: scale0.Client) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    def raising(error: BaseException) -> Callable[[], None]:
        def handler() -> None:
            raise error

        return handler

    worker = scale0.Worker(broker.endpoints["backend"])
    worker.add("leaves", raising(SystemExit(3)))
    worker.add("unspeakable", raising(Unspeakable()))
    worker.add("surrogate", raising(RuntimeError("\ud800")))
    worker.add("refuses", raising(Refusal(429, "not now")))
    worker.add("unencodable", lambda: [object()])
    worker.add("raw_text", lambda *_: "text", raw=True)
    worker.add("huge", lambda *_: bytes(17 * 1024 * 1024), raw=True)
    with started(worker):
        since = alive(broker, worker.identity or "")["since"]
        expected = {"leaves": "SystemExit", "unspeakable": "Unspeakable", "surrogate": "RuntimeError"}
        expected |= {"refuses": "not now", "unencodable": "TypeError", "raw_text": "TypeError", "huge": "bytes"}
        for _ in range(2):
            for name, words in expected.items():
                with pytest.raises(errors.CallError, match=words) as caught:
                    net.call(name)
                assert caught.value.code == {"refuses": 429, "huge": 413}.get(name, 500)
        assert alive(broker, worker.identity or "")["since"] == since


def test_arguments_of_the_wrong_type_are_400(broker: BrokerProcess, net: scale0.Client) -> None:
    def typed(a: int, b: list[float] | None = None, *, c: bool = False) -> list[Any]:
        return [a, b, c]

    with working(broker, typed):
        assert net.call("typed", 1, [2, 2.5], c=True) == [1, [2.0, 2.5], True]
        wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
            ((), {}),
            (("1",), {}),
            ((1, "x"), {}),
            ((1,), {"d": 1}),
            ((1, None, 3), {}),
            ((1.5,), {}),
        ]
        for args, kwargs in wrong:
            with pytest.raises(errors.BadArguments) as caught:
                net.call("typed", *args, **kwargs)
            assert caught.value.code == 400
        for body in (b"{", b"5", b'{"*": 5}', b"[" * 100_000):
            with pytest.raises(errors.BadArguments):
                net.request("typed", body)


def test_services_come_and_go_while_it_runs(broker: BrokerProcess, net: scale0.Client) -> None:
    release = threading.Event()

    def first() -> str:
        assert release.wait(10)
        return "first"

    with working(broker, first) as worker:
        in_flight, queued = net.start("first"), net.start("first")
        until(lambda: offered(net)["first"]["busy"] == 1)
        worker.add("second", lambda: "second", slots=2)
        until(lambda: "second" in offered(net))
        assert net.call("second") == "second"
        worker.remove("first")
        until(lambda: "first" not in offered(net))
        release.set()
        # What was given is finished; what waits at the broker waits for somebody else.
        assert in_flight.result() == "first"
        assert net.call("second") == "second"
        worker.add("first", lambda: "again")
        assert queued.result() in ("first", "again")
    until(lambda: "second" not in offered(net))


def test_what_makes_no_sense_is_refused_at_once(broker: BrokerProcess) -> None:
    async def coroutine() -> None: ...

    worker = scale0.Worker(broker.endpoints["backend"])
    with pytest.raises(ValueError, match="slots"):
        worker.add("a", print, slots=0)
    with pytest.raises(ValueError, match="mode"):
        worker.add("a", print, mode="fibre")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="coroutine"):
        worker.add("a", coroutine, mode="process")
    with pytest.raises(ValueError, match="endpoint"):
        scale0.Worker("localhost")
    with started(worker), pytest.raises(RuntimeError, match="already started"):
        worker.start()


def test_a_second_worker_with_the_same_identity_takes_over(broker: BrokerProcess, net: scale0.Client) -> None:
    def who() -> str:
        return "first"

    first = scale0.Worker(broker.endpoints["backend"], identity="twin")
    first.add("who", who)
    together = Together()
    together.start(first.run)
    assert first.wait_until_up(10)
    assert net.call("who") == "first"
    second = scale0.Worker(broker.endpoints["backend"], identity="twin")
    second.add("who", lambda: "second")
    with started(second):
        together.join()
        assert first.error is not None
        assert first.error.startswith("409")
        assert second.error is None
        for _ in range(10):
            assert net.call("who") == "second"


def test_an_answer_that_was_ready_while_the_connection_was_down_is_sent(tmp_path: Path) -> None:
    """The broker still waits for it: the same boot, and READY names what is in flight."""
    release, began = threading.Event(), threading.Event()

    def holds(number: int) -> int:
        began.set()
        assert release.wait(10)
        return number

    with broker_process(tmp_path) as broker, working(broker, holds) as worker, client_of(broker) as net:
        call = net.start("holds", 7, timeout=15)
        assert began.wait(10)
        session, socket = worker._session, worker._socket
        assert session is not None
        assert socket is not None
        socket.act(lambda now, out: session.closed("a cut cable", now, out))
        assert not worker.wait_until_up(0)
        release.set()
        assert call.result() == 7


@pytest.mark.parametrize("name", ["", "x" * 256, "scale0.mine", "mmi.service", "tab\there"])
def test_a_name_that_the_broker_would_refuse_is_refused_at_once(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid service name"):
        scale0.Worker().add(name, lambda: None)


# Promise: REQ-4, TASK-10
def test_a_slow_service_takes_its_own_slots_and_no_others(broker: BrokerProcess, net: scale0.Client) -> None:
    """Of two workers, the one with a single slot for slow tasks gets one at a time, and goes on with its other work."""
    ended, inside = threading.Event(), {"one": Concurrency(), "two": Concurrency()}

    def worker_of(name: str, slots: int) -> scale0.Worker:
        def slow() -> str:
            with inside[name]:
                assert ended.wait(PATIENCE_SECONDS)
            return name

        worker = scale0.Worker(broker.endpoints["backend"], identity=f"slots-{name}")
        worker.add("one.slow", slow, slots=slots)
        return worker

    one, two = worker_of("one", 1), worker_of("two", 4)
    one.add("one.other", lambda: "other", slots=20)
    with started(one), started(two):
        try:
            tasks = [net.submit("one.slow") for _ in range(20)]
            until(lambda: offered(net)["one.slow"]["busy"] == 5, "all slots of the slow service are busy")
            assert (offered(net)["one.slow"]["slots"], offered(net)["one.other"]["slots"]) == (5, 20)
            assert offered(net)["one.other"]["busy"] == 0
            assert [net.call("one.other") for _ in range(50)] == ["other"] * 50
            assert net.submit("one.other").result() == "other"
        finally:
            ended.set()
        names = [task.result() for task in tasks]
    assert (inside["one"].most, inside["two"].most) == (1, 4)
    assert set(names) == {"one", "two"}


# Promise: REQ-4
def test_a_service_with_more_slots_than_threads_delays_no_other(broker: BrokerProcess, net: scale0.Client) -> None:
    ended = threading.Event()

    def many() -> None:
        assert ended.wait(PATIENCE_SECONDS)

    worker = scale0.Worker(broker.endpoints["backend"])
    worker.add("many", many, slots=300)
    worker.add("quick", lambda: "done")
    with started(worker):
        try:
            calls = [net.start("many") for _ in range(300)]
            until(lambda: offered(net)["many"]["busy"] == 300, "every slot is busy")
            until(lambda: threading.active_count() > 250, "the slow service has its threads")
            assert net.call("quick", timeout=PATIENCE_SECONDS / 2) == "done"
        finally:
            ended.set()
        for call in calls:
            call.result()
