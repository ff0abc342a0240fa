"""Quotas of tasks: by count, by bytes and by delayed tasks, for each account and for all together."""

from __future__ import annotations

from typing import Any

import pytest

from scale0.broker.core.keys import Key, Keys, KeyTable
from scale0.storage.task_rows import KEPT_ROW_BYTES, TaskUsage, kept_bytes
from simulator.invariants.task_memory import usage_of
from tests.unit.tasks.harness import CLIENT, Refused, TaskBroker

QUEUE_FULL = -32070
OTHER = "other"


def stored(broker: TaskBroker) -> dict[str, tuple[int, int, int]]:
    """The usage that is stored; it must be the one of the rows."""
    tasks = broker.store.snapshot().tasks
    assert tasks.usage == usage_of(tasks)
    return {name: (each.tasks, each.bytes, each.delayed) for name, each in tasks.usage.items() if each.tasks}


def submit(broker: TaskBroker, id_: str, params: Any = (), client: str = CLIENT, **options: Any) -> Any:
    return broker.call("client_new_task", client, "m", list(params), id_, options or None)


def refused(answer: Any, limit: str, value: int) -> bool:
    return (
        isinstance(answer, Refused)
        and answer.code == QUEUE_FULL
        and f"({limit})" in answer.message
        and str(value) in answer.message
        and f"raise {limit}" in answer.message
    )


# Promise: QUOTA-1
def test_a_client_has_half_of_the_queue_unless_the_file_says_otherwise():
    broker = TaskBroker(task_queue_limit=6)
    broker.call("client_connect", OTHER)
    assert [submit(broker, f"t{n}") for n in range(3)] == ["t0", "t1", "t2"]
    assert refused(submit(broker, "t3"), "max_key_tasks", 3)
    assert [submit(broker, f"o{n}", client=OTHER) for n in range(3)] == ["o0", "o1", "o2"]
    broker.call("client_connect", "third")
    assert refused(submit(broker, "x", client="third"), "task_queue_limit", 6)
    broker.cancel("t0")
    assert submit(broker, "t3") == "t3"


# Promise: QUOTA-1
def test_params_are_counted_in_bytes():
    broker = TaskBroker(task_queue_bytes=100, max_key_task_bytes=40)
    assert submit(broker, "t1", ["x" * 20]) == "t1"
    assert refused(submit(broker, "t2", ["x" * 20]), "max_key_task_bytes", 40)
    assert submit(broker, "t3", ["x" * 8]) == "t3"
    broker.cancel("t1")
    assert submit(broker, "t2", ["x" * 20]) == "t2"


# Promise: QUOTA-1
def test_delayed_tasks_have_a_limit_of_their_own():
    broker = TaskBroker(delayed_task_limit=4)
    assert [submit(broker, f"t{n}", delay=5) for n in range(2)] == ["t0", "t1"]
    assert refused(submit(broker, "t2", delay=5), "max_key_delayed", 2)
    assert submit(broker, "now") == "now"
    broker.run(7.0)
    assert submit(broker, "t2", delay=5) == "t2"


# Promise: QUOTA-1
def test_a_retry_counts_like_a_submission():
    broker = TaskBroker(max_key_tasks=2)
    for id_ in ("a", "b", "c"):
        assert submit(broker, id_) == id_
        broker.cancel(id_)
    assert [broker.manage("retry_task", task_id=id_).code for id_ in ("a", "b")] == [200, 200]
    told = broker.manage("retry_task", task_id="c")
    assert told.code == 429
    for part in ("the task c", "may have 2", "(max_key_tasks)", "raise max_key_tasks"):
        assert part in told.options["message"]
    assert broker.status("c") == "cancelled"
    assert stored(broker)[CLIENT][0] == 2
    broker.cancel("a")
    assert broker.manage("retry_task", task_id="c").code == 200


# Promise: QUOTA-1
def test_a_repeated_key_is_answered_though_the_quota_is_used_up():
    broker = TaskBroker(max_key_tasks=1)
    assert submit(broker, "t1", key="k") == "t1"
    assert submit(broker, "t2", key="k") == "t1"


# Promise: QUOTA-2
@pytest.mark.parametrize("restart", [False, True])
def test_usage_is_exact_over_every_end(restart):
    broker = TaskBroker()
    broker.call("client_connect", OTHER)
    for number in range(4):
        submit(broker, f"a{number}", ["x" * number])
    submit(broker, "late", ["late"], client=OTHER, delay=3)
    submit(broker, "far", ["far"], client=OTHER, delay=1000)
    submit(broker, "after", [], client=OTHER, after=["late"])
    assert stored(broker) == {CLIENT: (4, 22, 0), OTHER: (3, 17, 3)}
    if restart:
        broker.restart()
        broker.call("client_connect", CLIENT)
        broker.call("client_connect", OTHER)
    broker.cancel("a0")
    worker = broker.worker("w", "m", slots=2)
    broker.fail(worker, "a1", final=True)
    broker.run(4.0)
    stored(broker)
    for _ in range(8):
        for id_ in broker.open - {"far"}:
            broker.done(worker, id_)
        broker.run(1.0)
    assert stored(broker) == {OTHER: (1, 7, 1)}
    broker.call("client_task_cancel", OTHER, "far")
    assert stored(broker) == {}
    assert broker.machine.tasks.queue.open == 0


