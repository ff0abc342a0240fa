"""What was acknowledged survives kill -9 of the broker, and finished work is not done again (PROTOCOL 2.1, 2.3, 9)."""

# Promise: TASK-4
# Promise: TASK-11
from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.fakes.broker_process import BrokerProcess
from tests.wire.scale0.conftest import own_broker
from tests.wire.scale0.raw import Raws
from tests.wire.scale0.rpc import Backend, Client, Refused, Rpc, client, node

pytestmark = pytest.mark.processes

INTERVAL = 0.2
LIVENESS = 3
GRACE = 2 * LIVENESS * INTERVAL
"""How long leases wait for their holders after a restart."""


@pytest.fixture
def world(tmp_path):
    """A broker of one test's own, and connections to it."""
    with own_broker(tmp_path, default_heartbeat_interval=60) as (broker, net):
        yield broker, net


def power_cut(broker: BrokerProcess) -> None:
    broker.kill9()
    broker.restart()


def back(net: Raws, name: str) -> Client:
    """The same client on a new connection; its id is still good."""
    return Client(Rpc(net.frontend()), name, connect=False)


# Promise: STORE-1
def test_every_state_of_a_task_survives(world):
    broker, net = world
    owner, worker = client(net, "owner"), node(net, "m", node_id="worker")
    done, failed, cancelled, queued = [owner.submit("m", [n], f"t{n}") for n in range(4)]
    later = owner.submit("m", ["later"], delay=3_600)
    waiting = owner.submit("m", ["waiting"], after=[queued])
    keyed = owner.submit("k", ["keyed"], key="key")
    worker.finish(worker.take(done), {"n": [1.5, None]})
    worker.fail(worker.take(failed), 33, "thirty-three", data={"why": 1})
    owner.cancel(cancelled)
    before = [owner.status(task) for task in (done, failed, cancelled, queued, later)]
    power_cut(broker)
    owner = back(net, "owner")
    assert [owner.status(task) for task in (done, failed, cancelled, queued, later)] == before
    assert owner.result(done) == {"n": [1.5, None]}
    error = owner.error(failed)
    assert (error["code"], error["message"], error["data"]) == (33, "thirty-three", {"why": 1})
    assert owner.submit("k", ["keyed"], key="key") == keyed
    with pytest.raises(Refused) as refused:
        owner.submit("k", ["again"], key="key")
    assert refused.value.code == -32022
    with pytest.raises(Refused) as refused:
        owner.submit("m", [], "t0")
    assert refused.value.code == -32020
    worker = node(net, "m", node_id="worker")
    held = worker.next()
    assert (held["id"], held["params"]) == (queued, [3])
    worker.finish(held)
    assert worker.next()["id"] == waiting


def test_order_and_priorities_survive(world):
    broker, net = world
    owner = client(net)
    tasks = owner.submit_many([owner.new("m", [n], None, priority=n % 2) for n in range(20)])
    power_cut(broker)
    more = back(net, owner.id).submit("m", [], priority=1)
    worker = node(net, "m")
    assert [worker.next()["id"] for _ in range(21)] == [*tasks[1::2], more, *tasks[0::2]]


def test_asking_is_the_truth_right_after_a_restart(world):
    broker, net = world
    owner = client(net)
    tasks = owner.submit_many([owner.new("m") for _ in range(20)])
    for _ in range(3):
        power_cut(broker)
        worker = node(net, "m")
        assert [task["id"] for task in worker.pull()] == tasks
        worker.rpc.call("node_disconnect", worker.id)


def test_after_a_restart_no_id_is_taken_and_strangers_are_strangers(world):
    broker, net = world
    owner, worker = client(net, "owner"), node(net, "m", node_id="worker")
    gone = client(net, "gone")
    gone.rpc.call("client_disconnect", "gone")
    power_cut(broker)
    assert Rpc(net.frontend()).call("client_connect", owner.id) == "owner"
    assert Rpc(net("backend")).call("node_connect", worker.id, ["m"]) == "worker"
    assert Rpc(net.frontend()).code("client_new_task", "gone", "m", []) == -32010


def test_a_delay_is_over_at_its_time_though_the_broker_was_away(world):
    broker, net = world
    owner = client(net)
    start = time.time()
    task = owner.submit("m", [], delay=1)
    power_cut(broker)
    assert node(net, "m").next()["id"] == task
    assert 0.95 <= time.time() - start <= 3


# Promise: STORE-1
@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
def test_a_backend_that_holds_a_task_finishes_it_after_the_restart(world, batch):
    broker, net = world
    owner, worker = client(net), Backend(net, "m", slots=3, batch=batch)
    tasks = owner.submit_many([owner.new("m", [n], None, max_attempts=1) for n in range(4)])
    held = worker.tasks(3)
    worker.running(held[0])
    owner.until_code(tasks[0], 5000)
    power_cut(broker)
    owner = back(net, owner.id)
    worker.connect(slots=3, holds=[[task["id"], task["attempt"]] for task in held])
    assert [task["id"] for task in worker.tasks(0)] == []
    assert worker.idle()
    assert worker.codes(*held, result="over the cut") == [200] * 3
    assert [owner.result(task) for task in tasks[:3]] == ["over the cut"] * 3
    assert [owner.status(task)["attempt"] for task in tasks[:3]] == [1] * 3
    assert [task["id"] for task in worker.tasks()] == tasks[3:]


# Promise: STORE-1
def test_what_was_done_while_the_broker_was_away_is_not_run_again(world):
    broker, net = world
    owner, worker = client(net), Backend(net, "m")
    task = owner.submit("m")
    held = worker.tasks()[0]
    worker.running(held)
    owner.until_code(task, 5000)
    broker.kill9()
    worker.say("TASKSDONE", [{"id": task, "attempt": 1, "result": "into the dark"}])
    broker.restart()
    other = Backend(net, "m")
    worker.connect(holds=[[task, 1]])
    assert worker.codes(held, result="said again") == [200]
    assert back(net, owner.id).result(task) in ("into the dark", "said again")
    assert worker.idle(0.1)
    assert other.idle(0.1)


