"""The twins about tasks: memory, SQLite and the naivest model say the same, over mistakes, crashes and reopening.

Promise: STORE-5
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from scale0.storage import rows as limits
from scale0.storage import task_queries as queries
from scale0.storage import task_rows as rows
from scale0.storage.interface import StoreFailed
from scale0.storage.rows import PutSetting
from scale0.storage.sqlite.store import SqliteStore
from tests.fakes.examples import examples
from tests.unit.storage.task_model import Model, change, end, lease, name_of, put
from tests.unit.storage.test_twins import Twins

pytestmark = pytest.mark.slow

SCAN_ROWS = 4
"""Few enough to be met by a handful of tasks."""

clients = st.sampled_from(["ann", "bob", ""])
owners = st.sampled_from(["", "key-1", "key-2"])
methods = st.sampled_from(["noop", "a.b", "ü"])
series = st.sampled_from(["s", "t", "s.t", ""])
priorities = st.sampled_from([0, 4, 9])
small = st.binary(max_size=3)
times = st.integers(0, 6) | st.sampled_from([2**63 - 1])
seqs = st.integers(0, 25)
bounds = st.integers(-1, 6)
far = st.sampled_from([2**64, -(2**64)])
names = st.builds(name_of, seqs, series) | st.just("nobody")
statuses = st.sampled_from(
    [None, rows.SCHEDULED, rows.QUEUED, rows.ASSIGNED, rows.RUNNING, rows.FINISHED, rows.FAILED, rows.CANCELLED, 42]
)

task_asks = st.one_of(
    st.builds(queries.FindTasks, st.lists(names, max_size=4).map(tuple), st.booleans()),
    st.builds(queries.ReadResults, st.lists(st.integers(1, 12), min_size=1, max_size=5).map(tuple), st.integers(0, 9)),
    st.builds(
        queries.LookUpSubmission,
        clients,
        st.lists(names, max_size=2).map(tuple),
        st.none() | st.sampled_from(["k", ""]),
        st.none() | series,
        owner=owners,
    ),
    st.builds(queries.ReadQueue, methods, priorities, seqs | far, bounds, st.integers(-1, 8), st.none() | clients),
    st.builds(queries.ReadOwners, methods),
    st.builds(queries.ReadPriorities, methods),
    st.builds(queries.ReadSchedule, times | far, seqs | far, bounds),
    st.builds(queries.ReadDependents, seqs | far, seqs, bounds),
    st.builds(queries.ReadEndedDependencies, bounds),
    st.builds(queries.ReadExpiry, st.booleans()),
    st.just(queries.CountTasks()),
    st.just(queries.CountTaskClients()),
    st.builds(queries.ReadUnusedClients, times | far, bounds),
)
lists = st.builds(
    queries.ListTasks,
    limit=bounds,
    before_seq=st.none() | seqs | far,
    status=statuses | far,
    method=st.none() | methods,
    client=st.none() | clients,
)


class TaskTwins(Twins):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.monkeypatch = pytest.MonkeyPatch()
        self.monkeypatch.setattr(limits, "LIST_SCAN_ROWS", SCAN_ROWS)

    def teardown(self):
        self.monkeypatch.undo()
        super().teardown()

    @rule(data=st.data(), count=st.integers(1, 8))
    def commit_tasks(self, data, count):
        batch: list[Any] = []
        for _ in range(count):
            batch.append(self.some_write(data.draw))
            self.model.apply(batch[-1])
        for store in (self.memory, self.sqlite):
            store.commit(batch)

    def some_write(self, draw: Any) -> Any:
        """A write that a broker could make of what there is."""
        kinds = ["put", "put", "put", "client", "sweep", "unclient", "usage"]
        kinds += ["lease", "change", "end", "end", "follow", "unfollow"] if self.model.open else []
        retried = [seq for seq, task in self.model.ended.items() if task.status != rows.FINISHED]
        kinds += ["reopen"] if retried else []
        kind = draw(st.sampled_from(kinds))
        seq = draw(st.sampled_from(sorted(self.model.open))) if self.model.open else 0
        match kind:
            case "put":
                return self.some_put(draw)
            case "lease":
                status = draw(st.sampled_from([rows.ASSIGNED, rows.RUNNING]))
                return lease(seq, status, draw(st.integers(1, 3)), node_owner=draw(owners))
            case "change":
                return self.some_change(draw, seq)
            case "end":
                status = draw(st.sampled_from([rows.FINISHED, rows.FINISHED, rows.FAILED, rows.CANCELLED]))
                return end(seq, status, draw(times), result=draw(small), info=draw(small), history=draw(small))
            case "reopen":
                return rows.ReopenTask(draw(st.sampled_from(sorted(retried))), draw(times))
            case "sweep":
                return rows.SweepTasks(draw(times), draw(st.integers(0, 3)))
            case "follow":
                return rows.PutDependency(draw(st.sampled_from(sorted(self.model.open))), seq)
            case "unfollow":
                some = draw(st.none() | st.lists(seqs, max_size=3).map(tuple))
                return rows.DropDependency(seq, some)
            case "usage":
                return rows.AddTaskUsage(draw(clients), draw(st.integers(-2, 2)), *draw(st.tuples(seqs, seqs, seqs)))
            case "client":
                return rows.PutTaskClient(draw(clients), draw(st.sampled_from(["", "key"])), draw(times))
            case _:
                return rows.DropTaskClient(draw(clients), *draw(st.just(()) | times.map(lambda time: (time,))))

    def some_put(self, draw: Any) -> Any:
        seq = self.model.next_seq + draw(st.sampled_from([0, 0, 0, 2]))
        client, owner, key = draw(clients), draw(owners), draw(st.sampled_from([None, None, "k", ""]))
        if any((task.client, task.owner, task.key) == (client, owner, key) for task in self.model.every()):
            key = None
        return put(
            seq,
            id=name_of(seq, draw(series)),
            client=client,
            owner=owner,
            key=key,
            method=draw(methods),
            params=draw(small),
            priority=draw(priorities),
            status=draw(st.sampled_from([rows.QUEUED, rows.QUEUED, rows.SCHEDULED, rows.ASSIGNED])),
            runnable_us=draw(times),
            waits=draw(st.integers(0, 1)),
            shelved=draw(st.booleans()),
            options=draw(small),
            info=draw(st.sampled_from([b"", b"{}"])),
        )

    def some_change(self, draw: Any, seq: int) -> Any:
        return change(
            seq,
            status=draw(st.sampled_from([rows.SCHEDULED, rows.QUEUED, rows.RUNNING])),
            attempt=draw(st.integers(0, 3)),
            runnable_us=draw(times),
            waits=draw(st.integers(0, 1)),
            shelved=draw(st.booleans()),
            followed=draw(st.booleans()),
            info=draw(small),
            history=draw(small),
        )

    # Promise: STORE-3
    @rule(data=st.data())
    def our_own_mistakes_fail_the_commit_and_leave_nothing(self, data):
        unknown, fresh = self.model.next_seq + 1, self.model.next_seq
        mistakes: list[Any] = [lease(unknown), change(unknown), end(unknown), rows.ReopenTask(unknown, 1)]
        mistakes += [put(unknown, runnable_us=2**64), put(fresh, id="other"), put(unknown, id="fresh")]
        finished = [task.seq for task in self.model.ended.values() if task.status == rows.FINISHED]
        mistakes += [rows.ReopenTask(seq, 1) for seq in finished[:1]]
        known: list[Any] = [*list(self.model.open.values())[:2], *list(self.model.ended.values())[:2]]
        for task in known:
            mistakes += [put(unknown, id=task.id), put(unknown + 5, id=task.id), put(task.seq, id="other")]
            if task.key is not None:
                mistakes.append(put(unknown, client=task.client, key=task.key, owner=task.owner))
        mistake = data.draw(st.sampled_from(mistakes))
        for store in (self.memory, self.sqlite):
            with pytest.raises(StoreFailed):
                store.commit([PutSetting("a", b"lost"), put(fresh, id="fresh"), end(fresh), mistake])
            with pytest.raises(StoreFailed):
                store.commit([])
        self.reopen()

    @rule(ask=task_asks)
    def ask_of_tasks(self, ask):
        expected = self.model.answer(ask)
        for found in (self.memory.read(ask), self.sqlite.read(ask), self.sqlite.scan(ask)):
            assert found == expected
            for task in found if isinstance(found, tuple) else ():
                assert not isinstance(task, rows.OpenTask) or type(task.shelved) is type(task.followed) is bool

    @rule(ask=lists)
    def a_list_has_the_same_pages(self, ask):
        assert self.memory.scan(ask) == self.sqlite.scan(ask)

    @rule(ask=lists)
    def all_pages_together_are_everything(self, ask):
        seen: list[rows.OpenTask | rows.EndedTask] = []
        before: int | None = None
        for _ in range(100):
            page: Any = self.sqlite.scan(queries.ListTasks(ask.limit, before, ask.status, ask.method, ask.client))
            assert len(page.tasks) <= max(1, ask.limit)
            seen += page.tasks
            if page.next_seq is None:
                break
            assert before is None or page.next_seq < before
            before = page.next_seq
        assert [t.seq for t in seen] == self.model.matching(status=ask.status, method=ask.method, client=ask.client)
        assert all(t.params == t.options == b"" == getattr(t, "result", b"") for t in seen)

    @rule()
    def reopen(self):
        self.memory = self.memory.crash()
        self.sqlite.close()
        self.sqlite = SqliteStore(self.folder)
        memory = self.memory.open()
        self.take(memory, self.sqlite.open())
        assert (memory.next_task_seq, memory.leased) == self.model.begin()
        assert memory.usage == tuple(self.model.usage[account] for account in sorted(self.model.usage))

    @invariant()
    def all_tasks_agree(self):
        names = tuple(task.id for task in self.model.every())
        for store in (self.memory, self.sqlite):
            assert store.read(queries.FindTasks(names)) == tuple(self.model.every())
        for method, priority in itertools.product(("noop", "a.b"), (0, 4)):
            ask = queries.ReadQueue(method, priority, 0, 100, 1000)
            assert self.memory.read(ask) == self.sqlite.read(ask) == self.model.answer(ask)


TestTaskTwins = TaskTwins.TestCase
TestTaskTwins.settings = examples(40, stateful_step_count=30, deadline=None)
