"""The twins that brokers share: PostgreSQL and the database in memory say the same to three brokers, over their deaths.

Promise: STORE-5
Promise: STORE-6
Promise: STORE-7
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from scale0.storage import task_queries as queries
from scale0.storage import task_rows as rows
from scale0.storage.interface import SLOT_BITS, StoreFailed, StoreFenced
from scale0.storage.rows import PutSetting
from tests.fakes.examples import examples
from tests.fakes.postgres import forget
from tests.unit.storage.group import MemoryGroup, PostgresGroup
from tests.unit.storage.task_model import change, end, lease, put

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LEASE_US = 1_000
BROKERS = ("ann", "bob", "cyd")

brokers = st.sampled_from(BROKERS)
names = st.sampled_from(["x", "y", "z", "s.1", "s.2"])
keys = st.sampled_from([None, None, "k", "k\0", "\x01"])
clients = st.sampled_from(["c", "d"])
owners = st.sampled_from(["", "key-1"])
methods = st.sampled_from(["noop", "a.b"])
nodes = st.sampled_from(["n", "m"])
small = st.integers(0, 6)
limits = st.integers(-1, 4)
times = st.integers(0, 6)

takers = st.sampled_from([None, "", "c", "key-1"])

takes = st.one_of(
    st.builds(queries.ReadQueue, methods, st.sampled_from([4, 9]), st.just(0), limits, st.integers(-1, 8), takers),
    st.builds(queries.ReadDependents, st.integers(0, 12).map(lambda n: n << SLOT_BITS), st.just(0), limits),
    st.builds(queries.TakeDue, times, limits),
    st.builds(queries.TakeOrphans, st.sampled_from([0, 1, LEASE_US, 5 * LEASE_US]), limits),
    st.builds(queries.TakeTaskCommands, limits),
    st.builds(queries.ClaimTasks, st.lists(names, max_size=3).map(tuple), st.none() | nodes),
)
reads = st.one_of(
    st.builds(queries.FindTasks, st.lists(names | st.just("\0"), max_size=3).map(tuple), st.booleans()),
    st.builds(queries.ReadResults, st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple), st.integers(0, 9)),
    st.builds(
        queries.LookUpSubmission, clients, st.lists(names, max_size=2).map(tuple), keys, st.none() | st.just("s")
    ),
    st.builds(queries.ReadPriorities, methods),
    st.builds(queries.PeekQueues, st.lists(methods, max_size=3).map(tuple), st.just(99)),
    st.builds(queries.PeekBacklog, st.lists(methods, max_size=2).map(tuple)),
    st.builds(queries.ReadSchedule, times, small, limits),
    st.builds(queries.ReadEndedDependencies, limits),
    st.builds(queries.ListTasks, st.integers(1, 4)),
    st.builds(queries.ReadExpiry, st.booleans()),
    st.just(queries.CountTasks()),
)


class GroupTwins(RuleBasedStateMachine):
    """Three brokers, each at both databases."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        forget(self.url)
        self.folder = Path(tempfile.mkdtemp(prefix="scale0-twins-"))
        self.memory = MemoryGroup()
        self.postgres = PostgresGroup(self.url, self.folder)
        self.stores: dict[str, tuple[Any, Any]] = {}
        self.counter = 0

    @initialize()
    def start(self):
        for name in BROKERS:
            self.join(name)

    def join(self, name: str) -> None:
        # The one in memory does not wait for its predecessor, so the other must not have to.
        left_us = self.memory.database.lease_left_us(name)
        if left_us:
            self.pass_us(left_us + 1)
        memory, postgres = self.memory.store(name), self.postgres.store(name)
        assert memory.open() == postgres.open()
        self.stores[name] = (memory, postgres)

    def both(self, name: str, call: Any) -> Any:
        """Do it at both; what is answered, or the kind of failure, after which the broker starts again."""
        answers = []
        for store in self.stores[name]:
            try:
                answers.append(call(store))
            except StoreFenced:
                answers.append(StoreFenced)
            except StoreFailed:
                answers.append(StoreFailed)
        if isinstance(answers[0], tuple) and answers[0] and isinstance(answers[0][0], str | tuple):
            answers = [sorted(each) for each in answers]
        assert answers[0] == answers[1]
        if answers[0] in (StoreFenced, StoreFailed):
            self.close(name)
        return answers[0]

    @rule(name=brokers)
    def close(self, name):
        for store in self.stores[name]:
            store.close()
        self.join(name)

    @rule(name=brokers)
    def kill(self, name):
        self.memory.kill(self.stores[name][0])
        self.postgres.kill(self.stores[name][1])
        self.join(name)

    @rule(span_us=st.sampled_from([1, LEASE_US // 2, LEASE_US, LEASE_US + 1]))
    def pass_us(self, span_us):
        self.memory.pass_us(span_us)
        self.postgres.pass_us(span_us)

    @rule(name=brokers)
    def beat(self, name):
        self.both(name, lambda store: store.read(queries.StoreHeartbeat(LEASE_US)))

    @rule(name=brokers, ask=takes)
    def take(self, name, ask):
        self.both(name, lambda store: store.read(ask))

    @rule(name=brokers, ask=reads)
    def only_read(self, name, ask):
        self.both(name, lambda store: store.scan(ask))

    @rule(name=brokers, data=st.data(), count=st.integers(1, 3))
    def submit(self, name, data, count):
        """Reserve, and put what is free, or give it back."""
        asks = []
        for _ in range(count):
            client, id_, key = data.draw(clients), data.draw(names | st.just("")), data.draw(keys)
            series = data.draw(st.none() | st.just("s"))
            asks.append(queries.LookUpSubmission(client, (id_,) if id_ else (), key, series, id_, data.draw(owners)))
        lookups = self.both(name, lambda store: store.read_all(asks))
        if lookups is StoreFenced:
            return
        writes: list[Any] = []
        used: set[Any] = set()
        for ask, found in zip(asks, lookups, strict=True):
            place = {ask.reserve or None, None if ask.key is None else (ask.client, ask.key, ask.owner)} - {None}
            if found.busy or found.keyed or any(found.tasks) or place & used:
                continue
            used |= place
            if data.draw(st.booleans()):
                writes.append(self.some_put(data.draw, name, ask))
            else:
                writes.append(rows.FreeReservation(ask.reserve or None, ask.client, ask.key, ask.owner))
        self.both(name, lambda store: store.commit(writes))

    def some_put(self, draw: Any, name: str, ask: queries.LookUpSubmission) -> Any:
        self.counter += 1
        seq = (self.counter << SLOT_BITS) | BROKERS.index(name)
        return put(
            seq,
            id=ask.reserve or f"s0:{seq}",
            client=ask.client,
            owner=ask.owner,
            key=ask.key,
            method=draw(methods),
            priority=draw(st.sampled_from([4, 9])),
            status=draw(st.sampled_from([rows.QUEUED, rows.QUEUED, rows.SCHEDULED, rows.ASSIGNED, rows.RUNNING])),
            node=draw(nodes),
            runnable_us=draw(times),
            waits=draw(st.integers(0, 1)),
            shelved=draw(st.booleans()),
        )

    @rule(name=brokers, data=st.data(), count=st.integers(1, 4))
    def work(self, name, data, count):
        writes = [self.some_write(data.draw, name) for _ in range(count)]
        self.both(name, lambda store: store.commit([PutSetting("last", b"1"), *writes]))

    def some_write(self, draw: Any, name: str) -> Any:
        """Mostly of what it holds; now and then our own mistake."""
        tasks = self.memory.database.tasks.snapshot()
        held = [seq for seq in sorted(tasks.open) if self.memory.database.tasks.holder(seq) == name]
        if draw(st.integers(0, 30)) == 30:
            held = sorted(tasks.open)
        anyone = sorted(tasks.open) or [0]
        kinds = ["client", "sweep", "command", "unfollow", "follow", "free"]
        kinds += ["lease", "change", "change", "end", "end", "release"] if held else []
        kinds += ["reopen"] if tasks.ended else []
        kind = draw(st.sampled_from(kinds))
        seq = draw(st.sampled_from(held)) if held else 0
        match kind:
            case "lease":
                status = draw(st.sampled_from([rows.ASSIGNED, rows.RUNNING]))
                return lease(seq, status, node=draw(nodes), node_owner=draw(owners))
            case "change":
                status = draw(st.sampled_from([rows.SCHEDULED, rows.QUEUED, rows.RUNNING]))
                return change(seq, status=status, shelved=draw(st.booleans()), waits=draw(st.integers(0, 1)))
            case "end":
                return end(seq, draw(st.sampled_from([rows.FINISHED, rows.FAILED, rows.CANCELLED])), draw(times))
            case "release":
                return rows.ReleaseTask(seq)
            case "reopen":
                return rows.ReopenTask(draw(st.sampled_from(sorted(tasks.ended))), draw(times))
            case "sweep":
                return rows.SweepTasks(draw(times), draw(limits))
            case "follow":
                return rows.PutDependency(draw(st.sampled_from(anyone)), draw(st.sampled_from(anyone)))
            case "unfollow":
                return rows.DropDependency(draw(st.sampled_from(anyone)), None)
            case "command":
                return rows.PutTaskCommand(
                    draw(brokers), draw(st.sampled_from([rows.CANCEL, rows.RELEASE])), draw(names), b"{}"
                )
            case "free":
                return rows.FreeReservation(draw(st.none() | names), draw(clients), draw(keys), draw(owners))
            case _:
                return rows.PutTaskClient(draw(clients), "", draw(times))

    @invariant()
    def they_hold_the_same(self):
        if not self.stores:
            return
        tasks = self.memory.database.tasks
        snapshot = tasks.snapshot()
        every: list[Any] = [*snapshot.open.values(), *snapshot.ended.values()]
        _, postgres = self.stores["ann"]
        found = postgres.scan(queries.FindTasks(tuple(task.id for task in every)))
        assert found == tuple(every)
        slots = {name: member.slot for name, member in self.memory.database.members.items()}
        expected = {task.seq: slots.get(tasks.holder(task.seq)) for task in every if isinstance(task, rows.OpenTask)}
        assert self.postgres.holders() == expected
        for task in snapshot.open.values():
            if task.status == rows.QUEUED and not task.shelved:
                assert tasks.holder(task.seq), "it would wait for ever"

    def teardown(self):
        self.postgres.close()
        shutil.rmtree(self.folder)


def test_three_brokers_get_the_same_from_both(postgres_url):
    GroupTwins.url = postgres_url
    # To shrink takes minutes, since each step is a trip to a database: a failure is shown as it was found.
    few = examples(20, stateful_step_count=25, deadline=None, phases=(Phase.generate,))
    run_state_machine_as_test(GroupTwins, settings=few)
