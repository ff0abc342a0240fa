"""What a store promises to brokers that share it.

Promise: STORE-6
Promise: STORE-7
"""

from __future__ import annotations

from typing import Any

import pytest

from scale0.history.events.journal import Journal
from scale0.history.events.sources import SourceAlive
from scale0.kernel.clock import Now
from scale0.storage.interface import MAX_SLOT, SharedStoreInfo, StoreFailed, StoreFenced, StoreRefused
from scale0.storage.rows import PutDocument, PutSetting, PutToken, ReadDocuments, ReadJournal
from scale0.storage.task_queries import (
    ClaimedTask,
    ClaimTasks,
    CountTasks,
    FindTasks,
    LookUpSubmission,
    PeekBacklog,
    PeekQueues,
    ReadDependents,
    ReadEndedDependencies,
    ReadQueue,
    StoreHeartbeat,
    TakeDue,
    TakeOrphans,
    TakeTaskCommands,
)
from scale0.storage.task_rows import (
    ASSIGNED,
    CANCEL,
    FAILED,
    FINISHED,
    KEPT_PARAMS_BYTES,
    QUEUED,
    RELEASE,
    RUNNING,
    SCHEDULED,
    FreeReservation,
    PutDependency,
    PutTaskCommand,
    ReleaseTask,
    ReopenTask,
    SweepTasks,
)
from simulator.fake_postgres.store import OPENING_LEASE_US, StoreUnreachable
from tests.unit.storage.group import GroupMember, MemoryGroup
from tests.unit.storage.task_model import change, end, lease, name_of, opened, put

LEASE_US = 3_000_000
QUEUE = ReadQueue("noop", 4, 0, 9, 999)


@pytest.fixture
def ann(group):
    return GroupMember(group, "ann")


@pytest.fixture
def bob(group, ann):
    return GroupMember(group, "bob")


def seqs(tasks: Any) -> list[int]:
    return [task.seq for task in tasks]


def seen(answer: Any) -> tuple[Any, ...]:
    """What a heartbeat was answered; its time is the database's."""
    assert answer.now_us > 0
    return answer.died, answer.alive


def heartbeat_all(*members: GroupMember) -> None:
    for member in members:
        member.read(StoreHeartbeat(LEASE_US))


def declare_dead(group, dead: GroupMember, *others: GroupMember) -> Any:
    """Time passes until the others know."""
    heartbeat_all(dead, *others)
    dead.crash()
    group.pass_us(LEASE_US - 1)
    heartbeat_all(*others)
    group.pass_us(2)
    answered = others[0].read(StoreHeartbeat(LEASE_US))
    assert answered.died == (dead.identity,)
    return answered


def test_each_broker_has_a_slot_for_ever_and_an_epoch_for_each_life(ann, bob):
    assert (ann.opened.shared, bob.opened.shared.slot) == (SharedStoreInfo(0, 1), 1)
    ann.store.close()
    again = ann.again()
    assert again.opened.shared.slot == 0
    assert again.opened.shared.epoch > ann.opened.shared.epoch


def test_what_is_a_brokers_own_is_not_seen_by_another(ann, bob):
    row = Journal("ann", 5, 1, 0).append([SourceAlive("ann")] * 3, Now(0.0, 9.0))
    document = PutDocument(1, "aa", "00", b"", 7, True, "root")
    ann.commit(PutSetting("k", b"v"), PutToken("d", "n", "r", 1), document, row)
    assert (bob.read(ReadDocuments(9)), bob.read(ReadJournal(0, 9))) == ((), ())
    bob.store.close()
    other = bob.again().opened
    assert (other.settings, other.tokens, other.document, other.next_seq, other.boots) == ({}, (), None, 1, 2)
    ann.store.close()
    own = ann.again().opened
    assert (own.settings, own.document.hash, own.next_seq, own.last_boot_us, own.boots) == ({"k": b"v"}, "aa", 4, 5, 2)
    assert len(own.tokens) == 1


