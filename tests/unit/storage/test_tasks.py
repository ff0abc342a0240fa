"""What every store promises of tasks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scale0.storage import rows as limits
from scale0.storage.interface import FAILPOINTS, StoreFailed, StoreRefused
from scale0.storage.rows import PutSetting
from scale0.storage.task_queries import (
    CountTaskClients,
    CountTasks,
    FindTasks,
    ListTasks,
    LookUpSubmission,
    ReadDependents,
    ReadEndedDependencies,
    ReadExpiry,
    ReadPriorities,
    ReadQueue,
    ReadResults,
    ReadSchedule,
    ReadUnusedClients,
    SubmissionLookup,
    TaskPage,
)
from scale0.storage.task_rows import (
    ASSIGNED,
    CANCELLED,
    FAILED,
    FINISHED,
    KEPT_PARAMS_BYTES,
    QUEUED,
    RUNNING,
    SCHEDULED,
    DropDependency,
    DropTaskClient,
    EndedTask,
    PutDependency,
    PutTaskClient,
    ReopenTask,
    SweepTasks,
    TaskClient,
    checksum,
)
from tests.unit.storage.task_model import change, end, lease, name_of, opened, put

replace = msgspec.structs.replace


def found(store: Any, seq: int) -> Any:
    return store.read(FindTasks((name_of(seq),)))[0]


def brief(store: Any, seq: int) -> Any:
    return store.read(FindTasks((name_of(seq),), brief=True))[0]


def seqs(tasks: Any) -> list[int]:
    return [task.seq for task in tasks]


def test_a_task_is_open_then_ended_then_forgotten(store):
    store.commit([put(1, options=b"\x80")])
    assert found(store, 1) == opened(1, options=b"\x80")
    store.commit([lease(1)])
    assert found(store, 1) == opened(1, options=b"\x80", status=ASSIGNED, attempt=1, node="n1", shelved=False)
    store.commit([end(1, expires_us=50)])
    assert found(store, 1) == EndedTask(
        seq=1,
        id=name_of(1),
        client="ann",
        method="noop",
        params=b"",
        priority=4,
        status=FINISHED,
        attempt=1,
        starts=1,
        node="n1",
        submitted_us=1001,
        started_us=7,
        ended_us=8,
        expires_us=50,
        key=None,
        options=b"\x80",
        result=b"2",
        info=b"",
        history=b"",
        params_sum=checksum(1, b"[1]"),
        result_sum=checksum(1, b"2"),
    )
    store.commit([SweepTasks(50, 10)])
    assert found(store, 1) is None


def test_only_what_may_be_tried_again_keeps_its_params(store):
    store.commit([put(1), put(2), put(3), end(1), end(2, FAILED), end(3, CANCELLED)])
    assert [found(store, seq).params for seq in (1, 2, 3)] == [b"", b"[1]", b"[1]"]


def test_a_brief_row_has_neither_params_nor_result(store):
    store.commit([put(1, key="k"), put(2, key="l"), put(3), PutDependency(2, 3), end(2, FAILED)])
    assert brief(store, 1) == replace(found(store, 1), params=b"")
    assert brief(store, 2) == replace(found(store, 2), params=b"", result=b"")
    lookup = store.read(LookUpSubmission("ann", (name_of(1), name_of(2), "x"), "l", None))
    assert lookup.tasks == (brief(store, 1), brief(store, 2), None)
    assert lookup.keyed == brief(store, 2)
    assert store.read(ReadEndedDependencies(9)) == (brief(store, 2),)


# Promise: TASK-18
def test_results_are_read_as_long_as_they_fit(store):
    sizes = {1: 10, 2: 1_000_000, 3: 5, 5: 7}
    store.commit([put(seq) for seq in (1, 2, 3, 4, 5)])
    store.commit([end(seq, FAILED if seq == 3 else FINISHED, result=b"7" * size) for seq, size in sizes.items()])

    def read(*wanted: int, most: int) -> list[Any]:
        rows: Any = store.read(ReadResults(wanted, most))
        return [None if row is None else (row[0], len(row[1])) for row in rows]

    assert read(1, 4, 99, 3, most=15) == [(FINISHED, 10), None, None, (FAILED, 5)]
    assert read(1, 4, 3, most=14) == [(FINISHED, 10), None]
    assert read(2, 1, most=1) == [(FINISHED, 1_000_000)]
    assert read(1, 2, 3, most=100) == [(FINISHED, 10)]
    assert read(5, 3, 1, most=100) == [(FINISHED, 7), (FAILED, 5), (FINISHED, 10)]


def test_writes_about_one_task_count_in_their_order(store):
    store.commit([put(1), put(2), put(3)])
    store.commit(
        [
            *(lease(1), change(1, attempt=1), lease(1, attempt=2, node="n2")),
            *(end(2, FAILED), ReopenTask(2, 77), lease(2, attempt=5)),
            *(lease(3), end(3, FAILED, expires_us=5), SweepTasks(5, 9), put(4), end(4)),
        ]
    )
    one, two = found(store, 1), found(store, 2)
    assert (one.status, one.attempt, one.node) == (ASSIGNED, 2, "n2")
    assert (two.status, two.attempt, two.runnable_us, two.shelved) == (ASSIGNED, 5, 77, False)
    assert (found(store, 3), found(store, 4).status) == (None, FINISHED)


# Who shares a store reserves an id first, and finds out that it is free again.
@pytest.mark.parametrize("make", ["memory", "sqlite"], indirect=True)
def test_sweeping_frees_an_id_and_a_key_within_its_commit(store):
    store.commit([put(1, key="k"), end(1, FAILED, expires_us=5), SweepTasks(5, 9), put(2, id=name_of(1), key="k")])
    assert found(store, 1).seq == 2


def test_a_task_that_is_opened_again_keeps_its_name_and_waits_in_the_backlog(store):
    store.commit([put(1, key="k", followed=True, options=b"o"), PutDependency(1, 9), end(1, FAILED, history=b"[3]")])
    assert store.read(ReadExpiry()) == 9000
    store.commit([ReopenTask(1, 70)])
    expected = opened(1, key="k", followed=True, options=b"o", attempt=1, runnable_us=70, history=b"[3]")
    assert found(store, 1) == expected
    assert store.read(ReadQueue("noop", 4, 0, 9, 99)) == (expected,)
    assert (store.read(ReadExpiry()), store.read(ReadEndedDependencies(9))) == (None, ())
    store.commit([DropDependency(1), end(1, FAILED), ReopenTask(1, 71)])
    assert found(store, 1).followed is False


KNOWN = [put(1, client="ann", key="k"), put(2), end(2), put(3, key="e"), end(3), put(5), end(5, FAILED)]


# Promise: STORE-3
@pytest.mark.parametrize("later", [change(1), lease(1)])
def test_a_change_of_a_task_that_ended_in_the_same_commit_fails_it(store, later):
    store.commit(KNOWN)
    with pytest.raises(StoreFailed):
        store.commit([change(1), end(1), later])


# Promise: STORE-3
@pytest.mark.parametrize(
    "mistake",
    [
        *(put(1, id="x"), put(2, id="x"), put(9, id=name_of(1)), put(9, id=name_of(2))),
        *(put(9, client="ann", key="k"), put(9, client="ann", key="e"), put(9, runnable_us=2**63)),
        *(lease(2), change(2), end(2), lease(9), change(9), end(9)),
        end(1, expires_us=2**64),
    ],
)
@pytest.mark.parametrize("company", [[], [put(8)]])
def test_our_own_mistake_fails_the_commit_and_leaves_nothing(make, store, mistake, company):
    store.commit(KNOWN)
    with pytest.raises(StoreFailed):
        store.commit([PutSetting("a", b"b"), lease(1), *company, mistake])
    with pytest.raises(StoreFailed, match="earlier commit failed"):
        store.commit([])
    again = make()
    state = again.open()
    assert (state.settings, state.leased, state.next_task_seq) == ({}, (), 6)
    assert seqs(again.read(ListTasks(9)).tasks) == [5, 3, 2, 1]
    assert (found(again, 8), again.read(ReadPriorities("noop"))) == (None, ((4, 1),))


# Promise: STORE-3
# Who shares a store may find that another broker was first: there this is no mistake.
@pytest.mark.parametrize("make", ["memory", "sqlite"], indirect=True)
@pytest.mark.parametrize("seq", [1, 2, 9])
def test_what_has_not_ended_or_is_finished_cannot_be_opened_again(make, store, seq):
    store.commit(KNOWN)
    with pytest.raises(StoreFailed):
        store.commit([PutSetting("a", b"b"), ReopenTask(seq, 0)])
    assert make().open().settings == {}


def test_a_key_is_of_its_client(store):
    store.commit([put(1, client="ann", key="k"), put(2, client="bob", key="k"), put(3, client="bob", key="")])
    store.commit([PutTaskClient("bob", "owner", 5), end(2)])
    assert store.read(LookUpSubmission("ann", (), "k", None)) == SubmissionLookup(None, (), brief(store, 1), "")
    bob = store.read(LookUpSubmission("bob", ("nobody", name_of(3)), "k", "s"))
    assert bob == SubmissionLookup(TaskClient("bob", "owner", 5), (None, brief(store, 3)), brief(store, 2), name_of(3))
    assert store.read(LookUpSubmission("bob", (), "", "x")).keyed == brief(store, 3)
    store.commit([SweepTasks(9000, 9)])
    store.commit([put(4, client="bob", key="k")])
    assert store.read(LookUpSubmission("bob", (), "k", None)).keyed == brief(store, 4)


def test_the_last_of_a_series_is_the_largest_id_that_begins_so(store):
    ids = ["s.9", "s.10", "s", "sx.99", "s-1", "s/1", "t.1.2", "ü.1", "."]
    store.commit([put(seq, id=name) for seq, name in enumerate(ids, 1)])
    store.commit([end(1)])
    lasts = {name: store.read(LookUpSubmission("", (), None, name)).last for name in ("s", "t", "t.1", "ü", "", "u")}
    assert lasts == {"s": "s.9", "t": "t.1.2", "t.1": "t.1.2", "ü": "ü.1", "": ".", "u": ""}


def test_a_client_id_keeps_its_first_owner_until_it_is_dropped(store):
    def kept():
        return store.read(LookUpSubmission("ann", (), None, None)).client

    store.commit([PutTaskClient("ann", "her", 1), PutTaskClient("ann", "him", 2)])
    assert kept() == TaskClient("ann", "her", 2)
    store.commit([DropTaskClient("ann"), DropTaskClient("nobody")])
    assert kept() is None
    store.commit([PutTaskClient("ann", "him", 3)])
    assert kept() == TaskClient("ann", "him", 3)


def test_client_ids_are_counted_and_unused_ones_are_dropped_unless_heard_since(store):
    ids = {"open": 1, "ended": 2, "b": 3, "a": 4, "later": 9}
    store.commit([PutTaskClient(id_, "key" if heard > 2 else "", heard) for id_, heard in ids.items()])
    store.commit([put(1, client="open"), put(2, client="ended"), end(2)])
    assert store.scan(CountTaskClients()) == {"": 2, "key": 3}
    assert store.scan(ReadUnusedClients(4, 9)) == ("a", "b")
    assert store.scan(ReadUnusedClients(4, 1)) == ("a",)
    assert store.scan(ReadUnusedClients(2, 9)) == store.scan(ReadUnusedClients(9, 0)) == ()
    store.commit([PutTaskClient("a", "key", 5), DropTaskClient("a", 4), DropTaskClient("b", 4)])
    assert store.scan(ReadUnusedClients(8, 9)) == ("a",)
    store.commit([end(1), SweepTasks(10**6, 9)])
    assert store.scan(ReadUnusedClients(8, 9)) == ("a", "ended", "open")
    assert store.scan(CountTaskClients()) == {"": 2, "key": 2}


def test_a_queue_is_what_is_queued_and_in_the_backlog_in_order(store):
    store.commit(
        [
            *(put(1), put(2, shelved=False), put(3, method="other"), put(4, priority=5), put(5), put(6)),
            *(put(7, status=SCHEDULED), put(8)),
        ]
    )
    assert seqs(store.read(ReadQueue("noop", 4, 0, 9, 999))) == [1, 5, 6, 8]
    assert seqs(store.read(ReadQueue("noop", 4, 1, 2, 999))) == [5, 6]
    assert store.read(ReadPriorities("noop")) == ((5, 4), (4, 8))
    assert store.read(ReadPriorities("nothing")) == ()
    store.commit([lease(5), end(1), change(2, shelved=True), change(8, status=SCHEDULED, shelved=True)])
    assert seqs(store.read(ReadQueue("noop", 4, 0, 9, 999))) == [2, 6]
    assert store.read(ReadPriorities("noop")) == ((5, 4), (4, 6))


def test_a_long_queue_keeps_its_order_while_tasks_leave_and_come_back(store):
    store.commit([put(seq) for seq in range(1, 301)])
    store.commit([lease(seq) for seq in range(1, 291)])
    store.commit([change(seq, shelved=True) for seq in (250, 7, 90)])
    store.commit([lease(7), change(7, shelved=True), lease(295), end(300)])
    assert seqs(store.read(ReadQueue("noop", 4, 0, 50, 999))) == [7, 90, 250, 291, 292, 293, 294, 296, 297, 298, 299]
    assert store.read(ReadPriorities("noop")) == ((4, 299),)


def test_a_queue_is_read_until_its_params_are_many_bytes(store):
    store.commit([put(seq, params=b"x" * 10) for seq in range(1, 6)])
    by_bytes = {n: len(store.read(ReadQueue("noop", 4, 0, 9, n))) for n in (-1, 0, 1, 10, 11, 20, 21, 1000)}
    assert by_bytes == {-1: 1, 0: 1, 1: 1, 10: 1, 11: 2, 20: 2, 21: 3, 1000: 5}
    assert store.read(ReadQueue("noop", 4, 0, 0, 1000)) == ()


def test_the_schedule_is_by_time_then_by_number_and_goes_on_where_it_was(store):
    when = {1: 30, 2: 10, 3: 20, 4: 10, 5: 10}
    store.commit([put(seq, status=SCHEDULED, runnable_us=at) for seq, at in when.items()])
    store.commit([put(6, status=SCHEDULED, waits=1, runnable_us=1), put(7, runnable_us=1)])
    assert seqs(store.read(ReadSchedule(0, 0, 9))) == [2, 4, 5, 3, 1]
    assert seqs(store.read(ReadSchedule(10, 2, 2))) == [4, 5]
    assert seqs(store.read(ReadSchedule(10, 2, 3))) == [4, 5, 3]
    assert seqs(store.read(ReadSchedule(30, 1, 9))) == []
    store.commit([change(6, status=SCHEDULED, waits=0, runnable_us=15)])
    assert seqs(store.read(ReadSchedule(10, 4, 2))) == [5, 6]


def test_dependents_are_known_until_they_are_dropped(store):
    store.commit([put(seq) for seq in range(1, 6)])
    store.commit(
        [PutDependency(1, 3), PutDependency(1, 2), PutDependency(1, 4), PutDependency(5, 4), PutDependency(1, 3)]
    )
    assert seqs(store.read(ReadDependents(1, 0, 9))) == [2, 3, 4]
    assert seqs(store.read(ReadDependents(1, 2, 1))) == [3]
    assert store.read(ReadEndedDependencies(9)) == ()
    store.commit([end(1), end(3), end(5, FAILED)])
    assert seqs(store.read(ReadDependents(1, 0, 9))) == [2, 4]
    assert seqs(store.read(ReadEndedDependencies(9))) == [1, 5]
    assert seqs(store.read(ReadEndedDependencies(1))) == [1]
    store.commit([DropDependency(1), DropDependency(99)])
    assert store.read(ReadDependents(1, 0, 9)) == ()
    assert seqs(store.read(ReadEndedDependencies(9))) == [5]


def test_sweeping_forgets_the_oldest_first_and_no_more_than_it_may(store):
    expiries = {1: 30, 2: 10, 3: 20, 4: 10, 5: 90}
    store.commit([put(seq) for seq in expiries] + [end(seq, expires_us=at) for seq, at in expiries.items()])
    assert store.read(ReadExpiry()) == 10
    store.commit([SweepTasks(30, 3)])
    assert seqs(store.read(ListTasks(9)).tasks) == [5, 1]
    store.commit([SweepTasks(29, 9), SweepTasks(30, 0), SweepTasks(30, -1)])
    assert store.read(ReadExpiry()) == 30
    store.commit([SweepTasks(30, 9)])
    assert (store.read(ReadExpiry()), found(store, 1)) == (90, None)
    store.commit([SweepTasks(2**63 - 1, 9)])
    assert (store.read(ReadExpiry()), store.read(ListTasks(9))) == (None, TaskPage((), None))


def test_numbers_of_tasks_go_on_after_the_largest_was_swept(make):
    store = make()
    assert store.open().next_task_seq == 1
    store.commit([put(3), put(7), end(7, expires_us=5)])
    store.commit([SweepTasks(5, 9)])
    store = make()
    assert store.open().next_task_seq == 8
    store.commit([end(3, expires_us=6), SweepTasks(6, 9)])
    for _ in range(2):
        store = make()
        assert store.open().next_task_seq == 8
    store.commit([put(8)])
    assert make().open().next_task_seq == 9


def test_opening_puts_what_is_queued_in_the_backlog_and_reports_what_is_leased(make, store):
    store.commit([put(1, shelved=False), put(2, shelved=False, status=SCHEDULED), put(4)])
    store.commit([put(5, status=RUNNING, shelved=False)])
    store.commit([lease(4), put(6), lease(6), end(6)])
    again = make()
    handed_out = opened(4, status=ASSIGNED, attempt=1, node="n1", shelved=False)
    leased = (handed_out, opened(5, status=RUNNING, shelved=False))
    assert again.open().leased == leased
    assert seqs(again.read(ReadQueue("noop", 4, 0, 9, 999))) == [1]
    assert [found(again, seq).shelved for seq in (1, 2)] == [True, False]
    assert again.read(CountTasks()) == {SCHEDULED: 1, QUEUED: 1, ASSIGNED: 1, RUNNING: 1}


# Promise: QUOTA-7
def test_opening_reads_no_large_params_of_leased_tasks(make, store):
    small, large = b"x" * KEPT_PARAMS_BYTES, b"x" * (KEPT_PARAMS_BYTES + 1)
    store.commit([put(seq, params=params, status=RUNNING) for seq, params in ((1, small), (2, large))])
    again = make()
    assert [(task.params, task.size) for task in again.open().leased] == [(small, len(small)), (b"", len(large))]
    assert found(again, 2).params == large


def test_a_list_shows_the_newest_first_and_nothing_that_is_large(store):
    store.commit([put(seq, options=b"o", key=str(seq)) for seq in range(1, 8)])
    store.commit([end(2, FAILED, info=b"{}"), end(5), end(6)])
    first = store.read(ListTasks(4))
    assert (seqs(first.tasks), first.next_seq) == ([7, 6, 5, 4], 4)
    assert first.tasks[0] == replace(opened(7, options=b"", key="7"), params=b"")
    rest = store.scan(ListTasks(4, first.next_seq))
    assert (seqs(rest.tasks), rest.next_seq) == ([3, 2, 1], None)
    assert (rest.tasks[1].params, rest.tasks[1].options, rest.tasks[1].result) == (b"", b"", b"")
    assert (rest.tasks[1].info, rest.tasks[1].key) == (b"{}", "2")
    assert seqs(store.read(ListTasks(0)).tasks) == [7]
    assert store.read(ListTasks(9, 1)) == TaskPage((), None)


def test_a_filter_without_an_index_looks_at_few_tasks_at_a_time(store, monkeypatch):
    monkeypatch.setattr(limits, "LIST_SCAN_ROWS", 10)
    store.commit([put(seq, client="bob" if seq in (3, 8, 28) else "ann", method=f"m{seq % 2}") for seq in range(1, 31)])
    store.commit([end(seq, FAILED if seq in (4, 5) else FINISHED) for seq in range(1, 31) if seq <= 15])

    def pages(**filters):
        out, before = [], None
        while True:
            page = store.scan(ListTasks(5, before, **filters))
            out.append((seqs(page.tasks), page.next_seq))
            before = page.next_seq
            if before is None:
                return out

    # Down to the place where the walk through the open ones ended, then through what is left of both.
    assert pages(client="bob") == [([28], 21), ([8], 6), ([3], None)]
    assert pages(status=QUEUED, client="bob") == [([28], 21), ([], None)]
    # An index leads to these, whatever lies between.
    assert pages(status=FAILED) == [([5, 4], None)]
    assert pages(status=FINISHED, method="m0") == [([14, 12, 10, 8, 6], 6), ([2], None)]
    assert pages(status=42) == [([], None)]


def test_an_ask_gets_no_more_than_the_limit_of_all_asks(store, monkeypatch):
    monkeypatch.setattr(limits, "MAX_READ_ROWS", 2)
    store.commit([put(seq) for seq in range(1, 5)] + [put(seq, status=SCHEDULED) for seq in range(5, 9)])
    assert seqs(store.read(ReadQueue("noop", 4, 0, 9, 999))) == [1, 2]
    assert seqs(store.read(ReadSchedule(0, 0, 9))) == [5, 6]
    assert seqs(store.read(ListTasks(9)).tasks) == [8, 7]


# Promise: STORE-3
@pytest.mark.parametrize("point", FAILPOINTS)
def test_a_commit_of_tasks_is_whole_or_not_there(make, point):
    def break_at(name):
        if name == point and armed:
            raise OSError("planted")

    armed: list[bool] = []
    store = make(break_at)
    store.open()
    store.commit([put(1), put(2), put(3, followed=True), PutDependency(3, 2), end(3, FAILED, expires_us=1)])
    armed.append(True)
    with pytest.raises(OSError, match="planted"):
        store.commit(
            [put(4, key="k"), lease(1), end(2), ReopenTask(3, 9), DropDependency(3), PutTaskClient("ann", "", 1)]
        )
    armed.clear()
    again = make()
    state = again.open()
    new = point == "after_commit"
    assert state.next_task_seq == (5 if new else 4)
    assert seqs(state.leased) == ([1] if new else [])
    assert [type(found(again, seq)) is EndedTask for seq in (2, 3)] == ([True, False] if new else [False, True])
    assert (found(again, 4) is None) is not new
    assert (again.read(LookUpSubmission("ann", (), "k", None)).client is None) is not new
    assert (again.read(ReadEndedDependencies(9)) == ()) is new


def test_asks_of_tasks_need_an_open_store(store):
    store.close()
    for ask in (store.read, store.scan):
        with pytest.raises(StoreRefused):
            ask(CountTasks())
