"""One pending call may be waited for by several threads, whoever leads."""

# Promise: CLIENT-1
from __future__ import annotations

import threading

import pytest

import scale0
from tests.fakes.broker_process import BrokerProcess
from tests.processes.client.net import working


def test_several_threads_may_wait_for_one_answer(broker: BrokerProcess, net: scale0.Client) -> None:
    go = threading.Event()

    def hold() -> str:
        go.wait(10)
        return "held"

    def answer() -> str:
        return "quick"

    with working(broker, hold, answer):
        pending = net.start("hold", timeout=10)
        answers: list[str] = []
        threads = [threading.Thread(target=lambda: answers.append(pending.result())) for _ in range(5)]
        for thread in threads:
            thread.start()
        assert net.call("answer", timeout=10) == "quick"
        go.set()
        for thread in threads:
            thread.join(10)
        assert answers == ["held"] * 5


@pytest.mark.parametrize("name", ["", "x" * 256, "scale0.mine", "mmi.service", "tab\there"])
def test_a_name_that_the_broker_would_refuse_is_refused_at_once(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid service name"):
        scale0.Worker().add(name, lambda: None)