def test_the_counter_of_tasks_is_a_brokers_own(ann, bob):
    assert (ann.opened.next_task_seq, bob.opened.next_task_seq) == (1, 1)
    bob.commit(put(bob.seq(700)), put(bob.seq(650)))
    bob.store.close()
    bob = bob.again()
    assert (bob.opened.next_task_seq, bob.opened.leased) == (701, ())
    ann.store.close()
    assert ann.again().opened.next_task_seq == 1


def test_one_broker_gets_what_is_in_the_backlog(ann, bob):
    ann.commit(put(1), put(2), put(3, shelved=False))
    first = bob.read(ReadQueue("noop", 4, 0, 1, 999))
    assert first == (opened(1, shelved=False),)
    assert seqs(ann.read(QUEUE)) == [2]
    assert ann.read(QUEUE) == bob.read(QUEUE) == ()
    bob.commit(lease(1))
    ann.commit(lease(2), lease(3), end(3))


# Promise: FAIR-9
def test_accounts_have_equal_parts_of_a_claim(ann, bob):
    flood = [put(number, client=f"c{number}", owner="flood") for number in range(1, 10)]
    ann.commit(*flood, put(20, client="x"), put(21, client="x"), put(30, client="y"))
    assert seqs(bob.read(ReadQueue("noop", 4, 0, 3, 999))) == [1, 20, 30]
    assert seqs(bob.read(ReadQueue("noop", 4, 0, 4, 999))) == [2, 3, 4, 21]
    assert seqs(bob.read(ReadQueue("noop", 4, 0, 9, 999))) == [5, 6, 7, 8, 9]


# Promise: FAIR-9
def test_a_claim_that_is_too_small_for_all_accounts_begins_behind_those_of_the_last(ann, bob):
    ann.commit(*(put(number, client=f"c{number % 4}") for number in range(1, 13)))
    last, order = "", []
    for _ in range(4):
        taken = bob.read(ReadQueue("noop", 4, 0, 2, 999, last))
        order.append(seqs(taken))
        last = max((task.client for task in taken), key=lambda one: (one <= last, one))
    assert order == [[1, 4], [2, 3], [5, 8], [6, 7]]


@pytest.mark.parametrize("write", [lease(1), change(1), end(1), ReleaseTask(1)])
def test_what_another_holds_cannot_be_written(ann, bob, write):
    ann.commit(put(1, status=RUNNING))
    with pytest.raises(StoreFailed, match="Please report this"):
        bob.commit(PutSetting("k", b""), write)
    with pytest.raises(StoreFailed, match="earlier commit failed"):
        bob.commit()
    ann.commit(write)
    bob.store.close()
    assert bob.again().opened.settings == {}


def test_what_nobody_holds_cannot_be_written_and_can_be_claimed(ann, bob):
    ann.commit(put(1), put(2, status=SCHEDULED))
    claimed = bob.read(ClaimTasks((name_of(1), name_of(2), "nobody")))
    expected = (opened(1, shelved=False), opened(2, status=SCHEDULED, shelved=False), None)
    assert claimed == tuple(ClaimedTask(task) for task in expected)
    assert ann.read(ClaimTasks((name_of(1),))) == (ClaimedTask(opened(1, shelved=False), "bob"),)
    assert bob.read(ClaimTasks((name_of(1),))) == (ClaimedTask(opened(1, shelved=False)),)
    bob.commit(end(1), change(2, status=SCHEDULED))
    (one,) = ann.read(ClaimTasks((name_of(1),)))
    assert (one.task.status, one.holder) == (FINISHED, "")
    with pytest.raises(StoreFailed):
        bob.commit(end(2))


def test_within_one_commit_a_broker_holds_what_it_wrote(ann, bob):
    ann.commit(put(1), lease(1), change(1, shelved=True), lease(1), change(1, shelved=True), put(2), end(2, FAILED))
    ann.commit(ReopenTask(2, 5), end(2, FAILED))
    assert seqs(bob.read(QUEUE)) == [1]


