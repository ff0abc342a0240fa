"""`Client` from many threads: one leads, all are answered, and nobody is left behind when it leaves."""

# Promise: CLIENT-1
from __future__ import annotations

import collections
import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator

import pytest

import scale0
from scale0 import errors
from scale0.transport.edge.client_socket import SocketClosedError
from scale0.transport.edge.idle_sockets import PERIOD_SECONDS
from tests.fakes.broker_process import BrokerProcess
from tests.fakes.waiting import until
from tests.processes.client.handlers import echo, parts, waits
from tests.processes.client.net import Together, client_of, raises, started

LATE_SECONDS = 0.3
"""Less than the half second after which a client looks by itself."""
MOST_LATE = 3
"""The machine may be busy. If the leader is not woken, most runs have ten."""

pytestmark = pytest.mark.processes

THREADS = 50
CALLS = 200


@pytest.fixture(scope="module", autouse=True)
def worker(broker: BrokerProcess) -> Iterator[None]:
    made = scale0.Worker(broker.endpoints["backend"])
    made.add("echo", echo, slots=100)
    made.add("waits", waits, slots=50)
    made.add("parts", parts, slots=10)
    with started(made):
        yield


def test_fifty_threads_share_one_client_and_no_call_is_lost(net: scale0.Client) -> None:
    answered = [0] * THREADS

    def call_on(thread: int) -> None:
        for number in range(CALLS):
            value = thread * CALLS + number
            assert net.call("echo", value, timeout=30) == value
            answered[thread] += 1

    together = Together()
    for thread in range(THREADS):
        together.start(call_on, thread)
    together.join(60)
    assert answered == [CALLS] * THREADS


