"""The shared store in memory: the faults that a simulated world plays on it."""

from __future__ import annotations

import pytest

from scale0.history.events.journal import Journal
from scale0.history.events.sources import SourceAlive
from scale0.kernel.clock import Now
from scale0.storage.interface import MAX_SLOT, SharedStoreInfo, StoreFenced, StoreRefused
from scale0.storage.task_queries import CountTasks, FindTasks, StoreHeartbeat
from simulator.fake_postgres.store import OPENING_LEASE_US, StoreUnreachable
from tests.unit.storage.group import MemoryGroup, Seat
from tests.unit.storage.task_model import put


def test_while_the_database_is_away_nothing_happens_and_all_can_be_said_again():
    ann = Seat(MemoryGroup(), "ann")
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
    ann = Seat(MemoryGroup(), "ann")
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


def test_one_that_died_while_an_answer_was_lost_is_told_so():
    group = MemoryGroup()
    ann, bob = Seat(group, "ann"), Seat(group, "bob")
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
    ann = Seat(group, "ann")
    ann.read(StoreHeartbeat(500))
    assert group.database.lease_left_us("ann") == 500
    ann.die()
    group.pass_us(600)
    assert group.database.lease_left_us("ann") == 0
    ann = ann.again()
    ann.store.close()
    assert group.database.lease_left_us("ann") == 0


def test_there_are_so_many_slots_and_no_more():
    group = MemoryGroup()
    for number in range(MAX_SLOT + 1):
        Seat(group, f"b{number}")
    with pytest.raises(StoreRefused, match="brokers have used"):
        Seat(group, "one-more")
    assert Seat(group, "b5").opened.shared == SharedStoreInfo(5, 2)