def test_an_ended_task_is_opened_again_once(ann, bob):
    ann.commit(put(1), end(1, FAILED))
    ann.commit(ReopenTask(1, 70))
    bob.commit(ReopenTask(1, 71), ReopenTask(99, 1))
    assert [task.runnable_us for task in bob.read(QUEUE)] == [70]


def test_what_is_due_is_taken_once_and_in_order(ann, bob):
    when = {1: 30, 2: 10, 3: 20, 4: 10, 5: 99}
    ann.commit(*(put(seq, status=SCHEDULED, runnable_us=at) for seq, at in when.items()))
    ann.commit(put(6, status=SCHEDULED, runnable_us=1, waits=1), put(7, runnable_us=1))
    assert seqs(bob.read(TakeDue(30, 2))) == [2, 4]
    assert seqs(ann.read(TakeDue(30, 9))) == [3, 1]
    assert ann.read(TakeDue(30, 9)) == bob.read(TakeDue(30, 9)) == ()
    bob.commit(change(2, status=SCHEDULED, runnable_us=5), change(4, shelved=True))
    assert seqs(ann.read(TakeDue(30, 9))) == [2]


def test_dependents_are_taken_by_one_and_an_ended_one_waits_for_nobody(ann, bob):
    ann.commit(put(1, shelved=False, followed=True), *(put(seq, status=SCHEDULED, waits=1) for seq in (2, 3, 4)))
    ann.commit(*(PutDependency(1, seq) for seq in (2, 3, 4)), put(5, shelved=False), PutDependency(1, 5))
    assert seqs(bob.read(ReadDependents(1, 0, 1))) == [2]
    assert seqs(ann.read(ReadDependents(1, 0, 9))) == [3, 4, 5]  # what she holds, too
    assert seqs(ann.read(ReadDependents(1, 0, 9))) == [3, 4, 5]
    assert seqs(bob.read(ReadDependents(1, 0, 9))) == [2]
    ann.commit(end(3, FAILED), end(1), change(4, status=SCHEDULED, waits=1))
    bob.commit(end(2, FAILED))
    assert seqs(ann.read(ReadEndedDependencies(9))) == [1]
    assert seqs(bob.read(ReadDependents(1, 0, 9))) == [4]  # and not 5, which is hers
    bob.commit(end(4))
    assert seqs(ann.read(ReadEndedDependencies(9))) == [1]
    ann.commit(end(5))
    assert ann.read(ReadEndedDependencies(9)) == ()


def test_the_backlog_can_be_listed(ann, bob):
    ann.commit(put(1), put(2, priority=9), put(3, method="other"), put(4, method="held", shelved=False), put(5))
    assert sorted(bob.read(PeekBacklog(("noop", "other", "held", "none")))) == [("noop", 4), ("noop", 9), ("other", 4)]
    first = tuple(("noop", name_of(seq), "") for seq in (2, 1, 5))
    assert bob.read(PeekQueues(("other", "noop", "none"), 9)) == (*first, ("other", name_of(3), ""))
    assert bob.read(PeekQueues(("noop",), 1)) == first[:1]
    assert bob.read(PeekQueues((), 9)) == ()
    assert seqs(ann.read(QUEUE)) == [1, 5]


# ---- ids and keys


def new(client: str, name: str, key: str | None = None) -> LookUpSubmission:
    return LookUpSubmission(client, (name,), key, None, name)


def test_an_id_is_one_brokers_until_it_is_put_or_freed(ann, bob):
    assert not ann.read(new("c", "x")).busy
    assert not ann.read(new("c", "x")).busy
    assert bob.read(new("c", "x")).busy
    assert not bob.read(LookUpSubmission("c", ("x",), None, None)).busy
    ann.store.commit([FreeReservation("x", "c", None)])
    assert not bob.read(new("c", "x")).busy
    bob.store.commit([put(1, id="x")])
    found = ann.read(new("c", "x"))
    assert (found.busy, found.tasks[0].seq) == (False, 1)


