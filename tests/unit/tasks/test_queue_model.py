"""The broker's queue against a naive one: whatever clients, workers, nodes, time and crashes do, both say the same."""

# Promise: TASK-6
from __future__ import annotations

import math
import sys
from typing import Any

import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.fakes.examples import examples
from tests.fakes.messages import RPC
from tests.unit.tasks.compared_broker import CLIENTS, METHODS, NATIVES, NODES, ComparedBroker, choose
from tests.unit.tasks.queue_model import CODES, LATE, LEASED, OPEN, Task, Worker

pytestmark = pytest.mark.slow

BEAT = 0.5
FULL = -32060
KEY_CONFLICT = -32022
NUDGE = 1.0 + LATE
"""How soon work goes on once there is room on the disk."""

clients = st.sampled_from(CLIENTS)
natives = st.sampled_from(NATIVES)
nodes = st.sampled_from(NODES)
offers = st.sets(st.sampled_from(METHODS), min_size=1)
reports = st.sampled_from(["running", "running", "result", "result", "error", "retry"])
some = st.integers(0, 10**6)
"""Chooses one of what is there."""


class QueueModel(ComparedBroker, RuleBasedStateMachine):
    """What may happen, in any order."""

    def __init__(self) -> None:
        RuleBasedStateMachine.__init__(self)
        ComparedBroker.__init__(self)

    @invariant()
    def holds(self) -> None:
        self.check()

    @initialize(name=natives, slots=st.integers(1, 2), priorities=st.lists(st.sampled_from([4, 1]), max_size=4))
    def begin(self, name, slots, priorities):
        """There is something to do, and somebody to do it."""
        self.ready(name, METHODS, slots, 0)
        self.submit_many("ann", "a", priorities)

    # Clients.

    @rule(
        client=clients,
        method=st.sampled_from(METHODS),
        priority=st.sampled_from([4, 4, 1, 8]),
        delay=st.sampled_from([None, None, None, 2.0, 5.0]),
        key=st.sampled_from([None, None, None, "k1", "k2"]),
        after=st.lists(some, max_size=2) | st.just([]),
        max_attempts=st.sampled_from([1, 2, 3]),
        backoff=st.sampled_from([0.0, 0.0, 2.0]),
        timeout=st.sampled_from([3600.0, 3600.0, 3.0]),
        notify=st.booleans(),
        own_id=st.booleans(),
    )
    def submit(self, client, method, delay, key, after, own_id, notify, **numbers):
        own = [id_ for id_, task in self.model.tasks.items() if task.client == client]
        befores = sorted({choose(own, number) for number in after}) if own else []
        self.made += 1
        id_ = f"{client}.{self.made:012x}" if own_id else None
        options: dict[str, Any] = {**numbers, "notify": notify, "after": befores}
        options |= {} if delay is None else {"delay": delay}
        options |= {} if key is None else {"key": key}
        connection = self.fronts[client]
        params = [self.made] if key is None else [key]
        number = self.broker.ask(connection, "client_new_task", client, method, params, id_, options)
        answer = next(one.body for _, one in self.broker.sent if one.command == RPC and one.body.get("id") == number)
        if (client, key) in self.model.keys and not (self.full and "error" in answer):
            first = self.model.keys[client, key]
            if self.model.tasks[first].method == method:
                assert answer["result"] == first
            else:
                assert answer["error"]["code"] == KEY_CONFLICT
        elif self.full:
            assert answer["error"]["code"] == FULL
        else:
            assert answer.get("result") == id_ or id_ is None, answer
            start = self.now + (delay or 0.0)
            order = len(self.model.tasks)
            task = Task(
                answer["result"],
                client,
                method,
                order=order,
                **numbers,
                notify=connection if notify else "",
                soonest=start - (1e-3 if delay else 0.0),
                latest=start + (LATE if delay else 0.0),
                waits=set(befores),
            )
            self.model.submit(task, key, self.now)
        self.compare()
        self.answers.pop(number)

    @rule(client=clients, method=st.sampled_from(METHODS), priorities=st.lists(st.sampled_from([4, 4, 1]), max_size=4))
    def submit_many(self, client, method, priorities):
        """Usual tasks, one after the other."""
        for priority in priorities:
            usual = {"priority": priority, "max_attempts": 1 + self.made % 2, "backoff": 0.0, "timeout": 3600.0}
            self.submit(client, method, None, None, [], False, True, **usual)

    @precondition(lambda self: self.model.tasks)
    @rule(number=some)
    def submit_a_taken_id(self, number):
        task = choose(list(self.model.tasks.values()), number)
        answer = self.call(self.fronts[task.client], "client_new_task", task.client, task.method, [], task.id)
        assert answer["error"]["code"] == -32020 or (self.full and answer["error"]["code"] == FULL)

    @precondition(lambda self: self.model.tasks)
    @rule(number=some)
    def cancel(self, number):
        task = choose(list(self.model.tasks.values()), number)
        if not self.full:
            self.model.cancel(task)
        answer = self.call(self.fronts[task.client], "client_task_cancel", task.client, task.id)
        assert answer.get("result") is True or (self.full and answer["error"]["code"] == FULL)

    @precondition(lambda self: self.model.tasks)
    @rule(number=some, status=st.booleans())
    def look(self, number, status):
        task = choose(list(self.model.tasks.values()), number)
        if status:
            self.check_status(task)
        else:
            self.check_result(task)

    def check_status(self, task: Task) -> None:
        said = self.call(self.fronts[task.client], "client_task_status", task.client, task.id)["result"]
        assert said["status"] == task.status or (self.is_unsure(task) and said["status"] == "queued"), (said, task)
        assert said["code"] == CODES[said["status"]]
        assert said["attempt"] == task.attempt
        assert said["node_id"] == (task.node or None) or task.status not in LEASED
        task.told = task.told or task.status == "running"

    def check_result(self, task: Task) -> None:
        answer = self.call(self.fronts[task.client], "client_task_result", task.client, task.id)
        if task.status == "finished":
            assert answer["result"] == task.outcome
        else:
            assert answer["error"]["code"] == (-32050 if task.status in OPEN else task.outcome)
            task.told = task.told or task.status == "running"

    @precondition(lambda self: self.model.tasks)
    @rule(client=clients, numbers=st.lists(some, min_size=1, max_size=3), timeout=st.sampled_from([0.0, 3.0]))
    def wait(self, client, numbers, timeout):
        own = [id_ for id_, task in self.model.tasks.items() if task.client == client]
        if own:
            ids = sorted({choose(own, number) for number in numbers})
            number = self.broker.ask(self.fronts[client], "client_task_wait", client, ids, timeout)
            self.waits[number] = (ids, self.now + timeout)
            self.compare()

    # Workers.

    @rule(name=natives, methods=offers, slots=st.integers(1, 3), keep=some)
    def ready(self, name, methods, slots, keep):
        """CHECKCONFIG and READY on a new connection."""
        worker = self.model.workers[name]
        old, worker.connection = worker.connection, self.connection("backend", name)
        self.broker.disconnected.add(old)
        worker.hand = {id_: attempt for place, (id_, attempt) in enumerate(worker.hand.items()) if keep >> place & 3}
        self.model.ready(worker, worker.hand.items(), self.now)
        worker.methods, worker.slots = frozenset(methods), slots
        self.send(worker, "CHECKCONFIG", {"identity": name})
        version = next(one.options["config_version"] for who, one in self.broker.sent if who == worker.connection)
        said = {"services": sorted(methods), "slots": slots, "config_version": version, "time": self.broker.wall}
        self.send(worker, "READY", {**said, "holds": list(worker.hand.items())})
        self.compare()

    @precondition(lambda self: self.well(*NATIVES))
    @rule(number=some, methods=offers, slots=st.integers(1, 3))
    def ready_again(self, number, methods, slots):
        """READY on the same connection replaces services and slots, and keeps all work."""
        worker = choose(self.well(*NATIVES), number)
        worker.methods, worker.slots = frozenset(methods), slots
        said = {"services": sorted(methods), "slots": slots, "config_version": 1, "time": self.broker.wall}
        self.send(worker, "READY", said)
        self.compare()

    @precondition(lambda self: self.well(*NATIVES, *NODES))
    @rule(number=some, how=st.sampled_from(["leave", "leave", "silent", "cut"]))
    def go(self, number, how):
        worker = choose(self.well(*NATIVES, *NODES), number)
        if how != "leave":
            worker.silent, worker.cut = True, how == "cut" and worker.native
            self.broker.disconnected |= {worker.connection} if worker.cut else set()
        else:
            self.model.leave(worker)
            worker.hand.clear()
            if worker.native:
                self.send(worker, "DISCONNECT")
            else:
                assert self.call(worker.connection, "node_disconnect", worker.name)["result"] is True
        self.compare()

    @precondition(lambda self: self.leased(0, NATIVES + NODES))
    @rule(number=some, how=reports, another=st.sampled_from([0, 0, 0, 1]))
    def work(self, number, how, another):
        """A worker speaks of what it has, once had, or never had."""
        found = self.leased(number, NATIVES + NODES)
        assert found is not None
        worker, id_, attempt = found
        self.tell(worker, id_, attempt + another, how)

    @precondition(lambda self: self.leased(0, NATIVES + NODES))
    @rule(how=reports)
    def work_all(self, how):
        """All workers speak of all that they have."""
        for worker in self.well(*NATIVES, *NODES):
            for id_, attempt in list(worker.hand.items()):
                self.tell(worker, id_, attempt, how)

    def tell(self, worker: Worker, id_: str, attempt: int, how: str) -> None:
        worker.spoke = self.now
        if how == "running":
            self.tell_running(worker, id_, attempt)
        elif worker.native:
            self.tell_native(worker, id_, attempt, how)
        else:
            self.tell_node(worker, id_, attempt, how)

    def tell_running(self, worker: Worker, id_: str, attempt: int) -> None:
        mine = self.model.is_lease(worker, id_, attempt)
        if mine:
            self.model.begin(self.model.tasks[id_], self.now)
        if worker.native:
            self.send(worker, "TASKSTATUS", {}, [{"id": id_, "attempt": attempt, "status": "running"}])
            self.compare()
        elif mine:
            assert self.call(worker.connection, "task_status", worker.name, id_, "busy")["result"] is True

    def tell_native(self, worker: Worker, id_: str, attempt: int, how: str) -> None:
        row, code = self.report(worker, id_, attempt, how)
        if self.full:
            self.refused_while_full.add(worker.connection)
        else:
            self.oks.append((worker.name, id_, attempt, code))
            if code != 200:
                self.refused.append((id_, attempt, worker.name))
        self.send(worker, "TASKSDONE", {}, [{"id": id_, "attempt": attempt, **row}])
        self.compare()

    def tell_node(self, worker: Worker, id_: str, attempt: int, how: str) -> None:
        row, code = self.report(worker, id_, attempt, how)
        if code != 200 and not self.full:
            self.refused.append((id_, attempt, worker.name))
        method = "node_task_finished" if how == "result" else "node_task_failed"
        answer = self.call(worker.connection, method, worker.name, id_, *row.values(), attempt)
        if self.full:
            assert answer["error"]["code"] == FULL
            return
        worker.hand.pop(id_, None)
        assert answer.get("result") is True if code == 200 else answer["error"]["code"] == -32021

    # Nodes.

    @rule(name=nodes, methods=offers)
    def node_connect(self, name, methods):
        worker = self.model.workers[name]
        if worker.up:
            return
        worker.connection, worker.methods = self.connection("backend", name), frozenset(methods)
        worker.hand = {task.id: task.attempt for task in self.model.leases(worker)}
        self.model.ready(worker, worker.hand.items(), self.now)
        assert self.call(worker.connection, "node_connect", name, sorted(methods))["result"] == name

    @precondition(lambda self: self.well(*NODES))
    @rule(number=some, limit=st.integers(0, 3))
    def node_pull(self, number, limit):
        worker = choose(self.well(*NODES), number)
        if any(map(self.is_unsure, self.model.open())):
            return
        worker.spoke = self.now
        ranked = sorted((t for t in self.model.runnable(self.now) if t.method in worker.methods), key=lambda t: t.rank)
        answer = self.call(worker.connection, "node_tasks_request", worker.name, limit)
        if self.full:
            assert answer["error"]["code"] == FULL
            return
        assert [row["id"] for row in answer["result"]] == [task.id for task in ranked[:limit]]
        for row in answer["result"]:
            self.model.hand(worker, row["id"], row["attempt"], self.now)

    @precondition(lambda self: self.well(*NODES) and self.model.tasks)
    @rule(number=some, which=some)
    def node_request(self, number, which):
        worker, task = choose(self.well(*NODES), number), choose(list(self.model.tasks.values()), which)
        if task.method not in worker.methods or self.is_unsure(task):
            return
        worker.spoke = self.now
        answer = self.call(worker.connection, "node_task_request", worker.name, task.id)
        if self.full:
            assert answer["error"]["code"] == FULL
        elif task.status not in OPEN:
            assert answer["error"]["code"] == -32020
        elif task.status == "queued":
            self.model.hand(worker, task.id, answer["result"]["attempt"], self.now)
        else:
            assert answer["result"] == {}

    # The world.

    @rule(seconds=st.sampled_from([0.5, 0.5, 2.0, 5.0, 8.0]))
    def pass_time(self, seconds):
        if self.full:
            self.fill(False)
        for _ in range(round(seconds / BEAT)):
            for worker in self.well(*NATIVES):
                self.send(worker, "HEARTBEAT", {"time": self.broker.wall, "config_version": 1})
            for worker in self.well(*NODES):
                worker.spoke = self.now
                assert self.call(worker.connection, "node_heartbeat", worker.name)["result"] is True
            self.compare()
            for _ in self.broker.turns(BEAT):
                self.compare()
                self.check()
            self.check()

    @rule(back=st.booleans())
    def crash(self, back):
        """kill -9; `back`: the backends are back at once, and have what they had."""
        names = [worker.name for worker in self.well(*NATIVES)]
        self.broker.crash()
        self.model.closed_until = 0.0
        self.model.crash(self.now)
        self.waits.clear()
        for task in self.model.open():
            row = self.stored(task.id)
            if task.start_reported and task.native and row.starts == task.starts - 1:
                assert not task.told, f"a client was told that {task.id} runs"
                task.start_reported, task.starts, task.status = False, row.starts, "assigned"
        self.meet()
        for name in names if back else ():
            self.ready(name, self.model.workers[name].methods, self.model.workers[name].slots, -1)

    @rule(full=st.booleans())
    def fill(self, full):
        """The disk is full; room is made when time passes."""
        self.broker.machine.state.full = full
        self.model.closed_until = math.inf if full else self.now + NUDGE

    def teardown(self) -> None:
        """No task is stuck: an honest worker who offers everything ends them all."""
        if sys.exc_info()[0] is not None:
            return  # a step has failed, and says more than what follows from it
        self.fill(False)
        for name in NODES:
            worker = self.model.workers[name]
            if worker.up and not worker.silent:
                self.model.leave(worker)
                self.call(worker.connection, "node_disconnect", name)
        for _ in range(60):
            if not self.model.open():
                break
            for name in NATIVES:
                worker = self.model.workers[name]
                if not worker.up or worker.silent or worker.methods != set(METHODS):
                    self.ready(name, METHODS, 3, -1)
                for id_, attempt in list(worker.hand.items()):
                    if self.model.is_lease(worker, id_, attempt):
                        row, _ = self.report(worker, id_, attempt, "result")
                        self.oks.append((worker.name, id_, attempt, 200))
                        self.send(worker, "TASKSDONE", {}, [{"id": id_, "attempt": attempt, **row}])
                        self.compare()
            self.pass_time(1.0)
        assert not self.model.open(), f"stuck: {self.model.open()}"


TestQueueModel = pytest.mark.timeout(600)(QueueModel.TestCase)  # to find a short example takes a while
# Without the last phase: explaining a failure takes longer than finding it.
TestQueueModel.settings = examples(
    150,
    stateful_step_count=40,
    report_multiple_bugs=False,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
