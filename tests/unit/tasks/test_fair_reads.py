"""Reads of the store for clients take turns: what one client looks up does not delay another by more than one read."""

# Promise: FAIR-11
from __future__ import annotations

from typing import Any

import pytest

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.storage.task_queries import FindTasks
from scale0.tasks.core import fair_reads, native_protocol
from scale0.tasks.core.fair_reads import MAX_ROWS, MAX_WAITING_ROWS, PIECE_IDS, FairReads
from scale0.tasks.core.stored_backlog import StoredBacklog
from scale0.tasks.jsonrpc.endpoint import RECORD_BYTES
from scale0.tasks.jsonrpc.messages import NOT_STORED, RATE_LIMITED, RpcError
from tests.fakes.messages import RPC
from tests.unit.tasks.harness import CLIENT, FRONT, TaskBroker

NOW = Now(1.0, 1.0)


class Store:
    """What is asked, and answered one by one."""

    def __init__(self) -> None:
        self.effects = Effects()
        self.reads = FairReads(StoredBacklog())
        self.answered: list[Any] = []

    def ask(self, sender: str, name: str, rows: int) -> None:
        self.reads.ask(sender, name, rows, lambda found, *_: self.answered.append(found), self.effects)

    @property
    def asked(self) -> list[str]:
        return [query.ask for query in self.effects.asks]

    def answer(self) -> None:
        query = self.effects.asks.pop(0)
        query.then(query.ask, NOW, self.effects)


def test_senders_take_turns_and_each_stays_in_order() -> None:
    store = Store()
    for number in range(3):
        store.ask("flood", f"f{number}", MAX_ROWS)
    store.ask("honest", "h0", 2)
    store.ask("honest", "h1", 2)
    assert store.asked == ["f0"]
    order = []
    while store.effects.asks:
        order += store.asked
        for _ in store.asked:
            store.answer()
    assert order == ["f0", "f1", "h0", "f2", "h1"], "f0 was under way, and f1 waited first"
    assert store.answered == order


def test_small_reads_are_under_way_together_and_large_ones_alone() -> None:
    store = Store()
    for number in range(MAX_ROWS + 1):
        store.ask(f"c{number}", str(number), 1)
    assert len(store.asked) == MAX_ROWS
    store.ask("large", "large", 10 * MAX_ROWS)
    while "large" not in store.asked:
        store.answer()
    assert store.asked == ["large"]


def test_what_one_sender_has_waiting_is_bounded_and_forgotten_when_it_is_read() -> None:
    store = Store()
    store.ask("flood", "f", MAX_WAITING_ROWS)
    with pytest.raises(RpcError, match="repeat the call") as refused:
        store.reads.check("flood", 1)
    assert refused.value.code == RATE_LIMITED
    store.reads.check("honest", 1)
    store.answer()
    store.reads.check("flood", MAX_WAITING_ROWS)
    assert (store.reads._waiting, store.reads._queues) == ({}, {})


def test_rows_that_wait_count_for_their_sender() -> None:
    store = Store()
    store.ask("flood", "f0", 10)
    store.ask("flood", "f1", 7)
    assert store.effects.rows == 17


@pytest.mark.own_store
def test_a_long_wait_is_looked_up_in_pieces_and_answered_as_one(broker: TaskBroker) -> None:
    ids = [f"t{number}" for number in range(PIECE_IDS + 20)]
    broker.submit_many(ids)
    worker = broker.worker("w", "m", slots=2_000)
    broker.run(0.5)
    assert sorted(broker.handed(worker)) == sorted(ids)
    broker.done(worker, *ids[:2], ids[-1], result=1)
    broker.restart()
    assert broker.call("client_connect", CLIENT) == CLIENT
    ends = broker.call("client_task_wait", CLIENT, ids, 0)
    assert [end["task_id"] for end in ends] == [*ids[:2], ids[-1]]
    assert broker.call("client_task_wait", CLIENT, [*ids, "unknown"], 0).code == -32020