def test_a_key_is_one_brokers_and_of_its_client(ann, bob):
    assert not ann.read(LookUpSubmission("c", (), "k", None, "")).busy
    assert bob.read(LookUpSubmission("c", (), "k", None, "")).busy
    assert not bob.read(LookUpSubmission("d", (), "k", None, "")).busy
    ann.store.commit([put(1, id="s0:1", client="c", key="k")])
    found = bob.read(new("c", "y", "k"))
    assert (found.busy, found.keyed.seq) == (False, 1)
    # Nothing was reserved: the key leads to a task.
    assert not ann.read(new("c", "y")).busy


def test_all_or_nothing_is_reserved(ann, bob):
    ann.read(LookUpSubmission("c", (), "k", None, ""))
    assert bob.read(new("c", "x", "k")).busy
    assert not ann.read(new("c", "x")).busy
    bob.read(new("c", "y"))
    assert ann.read(new("c", "y", "other")).busy
    assert not bob.read(LookUpSubmission("c", (), "other", None, "")).busy
    ann.store.commit([put(1, id="x", client="c")])
    assert bob.read(new("c", "x", "free")).tasks[0].seq == 1
    assert not ann.read(LookUpSubmission("c", (), "free", None, "")).busy


def test_what_is_freed_must_be_ones_own(ann, bob):
    ann.read(new("c", "x", "k"))
    bob.store.commit([FreeReservation("x", "c", "k"), FreeReservation("none", "c", None)])
    assert bob.read(new("c", "x")).busy
    ann.store.commit([FreeReservation(None, "c", "k")])
    assert not bob.read(LookUpSubmission("c", (), "k", None, "")).busy
    assert bob.read(new("c", "x")).busy


@pytest.mark.parametrize("mistake", [put(9, id="x"), put(9, id="s0:9", key="k"), put(9, id="y", key="k")])
def test_what_was_not_reserved_cannot_be_put(ann, bob, mistake):
    ann.read(new("ann", "y"))
    with pytest.raises(StoreFailed):
        ann.store.commit([mistake])
    assert not bob.read(LookUpSubmission("ann", ("x",), None, None)).tasks[0]


def test_ids_of_our_own_need_no_reservation(ann, bob):
    ann.store.commit([put(1, id="s0:1")])
    with pytest.raises(StoreFailed):
        bob.store.commit([put(2, id="s0:1")])


def test_the_reservations_of_a_dead_broker_are_free(group, ann, bob):
    ann.read(new("c", "x", "k"))
    assert bob.read(new("c", "x", "k")).busy
    declare_dead(group, ann, bob)
    assert not bob.read(new("c", "x", "k")).busy
    bob.store.commit([put(1, id="x", client="c", key="k")])


def test_the_reservations_of_ones_own_last_life_are_ones_own(ann, bob):
    ann.read(new("c", "x"))
    ann.store.close()
    ann = ann.again()
    with pytest.raises(StoreFailed):
        ann.store.commit([put(1, id="x")])
    ann.store.close()
    ann = ann.again()
    assert not ann.read(new("c", "x")).busy
    assert bob.read(new("c", "x")).busy
    ann.store.commit([put(1, id="x")])


def test_a_swept_id_can_be_reserved_again(ann, bob):
    ann.commit(put(1, key="k"), end(1, expires_us=5))
    assert bob.read(LookUpSubmission("ann", (name_of(1),), "k", None, name_of(1))).keyed.seq == 1
    bob.commit(SweepTasks(5, 9))
    bob.commit(put(2, id=name_of(1), key="k"))
    assert ann.read(FindTasks((name_of(1),)))[0].seq == 2


# ---- task commands


def test_a_task_command_is_taken_once_by_the_broker_that_it_is_for(ann, bob):
    cancel, release = PutTaskCommand("bob", CANCEL, "x", b"{}"), PutTaskCommand("bob", RELEASE, "x", b"")
    ann.store.commit(
        [cancel, release, PutTaskCommand("bob", CANCEL, "x", b"other"), PutTaskCommand("bob", CANCEL, "y", b"")]
    )
    assert ann.read(TakeTaskCommands(9)) == ()
    assert bob.read(TakeTaskCommands(2)) == (cancel, release)
    assert [command.id for command in bob.read(TakeTaskCommands(9))] == ["y"]
    assert bob.read(TakeTaskCommands(9)) == ()
    ann.store.commit([cancel])
    bob.store.close()
    assert bob.again().read(TakeTaskCommands(9)) == (cancel,)


