"""kill -9 of a real broker at every step of a commit, while a client submits and a worker finishes tasks."""

# Promise: TASK-11
# Promise: STORE-1
from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable

import pytest

from scale0.storage.interface import FAILPOINTS
from tests.fakes.waiting import PATIENCE_SECONDS
from tests.processes.crash.brokers import CrashingBroker, crashing_broker, journal
from tests.processes.crash.raw_ends import CLIENT, RawEnds
from tests.wire.scale0.raw import raws
from tests.wire.scale0.rpc import Client, Rpc

pytestmark = [pytest.mark.processes, pytest.mark.slow]

NTHS = (4, 9, 16)
"""In which commit of its life: about the first submission, about the first result, and in the middle of both."""


def while_running(broker: CrashingBroker) -> Callable[[], bool]:
    until = time.monotonic() + PATIENCE_SECONDS
    return lambda: broker.running and time.monotonic() < until


def test_what_was_acknowledged_survives_kill_9_at_every_step_of_a_commit(tmp_path):
    ends = RawEnds()
    for nth in NTHS:
        for point in FAILPOINTS:
            with crashing_broker(tmp_path, dies_at=(point, nth)) as broker, raws(broker.endpoints) as net:
                ends.meet(net)
                ends.work(while_running(broker))
                assert broker.wait() == -signal.SIGKILL, broker.log_text()
                assert "Traceback" not in broker.log_text()
    with crashing_broker(tmp_path) as broker, raws(broker.endpoints) as net:
        acknowledged, results = dict(ends.accepted), dict(ends.stored)
        assert len(acknowledged) > 20, "the test is not about nothing"
        ends.meet(net)
        until = time.monotonic() + PATIENCE_SECONDS
        ends.work(lambda: len(ends.stored) < ends.next and time.monotonic() < until, new=False)
        reader = Client(Rpc(net.frontend()), CLIENT, connect=False)
        assert {number: reader.result(id_) for number, id_ in acknowledged.items()} == {n: [n] for n in acknowledged}
        assert {id_: reader.result(id_) for id_ in results} == results
        assert len(ends.accepted) == ends.next, "every submission was taken in the end"
        assert len(set(ends.accepted.values())) == ends.next, "and became one task"
        assert broker.end() == 0
    kinds = Counter((event["kind"], event["ref"]) for event in journal(tmp_path / "data"))
    for id_ in ends.accepted.values():
        assert kinds["task.submitted", id_] == 1
        assert kinds["task.completed", id_] == 1