def test_what_waits_for_the_store_beyond_the_limit_is_refused_before_anything_is_reserved(
    broker: TaskBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.submit("first")
    monkeypatch.setattr(fair_reads, "MAX_WAITING_ROWS", 3)
    broker.hold()
    waits = [broker.ask("frontend-c", "client_new_task", CLIENT, "m", [], f"k{n}", {"key": f"k{n}"}) for n in range(3)]
    broker.let_go()
    assert broker.answer(waits[2]).code == RATE_LIMITED
    assert [broker.answer(wait) for wait in waits[:2]] == ["k0", "k1"]
    assert broker.submit("k2", key="k2") == "k2"


def asked_ids(broker: TaskBroker) -> int:
    """How many ids the store is asked for by the commit in flight."""
    assert broker.host.in_flight is not None
    return sum(len(one.ask.ids) for one in broker.host.in_flight.asks if isinstance(one.ask, FindTasks))


# Promise: FAIR-11
def test_results_that_nobody_knows_are_looked_up_in_turn_with_the_calls_of_others(broker: TaskBroker) -> None:
    unknown = [f"x{number}" for number in range(5 * MAX_ROWS)]
    worker = broker.worker("w", "m")
    broker.hold()
    broker.beat()  # begins a commit, so that what follows is asked together
    broker.done(worker, *unknown)
    number = broker.ask(FRONT, "client_new_task", CLIENT, "m", [], "k", {"key": "k"})
    most = 0
    while broker.host.in_flight is not None:
        most = max(most, asked_ids(broker))
        broker.host.end_one()
    commands = [message.command for who, message in broker.sent if who in (worker, FRONT)]
    assert commands.index(RPC) < len(commands) - 1 - commands[::-1].index("TASKSOK"), "the call was answered before"
    assert broker.answer(number) == "k"
    assert 0 < most <= MAX_ROWS
    assert [id_ for id_, _, _ in broker.acknowledged(worker)] == unknown


# Promise: FAIR-11
def test_results_by_json_rpc_are_looked_up_in_turn(broker: TaskBroker) -> None:
    node = broker.node("n", "m")
    broker.hold()
    waits = [broker.ask(node, "node_task_finished", "n", f"x{number}", 1, 1) for number in range(MAX_ROWS + 50)]
    most = 0
    while broker.host.in_flight is not None:
        most = max(most, asked_ids(broker))
        broker.host.end_one()
    assert 0 < most <= MAX_ROWS
    assert {broker.answer(number).code for number in waits} == {-32020}


# Promise: FAIR-11
@pytest.mark.own_store
def test_results_beyond_what_may_wait_are_asked_for_again_and_stored_once(
    broker: TaskBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose leases were resumed by nobody comes back with all its results."""
    ids = [f"t{number}" for number in range(120)]
    broker.submit_many(ids)
    worker = broker.worker("w", "m", slots=200)
    broker.run(0.5)
    assert sorted(broker.handed(worker)) == sorted(ids)
    broker.done(worker, *ids, result=1)
    assert len(broker.acknowledged(worker)) == len(ids)
    broker.restart()
    monkeypatch.setattr(fair_reads, "MAX_WAITING_ROWS", 100)
    monkeypatch.setattr(native_protocol, "MAX_WAITING_ROWS", 100)
    worker = broker.worker("w", "m", slots=200)
    broker.hold()
    left = dict.fromkeys(ids)
    broker.done(worker, *ids[:60], result=1)
    broker.done(worker, *ids[60:], result=1)
    broker.let_go()
    rounds = 0
    while left:
        rounds += 1
        assert rounds < 5
        for id_, attempt, code in broker.acknowledged(worker):
            assert (attempt, code) == (1, 200)
            del left[id_]
        if left:
            broker.run(2.0)
            assert broker.received(worker, "FORCENEGOTIATE")
            broker.ready(worker, "m", slots=200, holds=[])
            broker.done(worker, *left, result=1)
    assert rounds == 2
    assert not [event for event in broker.events if event.kind in ("task.finished", "task.refused")]
    reads = broker.machine.tasks.native._reads
    assert (reads._waiting, reads._queues) == ({}, {})


# Promise: FAIR-11
def test_results_by_json_rpc_beyond_what_may_wait_are_refused_until_others_are_looked_up(
    broker: TaskBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = broker.node("n", "m")
    monkeypatch.setattr(fair_reads, "MAX_WAITING_ROWS", 3 * (1 + RECORD_BYTES // fair_reads.ROW_BYTES))
    broker.hold()
    waits = [broker.ask(node, "node_task_finished", "n", f"x{number}", 1, 1) for number in range(4)]
    broker.let_go()
    assert [broker.answer(number).code for number in waits] == [-32020] * 3 + [NOT_STORED]


def test_what_a_message_keeps_in_memory_counts_as_rows_that_wait() -> None:
    store = Store()
    store.reads.find("flood", ["x"], lambda *_: None, store.effects, fair_reads.ROW_BYTES * MAX_WAITING_ROWS)
    assert not store.reads.has_room("flood", 1)
    assert store.reads.has_room("honest", 1)
    query = store.effects.asks.pop(0)
    query.then((None,), NOW, store.effects)
    assert store.reads._waiting == {}
