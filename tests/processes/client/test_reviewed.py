"""What a review found in the clients, and must not come back: each test failed once."""

from __future__ import annotations

import asyncio
import math
import random
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

import scale0
from scale0 import errors
from scale0.client import executor as executor_module
from scale0.client.core import CallReply
from scale0.client.executor import Executor
from scale0.client.handler import Handler, perform
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.errors import Refusal
from scale0.kernel.limits import Limits
from scale0.transport.core.backend_session import MAX_MESSAGE_CHARS, BackendSession, RequestReceived
from scale0.transport.core.calls import CallAnswered, CallFailed
from scale0.transport.core.frontend_session import FrontendSession
from scale0.transport.core.messages import read_holds
from scale0.transport.core.session import ConnectionLost, SessionEffects
from scale0.transport.edge.client_socket import ClientSocket
from tests.fakes.broker_process import BrokerProcess
from tests.fakes.waiting import until
from tests.processes.client.bench import Bench
from tests.processes.client.handlers import echo, same, waits
from tests.processes.client.net import Together, client_of, started, working

PLACE = "tcp://127.0.0.1:5701"
OPTIONS_BYTES = Limits().max_options_bytes
MANY_BODIES = [b""] * (Limits().max_parts + 1)


class Bell(Exception):
    """Rings in the middle of a wait."""


def backend() -> Bench:
    bench = Bench(BackendSession([PLACE], None, ["s"], 5_000, random.Random(3)))
    bench.act("start")
    bench.ack()
    bench.ready_ok()
    bench.hush()
    return bench


def hold(bench: Bench, count: int) -> None:
    for number in range(count):
        bench.hear("REQUEST", id=f"18f2a3b4c5d6e7f8.{number:x}", service="s", timeout=30.0)


def readies(bench: Bench) -> list[Any]:
    return [said[1] for said in bench.hush() if said[0] == "READY"]


def raw_offer(function: Callable[..., Any]) -> Handler:
    return Handler("raw", function, 1, False, False, True, None)


# Errors


def test_an_error_of_any_length_and_any_text_fits_into_its_options() -> None:
    bench = backend()
    hold(bench, 1)
    bench.act("error", "18f2a3b4c5d6e7f8.0", 500, "\udc80" + "\x01" * 200_000)
    ((command, said),) = bench.hush()
    assert command == "ERROR"
    assert len(said["message"]) == MAX_MESSAGE_CHARS
    assert said["message"].startswith("?")
    assert len(msgspec.json.encode(said)) <= OPTIONS_BYTES


def test_the_refusal_of_a_child_can_be_sent_whatever_it_says() -> None:
    def refuses(*_: bytes) -> None:
        raise Refusal(codes.MALFORMED, "\udc80" + "x" * 200_000)

    _, _, (code, message) = perform(raw_offer(refuses), RequestReceived("1", "raw", (), 0.0), lambda *_: None)
    assert code == codes.MALFORMED
    assert message == "?" + "x" * (MAX_MESSAGE_CHARS - 1)


@pytest.mark.processes
def test_a_callers_long_keyword_costs_its_own_call_alone(broker: BrokerProcess, net: scale0.Client) -> None:
    go = threading.Event()
    long: dict[str, Any] = {"k" * 70_000: 1}

    def waits(value: int = 0) -> int:
        go.wait(10)
        return value

    with working(broker, waits, slots=2) as worker:
        honest = net.start("waits", 5)
        with pytest.raises(scale0.CallError) as caught:
            net.call("waits", **long)
        assert caught.value.code == codes.MALFORMED
        go.set()
        assert honest.result() == 5
        assert worker._up.is_set()


# Holds


def test_a_ready_on_the_same_connection_names_no_work() -> None:
    bench = backend()
    hold(bench, 3_000)
    bench.act("offer", ["s", "t"], 5_000)
    (ready,) = readies(bench)
    assert ready.holds == []
    assert isinstance(bench.session, BackendSession)
    assert len(bench.session.in_flight) == 3_000


@pytest.mark.parametrize("count", [3, 3_000])
def test_a_ready_on_a_new_connection_names_what_fits_and_drops_the_rest(count: int) -> None:
    bench = backend()
    hold(bench, count)
    bench.act("closed", "the cable")
    bench.reopen()
    bench.ack()
    (ready,) = readies(bench)
    assert len(msgspec.json.encode(ready)) <= OPTIONS_BYTES
    assert isinstance(bench.session, BackendSession)
    assert {id_ for id_, _ in ready.holds} == bench.session.in_flight
    assert len(ready.holds) >= min(count, 1_500)


# Promise: LIVE-4
def test_a_broker_that_reads_it_from_the_body_is_told_of_everything() -> None:
    bench = backend()
    hold(bench, 9_000)
    bench.act("closed", "the cable")
    bench.reopen()
    bench.ack(long_holds=True)
    ((_, ready, body),) = [said for said in bench.hush() if said[0] == "READY"]
    assert isinstance(bench.session, BackendSession)
    assert len(bench.session.in_flight) == 9_000
    assert {id_ for id_, _ in read_holds(body)} == bench.session.in_flight
    assert ready.holds == []