def test_the_clients_own_thread_ends_when_it_is_closed(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    net = client_of(broker, timeout=60)
    together = Together()

    def call_until_closed() -> None:
        with contextlib.suppress(errors.CallError, SocketClosedError):
            while True:
                net.call("echo", 1)

    for _ in range(5):
        together.start(call_until_closed)
    until(lambda: net._serves, "a thread of its own leads")
    monkeypatch.setattr("scale0.client.client.IDLE_SECONDS", 600.0)
    thread = net._thread
    assert thread is not None
    net.close()
    together.join(10)
    thread.join(10)
    assert not thread.is_alive()


def test_whoever_leads_and_leaves_hands_over_at_once(net: scale0.Client) -> None:
    net.ping()
    took: dict[float, float] = {}

    def call(seconds: float) -> None:
        begin = time.monotonic()
        assert net.call("waits", seconds) == seconds
        took[seconds] = time.monotonic() - begin

    together = Together()
    # The first one leads and leaves first; each leader after it leaves before the rest, too.
    for number in range(1, 9):
        together.start(call, number / 10)
    together.join()
    late = {seconds: took[seconds] - seconds for seconds in took}
    assert max(late.values()) < 0.5, late


def test_the_leader_gets_an_answer_that_another_thread_received(net: scale0.Client) -> None:
    """Threads that send also receive: a thread that sleeps at the socket must be woken, or sleeps until a heartbeat."""
    net.ping()
    stop = threading.Event()

    def take_in() -> None:
        while not stop.is_set():
            net._core.socket.pump()

    together = Together()
    together.start(take_in)
    took = []
    for _ in range(400):
        begin = time.monotonic()
        assert net.call("waits", 0.002) == 0.002
        took.append(time.monotonic() - begin)
    stop.set()
    together.join()
    late = [round(seconds, 3) for seconds in took if seconds > LATE_SECONDS]
    assert len(late) <= MOST_LATE, f"answers were overlooked for {late} s"


def test_parts_stay_in_order_while_others_send(net: scale0.Client) -> None:
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            net.call("echo", 2)

    together = Together()
    for _ in range(3):
        together.start(disturb)
    for _ in range(10):
        assert list(net.stream("parts", 50)) == list(range(50))
    stop.set()
    together.join()


def test_a_short_call_ends_in_time_though_the_leader_waits_for_a_long_one() -> None:
    """Nobody is there: the leader sleeps until its own time, unless somebody shortens it."""
    together = Together()
    took: list[float] = []

    def short(net: scale0.Client) -> None:
        begin = time.monotonic()
        with pytest.raises(errors.Unreachable):
            net.call("echo", 1, timeout=0.2)
        took.append(time.monotonic() - begin)

    with scale0.Client("tcp://127.0.0.1:9", timeout=60) as net:
        # With long waits between attempts, nothing else wakes the leader.
        net._core.session.connection._failures = 10
        together.start(raises, errors.NotServing, lambda: net.call("echo"))
        until(lambda: net._leader)
        together.start(short, net)
        until(lambda: took, "the short call ends", 5)
        assert took[0] < 2.0
        net.close()
    together.join()


def test_several_threads_may_wait_for_one_answer(net: scale0.Client) -> None:
    pending = net.start("waits", 0.5, timeout=10)
    answers: list[float] = []
    together = Together()
    for _ in range(5):
        together.start(lambda: answers.append(pending.result()))
    assert net.call("echo", "quick", timeout=10) == "quick"
    assert not pending.done
    together.join(10)
    assert answers == [0.5] * 5


def test_closing_ends_everybody_who_waits(broker: BrokerProcess) -> None:
    net = client_of(broker)
    net.ping()
    ended: list[int] = []

    def call() -> None:
        with pytest.raises(errors.NotServing) as caught:
            net.call("waits", 30.0)
        ended.append(caught.value.code)

    together = Together()
    for _ in range(10):
        together.start(call)
    until(lambda: len(net._core.session._calls) == 10)
    begin = time.monotonic()
    net.close()
    together.join(5)
    assert ended == [503] * 10
    assert time.monotonic() - begin < 2


def test_a_client_is_refused_after_a_fork_and_the_parent_goes_on(net: scale0.Client) -> None:
    assert net.call("echo", 1) == 1
    under_way = net.start("waits", 0.3)
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # whatever happens, it ends
        code = 0
        for use in (lambda: net.call("echo", 3), lambda: next(net.map("echo", [4])), under_way.result, net.services):
            try:
                use()
            except RuntimeError as error:
                code |= "fork" not in str(error)
            except BaseException:
                code |= 2
            else:
                code |= 4
        net.close()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert under_way.result() == 0.3
    assert net.call("echo", 5) == 5


def test_a_client_of_a_fork_leaves_the_clients_of_its_parent_alone(net: scale0.Client, broker: BrokerProcess) -> None:
    """Idle clients are read by the process that they belong to, and those of a fork are read, too."""
    assert net.call("echo", 1) == 1
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        code = 1
        with contextlib.suppress(BaseException), client_of(broker) as own:
            for number in range(20):
                assert own.call("echo", number) == number
                time.sleep(PERIOD_SECONDS / 5)
            code = 0 if any(each.name == "scale0-idle-sockets" for each in threading.enumerate()) else 2
        os._exit(code)
    pending = [net.start("waits", 0.1 * number) for number in range(10)]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [each.result() for each in pending] == [0.1 * number for number in range(10)]


def test_no_call_is_lost_while_the_clients_own_thread_comes_and_goes(net: scale0.Client, monkeypatch) -> None:
    """Callers pause for about as long as that thread stays, so it starts and ends all the time."""
    monkeypatch.setattr("scale0.client.client.IDLE_SECONDS", 0.01)
    answered = [0] * 12

    def call_on(thread: int) -> None:
        dice = random.Random(thread)
        for number in range(60):
            if dice.random() < 0.4:
                time.sleep(dice.choice((0.0, 0.001, 0.012, 0.03)))
            began = time.monotonic()
            assert net.call("echo", number, timeout=20) == number
            answered[thread] += time.monotonic() - began < 5.0

    together = Together()
    for thread in range(len(answered)):
        together.start(call_on, thread)
    together.join(60)
    assert answered == [60] * len(answered)
    until(lambda: net._thread is None)
    assert net.call("echo", 1) == 1


def test_calls_of_many_threads_leave_together(net: scale0.Client) -> None:
    together, held = Together(), threading.Barrier(30)
    sent: list[int] = []
    session = net._core.session
    request = session.request

    def count(*arguments: object) -> None:
        sent.append(threading.get_ident())
        request(*arguments)  # type: ignore[arg-type]

    session.request = count  # type: ignore[method-assign,assignment]

    def call_on(thread: int) -> None:
        held.wait(10)
        for number in range(20):
            assert net.call("echo", number) == number

    try:
        for thread in range(30):
            together.start(call_on, thread)
        together.join(60)
    finally:
        session.request = request  # type: ignore[method-assign]
    own = collections.Counter(sent).most_common(1)[0][1]
    assert own > len(sent) // 2, "the client's own thread sends for the others"


def test_closing_ends_the_calls_that_were_left_to_the_clients_own_thread(broker: BrokerProcess) -> None:
    net = client_of(broker)
    together, failed = Together(), []

    def call_on(thread: int) -> None:
        try:
            while True:
                net.call("waits", 0.01, timeout=30)
        except (errors.CallError, RuntimeError) as error:
            failed.append(error)

    for thread in range(20):
        together.start(call_on, thread)
    until(lambda: net._serves)
    net.close()
    together.join(20)
    assert len(failed) == 20