# ---- death


# Promise: QUOTA-7
def test_orphans_are_taken_without_large_params(group, ann, bob):
    small, large = b"x" * KEPT_PARAMS_BYTES, b"x" * (KEPT_PARAMS_BYTES + 1)
    for seq, params, node in ((1, small, "n"), (2, large, "n"), (3, small, "m"), (4, large, "m")):
        ann.commit(put(seq, params=params, status=RUNNING, node=node, shelved=False))
    bob.read(StoreHeartbeat(LEASE_US))
    declare_dead(group, ann, bob)
    claimed = [each.task.params for each in bob.read(ClaimTasks((), "n"))]
    group.pass_us(1_000)
    orphans = [task.params for task in bob.read(TakeOrphans(1_000, 9))]
    assert claimed == orphans == [small, b""]


def test_a_broker_that_says_nothing_in_time_is_dead_and_what_it_held_is_nobodys(group, ann, bob):
    ann.commit(put(1, shelved=False), put(2, status=RUNNING, node="n"), put(3, status=ASSIGNED, node="m"), put(4))
    ann.commit(put(5, status=SCHEDULED, runnable_us=1), put(6, status=RUNNING, node="n"), end(6))
    ann.read(TakeDue(1, 9))
    assert seen(bob.read(StoreHeartbeat(LEASE_US))) == ((), ("ann",))
    assert seen(declare_dead(group, ann, bob)) == (("ann",), ())
    assert seqs(bob.read(QUEUE)) == [1, 4]
    assert seqs(bob.read(TakeDue(1, 9))) == [5]
    assert bob.read(TakeOrphans(1_000, 9)) == ()
    assert bob.read(ClaimTasks((), "n")) == (ClaimedTask(opened(2, status=RUNNING, node="n", shelved=False)),)
    group.pass_us(1_000)
    assert seqs(bob.read(TakeOrphans(1_000, 9))) == [3]
    assert bob.read(TakeOrphans(0, 9)) == ()
    bob.commit(end(2), end(3), lease(1), lease(4), lease(5))


# Promise: STORE-6
def test_a_broker_that_was_taken_for_dead_changes_nothing_any_more(group, ann, bob):
    ann.commit(put(1, status=RUNNING), put(2))
    heartbeat_all(ann, bob)
    group.pass_us(LEASE_US - 1)
    heartbeat_all(bob)
    group.pass_us(2)
    assert bob.read(StoreHeartbeat(LEASE_US)).died == ("ann",)
    for ask in (
        StoreHeartbeat(LEASE_US),
        QUEUE,
        TakeTaskCommands(9),
        ClaimTasks((name_of(2),)),
        new("c", "x"),
        TakeDue(9, 9),
    ):
        with pytest.raises(StoreFenced):
            ann.read(ask)
    with pytest.raises(StoreFenced):
        ann.store.commit([end(1)])
    with pytest.raises(StoreFailed):
        ann.store.commit([])
    assert seqs(bob.read(QUEUE)) == [2]
    assert seqs(bob.read(TakeOrphans(0, 9))) == [1]
    ann.store.close()
    again = ann.again()
    assert again.read(StoreHeartbeat(LEASE_US)).alive == ("bob",)
    # Its end was the end of its own life alone.
    assert bob.read(StoreHeartbeat(LEASE_US)).alive == ("ann",)


def test_one_whose_own_time_was_over_judges_nobody(group, ann, bob):
    heartbeat_all(ann, bob)
    group.pass_us(LEASE_US + 1)
    assert seen(bob.read(StoreHeartbeat(LEASE_US))) == ((), ("ann",))
    assert bob.read(StoreHeartbeat(LEASE_US)).died == ("ann",)