# The link


class SilentSession:
    request_batches = False

    def deadline(self) -> float | None:
        return None

    def receive(self, frames: list[bytes], now: Now, out: SessionEffects) -> None: ...
    def closed(self, reason: str, now: Now, out: SessionEffects) -> None: ...
    def unsent(self, messages: Any) -> None: ...
    def never_connected(self) -> None: ...
    def tick(self, now: Now, out: SessionEffects) -> None: ...


def test_news_are_delivered_though_what_came_after_them_failed() -> None:
    received: list[Any] = []
    socket = ClientSocket(SilentSession(), received.extend)

    def do(_: Now, out: SessionEffects) -> None:
        out.notifications.append(ConnectionLost("first"))
        raise Bell

    with pytest.raises(Bell):
        socket.act(do)
    assert received == [ConnectionLost("first")]


def test_what_was_to_be_sent_is_heeded_though_what_came_after_it_failed() -> None:
    received: list[Any] = []
    session = SilentSession()
    session.unsent = received.extend  # type: ignore[method-assign,assignment]
    socket = ClientSocket(session, received.extend)

    def do(_: Now, out: SessionEffects) -> None:
        out.sends.append(("HEARTBEAT", {}))
        raise Bell

    with pytest.raises(Bell):
        socket.act(do)
    assert received == [("HEARTBEAT", {})]


@pytest.mark.processes
def test_a_bad_command_is_refused_and_costs_no_answer(broker: BrokerProcess, net: scale0.Client) -> None:
    with working(broker, echo):
        pending = net.start("echo", 7, timeout=5)
        # The answer lies unread in the socket: nobody leads.
        # Unless starting itself took it in, which a quick worker makes possible.
        descriptor, _ = net._core.socket.interest
        assert pending.done or select.select([descriptor], [], [], 5)[0]
        for bad in (object(), 2**70, "\udc80", "x" * OPTIONS_BYTES):
            with pytest.raises((TypeError, ValueError, OverflowError)):
                net.manage("status", set={"a": bad})
        assert pending.result() == 7
    assert not net._core.session.waiting


# Waiting


@pytest.fixture
def worker(broker: BrokerProcess) -> Iterator[None]:
    with working(broker, waits, slots=10):
        yield