def kept(broker: TaskBroker, account: str = CLIENT) -> int:
    """The stored bytes of ended tasks; in a store of its own the broker knows them too."""
    stored(broker)
    usage: TaskUsage = broker.store.snapshot().tasks.usage.get(account, TaskUsage(account, 0, 0, 0))
    quotas = broker.machine.tasks.queue.quotas
    assert quotas.of(account).kept == usage.kept
    assert quotas.total.kept == sum(each.kept for each in broker.store.snapshot().tasks.usage.values())
    return usage.kept


# Promise: QUOTA-12
@pytest.mark.parametrize("restart", [False, True])
def test_what_ended_tasks_keep_is_limited_until_they_expire(restart):
    broker = TaskBroker(max_key_kept_bytes=40_000)
    broker.call("client_connect", OTHER)
    worker = broker.worker("w", "m", slots=5)
    for id_ in ("a", "b", "c"):
        assert submit(broker, id_, result_ttl=20) == id_
    broker.done(worker, "a", "b", result="x" * 30_000)
    assert [code for _, _, code in broker.acknowledged(worker)] == [200, 200], "accepted tasks end"
    if restart:
        broker.restart()
        broker.call("client_connect", CLIENT)
        worker = broker.worker("w", "m", slots=5, holds=[("c", 1)])
    told = submit(broker, "d")
    assert refused(told, "max_key_kept_bytes", 40_000)
    assert "result_ttl" in told.message
    assert submit(broker, "o", client=OTHER) == "o"
    broker.done(worker, "c", result=1)
    assert broker.result("c") == 1
    assert len(broker.result("a")) == 30_000
    assert refused(submit(broker, "d"), "max_key_kept_bytes", 40_000), "a result that was fetched still counts"
    broker.run(100.0)
    assert kept(broker) == 0
    assert submit(broker, "d") == "d"


# Promise: QUOTA-12
def test_ended_tasks_of_all_clients_are_limited_together():
    broker = TaskBroker(kept_bytes=3 * KEPT_ROW_BYTES, max_key_kept_bytes=2**40)
    broker.call("client_connect", OTHER)
    for id_ in ("a", "b", "c"):
        assert submit(broker, id_, client=OTHER) == id_
        assert broker.call("client_task_cancel", OTHER, id_) is True
    assert refused(submit(broker, "d"), "kept_bytes", 3 * KEPT_ROW_BYTES)


# Promise: QUOTA-12
@pytest.mark.own_store
def test_what_ended_tasks_keep_is_exact_over_ends_retries_and_deletions():
    broker = TaskBroker()
    worker = broker.worker("w", "m", slots=5)
    for id_, ttl in (("a", 1), ("b", 1_000), ("c", 1_000)):
        submit(broker, id_, ["p" * 50], result_ttl=ttl)
    broker.done(worker, "a", result="r" * 100)
    broker.fail(worker, "b", final=True)
    broker.cancel("c")
    ended = broker.store.snapshot().tasks.ended.values()
    assert kept(broker) == sum(map(kept_bytes, ended)) > 3 * KEPT_ROW_BYTES + 150
    assert broker.manage("retry_task", task_id="c").code == 200
    two = kept(broker)
    broker.run(90.0)
    assert 0 < kept(broker) < two
    broker.restart()
    assert 0 < kept(broker) < two


# Promise: QUOTA-2
def test_a_restarted_broker_refuses_what_its_predecessor_would_have_refused():
    broker = TaskBroker(max_key_tasks=2)
    submit(broker, "t1")
    submit(broker, "t2", delay=100)
    broker.restart()
    broker.call("client_connect", CLIENT)
    broker.run(2.0)
    assert refused(submit(broker, "t3"), "max_key_tasks", 2)
    assert broker.machine.tasks.queue.quotas.of(CLIENT).delayed == 1
    broker.cancel("t2")
    assert submit(broker, "t3") == "t3"


# Promise: QUOTA-2
def test_nothing_is_counted_per_task_at_a_start():
    broker = TaskBroker()
    broker.machine.tasks.queue.quotas.start((TaskUsage("a", 7, 70, 1), TaskUsage("b", 1, 2, 0)))
    assert broker.machine.tasks.queue.open == 8


STORED = KeyTable(Key(name.ljust(40, "."), "frontend", name) for name in ("c", "other"))


def user_of(socket: str, routing_id: bytes) -> str:
    return f"{socket}/{routing_id.decode().split('-')[1]}"


# Promise: QUOTA-1
# Promise: QUOTA-2
def test_all_connections_and_client_ids_of_a_key_are_one_account():
    broker = TaskBroker(keys=Keys(user_of, STORED), max_key_tasks=2)
    second, foreign = "frontend-c-2", "frontend-other-1"
    broker.call("client_connect", "c.2", connection=second)
    broker.call("client_connect", "x", connection=foreign)
    assert submit(broker, "t1", ["1"]) == "t1"
    assert broker.call("client_new_task", "c.2", "m", [], "t2", None, connection=second) == "t2"
    assert refused(submit(broker, "t3"), "max_key_tasks", 2)
    assert broker.call("client_new_task", "x", "m", [], "t4", None, connection=foreign) == "t4"
    assert stored(broker) == {"c".ljust(40, "."): (2, 7, 0), "other".ljust(40, "."): (1, 2, 0)}
    broker.restart()
    broker.call("client_connect", CLIENT)
    assert refused(submit(broker, "t3"), "max_key_tasks", 2)
    broker.cancel("t1")
    assert submit(broker, "t3") == "t3"
