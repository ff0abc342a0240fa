"""A broker's own clock that is wrong, corrected, and wrong again: what was kept by time that passed stays."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.broker_process import BrokerProcess
from tests.fakes.jumping_clock import JumpingClock
from tests.wire.scale0.conftest import own_broker
from tests.wire.scale0.raw import Raws
from tests.wire.scale0.rpc import Client, Rpc, client, node

pytestmark = pytest.mark.processes

DAY = 86_400
LOOKS_SECONDS = 1.5
"""Within this time a broker has looked at its clock."""


@pytest.fixture
def clock(tmp_path: Path) -> JumpingClock:
    return JumpingClock(tmp_path)


@pytest.fixture
def world(tmp_path: Path, clock: JumpingClock) -> Iterator[tuple[BrokerProcess, Raws]]:
    with own_broker(tmp_path, default_heartbeat_interval=60) as (broker, net):
        broker.prefix = clock.prefix
        broker.restart()
        yield broker, net


def restart(broker: BrokerProcess, net: Raws, number: signal.Signals = signal.SIGKILL) -> Client:
    """The client on its new connection."""
    broker.end(number)
    broker.restart()
    return Client(Rpc(net.frontend()), "owner")


def paid(net: Raws, owner: Client) -> str:
    """A task with a key that has ended."""
    task = owner.submit("m", ["pay"], key="pay-7")
    worker = node(net, "m")
    worker.finish(worker.take(task), "paid")
    return task


# Promise: TASK-20, TASK-4
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_correction_while_the_broker_runs_and_a_start_with_the_wrong_clock_delete_nothing(world, clock, number):
    broker, net = world
    clock.set(10 * DAY)
    owner = restart(broker, net)
    owner.submit("other")
    clock.set(0)
    task = paid(net, owner)
    assert owner.rpc.silent(LOOKS_SECONDS)
    clock.set(10 * DAY)
    owner = restart(broker, net, number)
    assert owner.result(task) == "paid"
    assert owner.submit("m", ["pay"], key="pay-7") == task


# Promise: TASK-20, TASK-4
def test_an_event_of_the_moment_after_a_jump_deletes_nothing_at_the_next_start(world, clock):
    broker, net = world
    owner = client(net, "owner")
    task = paid(net, owner)
    clock.set(10 * DAY)
    owner.submit("other")
    owner = restart(broker, net)
    assert owner.result(task) == "paid"
    assert owner.submit("m", ["pay"], key="pay-7") == task


# Promise: TASK-20
def test_a_broker_starts_and_serves_with_a_clock_before_1970(world, clock):
    broker, net = world
    owner = client(net, "owner")
    task = paid(net, owner)
    clock.set(-time.time() - DAY)
    for _ in range(2):
        owner = restart(broker, net)
        assert owner.result(task) == "paid"
    again = owner.submit("m", ["again"], delay=0.1)
    worker = node(net, "m")
    assert worker.next()["id"] == again
    for days in (10, 0):
        clock.set(days * DAY)
        owner = restart(broker, net)
        assert owner.result(task) == "paid"