@pytest.mark.processes
@pytest.mark.usefixtures("worker")
def test_a_leader_that_fails_hands_over(net: scale0.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    net.ping()
    ring = threading.Event()
    pump = net._core.socket.pump

    def lead() -> None:
        with pytest.raises(Bell):
            net.call("waits", 3.0)

    def ringing() -> None:
        if ring.is_set():
            ring.clear()
            raise Bell
        pump()

    monkeypatch.setattr(net._core.socket, "pump", ringing)
    together = Together()
    together.start(lead)
    until(lambda: net._leader, "somebody leads")
    pending = net.start("waits", 0.5, timeout=2)
    together.start(pending.result)
    until(lambda: net._waiters, "somebody follows")
    ring.set()
    net._core.socket.wake()
    together.join(5)


@pytest.mark.processes
@pytest.mark.usefixtures("worker")
def test_an_interrupted_follower_waits_no_more(net: scale0.Client) -> None:
    def ring(*_: object) -> None:
        raise Bell

    net.ping()
    together = Together()
    together.start(net.call, "waits", 1.0)
    until(lambda: net._leader, "somebody leads")
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Bell):
            net.call("waits", 2.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    until(lambda: len(net._waiters) <= 1, "at most the client's own thread waits to lead")
    together.join()


@pytest.mark.processes
@pytest.mark.usefixtures("worker")
def test_an_interrupt_in_any_line_of_a_leader_leaves_the_lead_to_others(net: scale0.Client) -> None:
    codes_of_leader = {each.__code__ for each in (scale0.Client._claim, scale0.Client._lead)}
    lines: set[int] = set()
    """The lines that were interrupted, once each."""

    def ring(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code not in codes_of_leader:
            return None
        if event == "line" and frame.f_lineno not in lines:
            lines.add(frame.f_lineno)
            raise Bell
        return ring

    net.ping()
    is_interrupted = True
    while is_interrupted:
        sys.settrace(ring)
        try:
            net.call("waits", 0.05)
            is_interrupted = False
        except Bell:
            pass
        finally:
            sys.settrace(None)
        together = Together()
        together.start(net.call, "waits", 0.01)
        together.join(5)
    assert len(lines) > 6


def test_an_answer_wakes_every_thread_and_may_come_twice() -> None:
    locks = [threading.Lock(), threading.Lock()]
    for lock in locks:
        lock.acquire()
    reply = CallReply("s", raw=False)
    reply.wakers = [lock.release for lock in locks]
    reply.receive(CallAnswered(reply, (b"1",)))
    reply.receive(CallAnswered(reply, (b"1",)))
    assert reply.wakers is None, "each is called once"
    assert not any(lock.locked() for lock in locks)


# The executor


class RecordingSession:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def partial(self, _id: str, bodies: Any, *_: object) -> None:
        self.sent.append(bodies)

    reply = partial


class Slow:
    """A link on whose lock the first thread waits, while another comes and says something."""

    def __init__(self) -> None:
        self.meanwhile: list[Callable[[], None]] = []

    def act(self, do: Callable[[Any, Any], None]) -> None:
        while self.meanwhile:
            self.meanwhile.pop()()
        do(None, None)

    def wake(self) -> None: ...


def test_answers_do_not_overtake_each_other() -> None:
    session, socket = RecordingSession(), Slow()
    executor = Executor({}, session, socket, None, lambda _: None)  # type: ignore[arg-type]
    executor._answers.append(("partial", "1", "a"))

    def other() -> None:
        executor._answers.append(("partial", "1", "b"))
        executor.flush()

    socket.meanwhile.append(other)
    executor.flush()
    assert session.sent == ["a", "b"]


def test_a_stop_is_seen_by_a_watch_that_goes_to_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Executor({}, RecordingSession(), Slow(), None, lambda _: None)  # type: ignore[arg-type]

    class Late(threading.Event):
        def clear(self) -> None:
            executor.stop()
            super().clear()

    monkeypatch.setattr(executor_module, "IDLE_PERIODS", -1)
    executor._leader.acquire()
    executor._work_event = Late()
    watch = threading.Thread(target=executor._monitor, daemon=True)
    watch.start()
    watch.join(5)
    assert not watch.is_alive()


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("name", ["_next", "_add_threads"])
def test_a_thread_that_fails_ends_the_worker(
    broker: BrokerProcess, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise Bell("a fault of ours")

    worker = scale0.Worker(broker.endpoints["backend"])
    worker.add("waits", waits)
    with started(worker), client_of(broker) as net:
        monkeypatch.setattr(worker._executor, name, fails)
        running = threading.Thread(target=worker.run, daemon=True)
        running.start()
        # The thread looks for work after this; the monitor looks anyway.
        net.start("waits", 0.01)
        running.join(10)
        assert not running.is_alive()
        assert worker.error is not None
        assert "a fault of ours" in worker.error
        assert any(record.levelname == "CRITICAL" for record in caplog.records)
        until(lambda: "waits" not in {row["service"] for row in net.services() if row["backends"]})


# Requests and answers that no broker takes


@pytest.mark.parametrize(
    ("service", "bodies", "code"),
    [("s", MANY_BODIES, codes.TOO_BIG), ("s" * 300, [b""], codes.MALFORMED), ("s" * 70_000, [b""], codes.MALFORMED)],
)
def test_what_no_broker_takes_is_not_sent(service: str, bodies: list[bytes], code: int) -> None:
    bench = Bench(FrontendSession([PLACE], None, random.Random(3)))
    bench.act("start")
    bench.ack()
    bench.hush()
    bench.act("request", service, bodies, 30.0, False, "tag")
    assert bench.hush() == []
    (failed,) = bench.take(CallFailed)
    assert (failed.tag, failed.code) == ("tag", code)


def test_as_many_bodies_as_a_broker_takes_are_sent() -> None:
    bench = Bench(FrontendSession([PLACE], None, random.Random(3)))
    bench.act("start")
    bench.ack()
    bench.hush()
    bench.act("request", "s", [b""] * (Limits().max_parts - 3), 30.0, False, "tag")
    assert [said[0] for said in bench.hush()] == ["REQUEST"]


@pytest.mark.processes
async def test_one_bad_request_costs_the_others_nothing(broker: BrokerProcess) -> None:
    worker = scale0.Worker(broker.endpoints["backend"])
    worker.add("raw", same, raw=True, slots=4)
    with started(worker):
        async with scale0.AsyncClient(broker.endpoints["frontend"], timeout=5) as net:
            await net.ping()
            asked = [
                net.request("raw", b"a"),
                net.request("raw", *MANY_BODIES),
                net.request("raw" * 30_000, b"x"),
                net.request("raw", memoryview(b"abcdef")[::2]),  # type: ignore[arg-type]
                net.request("raw", b"b"),
            ]
            one, many, long, holey, other = await asyncio.gather(*asked, return_exceptions=True)
    assert (one, other) == ([b"a"], [b"b"])
    assert isinstance(many, errors.CallError)
    assert isinstance(long, errors.CallError)
    assert isinstance(holey, ValueError)


def test_an_answer_of_too_many_frames_is_an_error() -> None:
    how, _, what = perform(raw_offer(lambda: MANY_BODIES), RequestReceived("1", "raw", (), 0.0), lambda *_: None)
    assert (how, what[0]) == ("error", codes.TOO_BIG)


@pytest.mark.parametrize("due", [30 * 86_400.0, 1e300, math.inf])
def test_a_deadline_that_is_too_late_for_a_wait_ends_no_thread(due: float) -> None:
    session = SilentSession()
    session.deadline = lambda: due  # type: ignore[method-assign]
    received: list[Any] = []
    socket = ClientSocket(session, received.extend)
    socket.wake()
    socket.wait()
    socket.wait(0.0)
    socket.close(lambda _now, _out: None)