def test_at_the_last_moment_it_is_still_alive(group, ann, bob):
    heartbeat_all(ann, bob)
    group.pass_us(LEASE_US)
    assert bob.read(StoreHeartbeat(LEASE_US)).died == ()
    heartbeat_all(ann)


def test_a_broker_that_stops_in_order_is_gone_at_once(ann, bob):
    ann.commit(put(1, status=RUNNING, node="n"), put(2, shelved=False))
    ann.store.close()
    assert seen(bob.read(StoreHeartbeat(LEASE_US))) == ((), ())
    assert seqs(bob.read(QUEUE)) == [2]
    assert seqs(bob.read(TakeOrphans(0, 9))) == [1]
    assert ann.again().opened.leased == ()


def test_a_lease_that_is_released_is_taken_by_the_broker_of_its_node(ann, bob):
    ann.commit(put(1, status=RUNNING, node="n"), put(2, status=ASSIGNED, node="n"), put(3, status=RUNNING, node="m"))
    ann.commit(ReleaseTask(2), ReleaseTask(3))
    (claimed,) = bob.read(ClaimTasks((), "n"))
    assert (claimed.task.seq, claimed.holder) == (2, "")
    assert seqs(ann.read(TakeOrphans(0, 9))) == [3]
    assert ann.read(TakeOrphans(0, 9)) == ()


@pytest.mark.parametrize("status", [QUEUED, SCHEDULED])
def test_only_a_lease_can_be_released(ann, status):
    ann.commit(put(1, status=status, shelved=False))
    with pytest.raises(StoreFailed):
        ann.commit(change(1, status=status), ReleaseTask(1))


def test_orphans_are_taken_oldest_first(group, ann, bob):
    ann.commit(*(put(seq, status=ASSIGNED) for seq in (1, 2, 3)))
    for seq in (2, 3, 1):
        group.pass_us(1_000)
        ann.commit(ReleaseTask(seq))
    assert seqs(bob.read(TakeOrphans(0, 2))) == [2, 3]
    assert seqs(bob.read(TakeOrphans(0, 2))) == [1]


def test_a_closed_store_answers_nothing(ann):
    ann.store.close()
    with pytest.raises(StoreRefused):
        ann.read(StoreHeartbeat(LEASE_US))


# ---- several at one go


def test_an_id_of_a_brokers_own_kind_may_be_reserved_and_is_then_used(ann, bob):
    """Two brokers may close the same stored request: its closing has an id that both can make."""
    id_ = "s0:titanic:0:closed"
    assert not ann.read(LookUpSubmission("@titanic", (id_,), None, None, id_)).busy
    assert bob.read(LookUpSubmission("@titanic", (id_,), None, None, id_)).busy
    ann.store.commit([put(ann.seq(1), id=id_, shelved=False), end(ann.seq(1))])
    (found,) = bob.read(FindTasks((id_,)))
    assert found is not None
    assert not bob.read(LookUpSubmission("@titanic", (id_,), None, None, id_)).busy


def test_tasks_that_are_claimed_one_by_one_in_a_turn_are_taken_at_one_go(ann, bob):
    """Each take is a commit of its own: a client that cancels a thousand tasks must not keep its broker from living."""
    bob.commit(*(put(number, id=f"t.{number}") for number in range(1, 6)), put(6, id="t.6", shelved=False))
    number = getattr(ann.store, "_asks", 0)
    asks = [ClaimTasks(("t.1",)), ClaimTasks(("t.2", "t.1", "t.9")), ClaimTasks(()), ClaimTasks(("t.6",))]
    one, two, none, theirs = ann.store.read_all(asks)
    assert [each.task.id for each in one] == ["t.1"]
    assert [each.task and each.task.id for each in two] == ["t.2", "t.1", None]
    assert none == ()
    assert [each.holder for each in (*one, *two, *theirs)] == ["", "", "", "", "bob"]
    assert getattr(ann.store, "_asks", 1) == number + 1
    ann.commit(end(1), end(2))


