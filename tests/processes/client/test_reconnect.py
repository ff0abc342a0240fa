"""`Client` and brokers that die, come back, come late, or give our name to somebody else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import scale0
from scale0 import errors
from scale0.client.client import CONNECT_SECONDS
from tests.fakes.broker_process import BrokerProcess, broker_process
from tests.fakes.waiting import until
from tests.processes.client.handlers import echo
from tests.processes.client.net import Together, client_of, raises, started, working

pytestmark = pytest.mark.processes

BACKOFF_SECONDS = 1.0
"""The longest first delay."""


def test_an_idle_client_survives_the_broker(own: BrokerProcess) -> None:
    """The connection broke while nobody looked: the next call notices when it sends, and nothing is lost."""
    with working(own, echo) as worker, client_of(own, timeout=15) as net:
        assert net.call("echo", 1) == 1
        for number in range(2):
            own.kill9()
            own.restart()
            assert worker.wait_until_up(10)
            begin = time.monotonic()
            assert net.call("echo", number) == number
            assert list(net.map("echo", range(500))) == list(range(500))
            assert time.monotonic() - begin < BACKOFF_SECONDS + 3


def test_a_management_command_of_an_idle_client_is_not_lost_either(own: BrokerProcess) -> None:
    with client_of(own, timeout=10) as net:
        token = own.token
        assert net.manage("status", auth_token=token)
        own.kill9()
        own.restart()
        token = own.token
        assert net.manage("status", auth_token=token)["broker"] == "broker-1"
        # And while it is known to be down: it waits for the next connection.
        own.kill9()
        with pytest.raises(errors.Unreachable):
            net.call("echo", 1, timeout=0.1)
        together = Together()
        # 401 is proof enough that it arrived: each start of a broker has a token of its own.
        together.start(raises, errors.WrongCredentials, lambda: net.manage("status", auth_token=token))
        own.restart()
        together.join()


def test_a_request_under_way_is_502_when_the_broker_restarts_and_retried_if_it_may(own: BrokerProcess) -> None:
    worker = scale0.Worker(own.endpoints["backend"])
    together = Together()
    with client_of(own, timeout=30) as net:
        once, again = net.start("late", 1), net.start("late", 2, retry=True)
        together.start(raises, errors.BackendDied, once.result)
        together.start(again.result)
        until(lambda: net.identity)
        own.kill9()
        own.restart()
        until(lambda: once.done, "502 as soon as the broker says that it is another")
        worker.add("late", echo)
        with started(worker):
            together.join()
        assert again.result() == 2


def test_a_broker_that_comes_later_gets_the_calls_that_waited_for_it(tmp_path: Path) -> None:
    """Promise: CLIENT-6"""
    with broker_process(tmp_path) as broker:
        broker.kill9()
        with scale0.Client(broker.endpoints["frontend"], timeout=20) as net:
            # None may run twice, and none has run: the connection was refused.
            begin = time.monotonic()
            early = [net.start("echo", number) for number in range(3)]
            assert time.monotonic() - begin < len(early) * CONNECT_SECONDS + 1.0
            together = Together()
            results: list[Any] = []
            together.start(lambda: results.extend(one.result() for one in early))
            until(lambda: net._core.session.connection._failures > 0, "the first attempt failed")
            broker.restart()
            with working(broker, echo):
                together.join()
            assert results == [0, 1, 2]


def test_patience_ends_calls_before_their_timeout() -> None:
    begin = time.monotonic()
    with scale0.Client("tcp://127.0.0.1:9", timeout=30, patience=0.5) as net:
        with pytest.raises(errors.Unreachable) as caught:
            net.call("echo", 1)
        assert caught.value.code == 599
        assert "127.0.0.1:9" in caught.value.message
        with pytest.raises(errors.Unreachable):
            net.manage("status")
    assert 0.9 <= time.monotonic() - begin < 5


def test_without_patience_a_call_ends_with_its_timeout() -> None:
    begin = time.monotonic()
    with scale0.Client("tcp://127.0.0.1:9", timeout=0.3) as net, pytest.raises(errors.Unreachable):
        net.call("echo", 1)
    assert time.monotonic() - begin < 0.3 + 1.0 + 1.0


def test_the_second_with_one_identity_takes_over_and_the_first_says_so(own: BrokerProcess) -> None:
    with client_of(own, identity="twin") as first, working(own, echo):
        assert first.call("echo", 1) == 1
        under_way = first.start("nobody.offers.this", timeout=30)
        with client_of(own, identity="twin") as second:
            assert second.call("echo", 2) == 2
            begin = time.monotonic()
            with pytest.raises(errors.Conflict, match="twin registered from another connection"):
                under_way.result()
            with pytest.raises(errors.Conflict) as caught:
                first.call("echo", 3)
            assert caught.value.code == 409
            with pytest.raises(errors.Conflict):
                first.manage("status")
            assert time.monotonic() - begin < 2
            # It does not come back by itself.
            assert second.call("echo", 4) == 4
            assert [row["identity"] for row in second.clients()].count("twin") == 1


def test_an_answer_that_waits_for_the_connection_is_sent_after_it_is_back(own: BrokerProcess) -> None:
    """A frontend whose connection breaks keeps its request: the broker has the same boot, and answers the new one."""
    with working(own, echo), client_of(own, timeout=10) as net:
        assert net.call("echo", 1) == 1
        pending = net.start("later", 7)
        with client_of(own) as other:
            until(lambda: any(row["waiting"] for row in other.services()), "the broker has it")
        net._core.socket.act(lambda now, out: net._core.session.closed("a cut cable", now, out))
        together = Together()
        together.start(pending.result)
        until(lambda: net._core.session.connection.state == "up", "it is back")
        worker = scale0.Worker(own.endpoints["backend"])
        worker.add("later", echo)
        with started(worker):
            together.join()
        assert pending.result() == 7


def test_endpoints_are_tried_in_turn(own: BrokerProcess) -> None:
    with scale0.Client(["tcp://127.0.0.1:9", own.endpoints["frontend"]], timeout=10) as net:
        assert net.ping()["broker"] == "broker-1"