def test_a_stored_result_that_is_said_again_after_the_restart_is_acknowledged(world):
    broker, net = world
    owner, worker = client(net), Backend(net, "m")
    task = owner.submit("m")
    held = worker.tasks()[0]
    assert worker.codes(held, result="once") == [200]
    power_cut(broker)
    worker.connect()
    assert worker.codes(held, result="once") == [200]
    assert worker.codes({**held, "attempt": 2}, result="twice") == [409]
    assert worker.codes({**held, "id": "never"}) == [404]
    assert back(net, owner.id).result(task) == "once"


def test_what_a_backend_does_not_hold_after_the_restart_is_queued_again_at_once(world):
    broker, net = world
    owner, worker = client(net), Backend(net, "m", slots=2)
    tasks = owner.submit_many([owner.new("m", [n], None, max_attempts=1) for n in range(2)])
    held = worker.tasks(2)
    power_cut(broker)
    worker.connect(slots=2, holds=[[tasks[0], 1]])
    again = worker.tasks()[0]
    assert (again["id"], again["attempt"]) == (tasks[1], 2)
    assert worker.codes(held[0], held[1], again, result=1) == [200, 409, 200]
    assert back(net, owner.id).code(tasks[1]) == 7000


# Promise: STORE-1
def test_a_node_that_holds_a_task_finishes_it_after_the_restart(world):
    broker, net = world
    owner, worker = client(net), node(net, "m", node_id="worker")
    task = owner.submit("m", [], max_attempts=1)
    held = worker.take(task)
    power_cut(broker)
    worker = node(net, "m", node_id="worker")
    assert worker.finish(held, "over the cut") is True
    assert back(net, owner.id).result(task) == "over the cut"


def test_leases_wait_for_their_holders_and_no_longer(tmp_path):
    config = {"default_heartbeat_interval": INTERVAL, "heartbeat_liveness": LIVENESS}
    with own_broker(tmp_path, **config) as (broker, net):
        owner, lost = client(net), Backend(net, "m")
        task = owner.submit("m")
        assert lost.tasks()[0]["attempt"] == 1
        broker.kill9()
        before = time.monotonic()
        broker.restart()
        after = time.monotonic()
        other = Backend(net, "m", heartbeat_interval=30)
        moved = other.tasks()[0]
        assert (moved["id"], moved["attempt"]) == (task, 2)
        assert time.monotonic() - before >= GRACE
        assert time.monotonic() - after <= GRACE + INTERVAL + 0.5
        assert other.codes(moved) == [200]


class Submitter(threading.Thread):
    """Submits as fast as it can until its broker is gone; what was acknowledged is in `known`."""

    def __init__(self, net: Raws, name: str, start: int) -> None:
        super().__init__()
        self.rpc, self.name_, self.number = Rpc(net.frontend()), name, start
        self.known: dict[str, int] = {}
        self.enough, self.cut = threading.Event(), threading.Event()

    def run(self) -> None:
        asked: dict[Any, int] = {}
        while True:
            for _ in range(20):
                said = {"client_id": self.name_, "method": "m", "params": [self.number]}
                options = {"key": f"k{self.number}"}
                asked[self.rpc.ask("client_new_task", **said, options=options)] = self.number
                self.number += 1
            for id_ in list(asked):
                try:
                    answer = self.rpc.answer(id_, 0.3)
                except AssertionError:
                    if self.cut.is_set():
                        return
                    break  # the machine is busy: the answer is looked for in the next round
                self.known[answer["result"]] = asked.pop(id_)
            if len(self.known) >= 100:
                self.enough.set()


# Promise: STORE-1
@pytest.mark.slow
def test_every_acknowledged_submission_is_there_after_many_kills(world):
    broker, net = world
    owner = client(net)
    known: dict[str, int] = {}
    for turn in range(4):
        submitter = Submitter(net, owner.id, turn * 1_000_000)
        submitter.start()
        assert submitter.enough.wait(30)
        broker.kill9()
        submitter.cut.set()
        submitter.join()
        broker.restart()
        known.update(submitter.known)
    owner = back(net, owner.id)
    for task, number in known.items():
        assert owner.code(task) == 1000
        if number % 10 == 0:
            assert owner.submit("m", [number], key=f"k{number}") == task
    worker = node(net, "m")
    ran: dict[str, Any] = {}
    while not known.keys() <= ran.keys():
        rows = [worker.next(), *worker.pull(1_000)]
        ran.update({row["id"]: row["params"] for row in rows})
    assert {task: ran.get(task) for task in known} == {task: [number] for task, number in known.items()}
    numbers = [params[0] for params in ran.values()]
    assert len(numbers) == len(set(numbers)), "no submission was stored twice"


# Promise: STORE-1
def test_every_acknowledged_result_is_there_after_a_kill(world):
    broker, net = world
    owner, worker = client(net), node(net, "m")
    tasks = owner.submit_many([owner.new("m", [n]) for n in range(200)])
    held, known = worker.pull(200), {}
    sent = {worker.rpc.ask("node_task_finished", worker.id, task["id"], task["params"], 1): task for task in held}
    for id_ in list(sent)[:100]:
        assert worker.rpc.answer(id_)["result"] is True
        known[sent[id_]["id"]] = sent[id_]["params"]
    power_cut(broker)
    owner = back(net, owner.id)
    assert [owner.result(task) for task in known] == list(known.values())
    assert set(known) <= set(tasks)