def test_what_several_nodes_left_is_taken_at_one_go_when_they_come_together(ann, bob):
    """When a broker dies, all its nodes come at once."""
    bob.commit(*(put(number, id=f"t.{number}") for number in range(1, 5)))
    bob.read(ClaimTasks(tuple(f"t.{number}" for number in range(1, 5))))
    bob.commit(*(lease(number, node="n" if number < 3 else "m") for number in range(1, 5)))
    bob.store.close()
    asks = [ClaimTasks(("t.2",), "n"), ClaimTasks((), "m"), ClaimTasks((), "n"), ClaimTasks(("t.4",))]
    number = getattr(ann.store, "_asks", 0)
    answers = [[each.task.id for each in answer] for answer in ann.store.read_all(asks)]
    assert sorted(id_ for answer in answers[:3] for id_ in answer if id_ != "t.4") == ["t.1", "t.2", "t.3"]
    assert answers[0] == ["t.2", "t.1"]
    assert "t.4" in answers[3]
    assert getattr(ann.store, "_asks", 1) == number + 1
    ann.commit(*(end(number) for number in range(1, 5)))


# ---- faults that a simulated network plays on the shared store in memory


def test_while_the_database_is_away_nothing_happens_and_all_can_be_repeated():
    ann = GroupMember(MemoryGroup(), "ann")
    ann.store.unreachable = True
    for call in (lambda: ann.store.commit([put(1, id="s0:1")]), lambda: ann.read(CountTasks())):
        with pytest.raises(StoreUnreachable):
            call()
    with pytest.raises(StoreRefused, match="cannot be reached"):
        ann.store.free_bytes()
    ann.store.unreachable = False
    ann.store.commit([put(1, id="s0:1")])
    assert ann.read(CountTasks()) == {1000: 1}


@pytest.mark.parametrize("away", [False, True])
def test_a_commit_whose_answer_is_lost_is_done_once(away):
    ann = GroupMember(MemoryGroup(), "ann")
    row = Journal("ann", 5, 1, 0).append([SourceAlive("ann")], Now(0.0, 9.0))
    writes = [put(1, id="s0:1"), row]
    ann.store.lose_answer(away)
    if away:
        with pytest.raises(StoreUnreachable):
            ann.store.commit(writes)
        ann.store.unreachable = False
    ann.store.commit(writes)
    ann.store.commit([put(2, id="s0:2")])
    assert ann.read(CountTasks()) == {1000: 2}


def test_one_that_died_while_an_answer_was_lost_is_fenced():
    group = MemoryGroup()
    ann, bob = GroupMember(group, "ann"), GroupMember(group, "bob")
    ann.store.lose_answer()
    with pytest.raises(StoreUnreachable):
        ann.store.commit([put(1, id="s0:1")])
    bob.read(StoreHeartbeat(2 * OPENING_LEASE_US))
    group.pass_us(OPENING_LEASE_US + 1)
    assert bob.read(StoreHeartbeat(1)).died == ("ann",)
    ann.store.unreachable = False
    with pytest.raises(StoreFenced):
        ann.store.commit([put(1, id="s0:1")])
    assert bob.read(FindTasks(("s0:1",)))[0].seq == 1


def test_a_world_can_know_how_long_a_successor_waits():
    group = MemoryGroup()
    assert group.database.lease_left_us("ann") == 0
    ann = GroupMember(group, "ann")
    ann.read(StoreHeartbeat(500))
    assert group.database.lease_left_us("ann") == 500
    ann.crash()
    group.pass_us(600)
    assert group.database.lease_left_us("ann") == 0
    ann = ann.again()
    ann.store.close()
    assert group.database.lease_left_us("ann") == 0


def test_there_are_so_many_slots_and_no_more():
    group = MemoryGroup()
    for number in range(MAX_SLOT + 1):
        GroupMember(group, f"b{number}")
    with pytest.raises(StoreRefused, match="brokers have used"):
        GroupMember(group, "one-more")
    assert GroupMember(group, "b5").opened.shared == SharedStoreInfo(5, 2)
