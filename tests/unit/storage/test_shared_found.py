"""What a review of the shared store found, told as small stories.

Promise: STORE-6
"""

from __future__ import annotations

from scale0.storage.task_queries import ClaimTasks, FindTasks, LookUpSubmission
from scale0.storage.task_rows import FINISHED, QUEUED
from tests.unit.storage.group import Seat
from tests.unit.storage.task_model import end, lease, put


def test_an_id_of_a_brokers_own_kind_may_be_reserved_and_is_then_used(group):
    """Two brokers may close the same stored request: its closing has an id that both can make."""
    ann, bob = Seat(group, "ann"), Seat(group, "bob")
    id_ = "s0:titanic:0:closed"
    assert not ann.read(LookUpSubmission("@titanic", (id_,), None, None, id_)).busy
    assert bob.read(LookUpSubmission("@titanic", (id_,), None, None, id_)).busy
    ann.store.commit([put(ann.seq(1), id=id_, status=QUEUED, shelved=False), end(ann.seq(1), status=FINISHED)])
    (found,) = bob.read(FindTasks((id_,)))
    assert found is not None
    assert not bob.read(LookUpSubmission("@titanic", (id_,), None, None, id_)).busy


def test_tasks_that_are_claimed_one_by_one_in_a_turn_are_taken_at_one_go(group):
    """Each take is a commit of its own: a client that cancels a thousand tasks must not keep its broker from living."""
    ann, bob = Seat(group, "ann"), Seat(group, "bob")
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


def test_what_several_nodes_left_is_taken_at_one_go_when_they_come_together(group):
    """When a broker dies, all its nodes come at once."""
    ann, bob = Seat(group, "ann"), Seat(group, "bob")
    bob.commit(*(put(number, id=f"t.{number}") for number in range(1, 5)))
    bob.read(ClaimTasks(tuple(f"t.{number}" for number in range(1, 5))))
    bob.commit(*(lease(number, node="n" if number < 3 else "m") for number in range(1, 5)))
    bob.store.close()
    asks = [ClaimTasks(("t.2",), "n"), ClaimTasks((), "m"), ClaimTasks((), "n"), ClaimTasks(("t.4",))]
    number = getattr(ann.store, "_asks", 0)
    told = ann.store.read_all(asks)
    assert sorted(each.task.id for answer in told[:3] for each in answer if each.task.id != "t.4") == [
        "t.1",
        "t.2",
        "t.3",
    ]
    assert [each.task.id for each in told[0]] == ["t.2", "t.1"]
    assert "t.4" in [each.task.id for each in told[3]]
    assert getattr(ann.store, "_asks", 1) == number + 1
    ann.commit(*(end(number) for number in range(1, 5)))
