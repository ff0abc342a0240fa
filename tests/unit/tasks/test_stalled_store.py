"""A store that stalls: leases that it has not confirmed occupy no slot, and each takes its slot again when its task
leaves. A backend never gets more tasks than it has room for, however the stall ends."""

# Promise: TASK-10
# Promise: TASK-21
from __future__ import annotations

from tests.unit.tasks.harness import TaskBroker

STALL_SECONDS = 2.5
"""Long enough that slots of unconfirmed leases are given back."""


def answer(broker: TaskBroker, worker: str) -> None:
    """The worker answers its only request."""
    (request,) = broker.received(worker, "REQUEST")
    broker.send(worker, "REPLY", {"id": request.options["id"]}, "hello")


def stalled(broker: TaskBroker) -> tuple[str, str]:
    """Two workers of one slot: the store does not confirm that they got m1 and n1, which are in different commits; m2
    waits."""
    first, second = broker.worker("one", "m"), broker.worker("two", "n")
    broker.submit_many(["m0", "m1", "m2"], "m")
    broker.submit_many(["n0", "n1"], "n")
    assert (broker.handed(first), broker.handed(second)) == (["m0"], ["n0"])
    broker.hold()
    broker.done(first, "m0")
    broker.done(second, "n0")
    broker.run(STALL_SECONDS)
    assert [offering.name for offering in broker.machine.tasks.leases.withheld] == ["m", "n"]
    return first, second


def test_a_stall_that_ends_commit_by_commit_gives_each_task_its_slot_again(broker):
    """Found by seeds 9100222 and 9100383: the first worker got a second task for its only slot."""
    first, second = stalled(broker)
    broker.host.end_one()
    assert (broker.handed(first), broker.handed(second)) == (["m1"], [])
    broker.run(STALL_SECONDS)
    broker.let_go()
    broker.run(STALL_SECONDS)
    assert (broker.handed(first), broker.handed(second)) == ([], ["n1"])
    broker.done(first, "m1")
    assert broker.handed(first) == ["m2"]


def test_a_task_that_has_left_keeps_its_slot_from_requests_while_others_are_still_withheld(broker):
    first, _ = stalled(broker)
    broker.host.end_one()
    assert broker.handed(first) == ["m1"]
    broker.request("m")
    assert broker.received(first, "REQUEST") == []
    broker.let_go()
    broker.done(first, "m1")
    answer(broker, first)


def test_withheld_tasks_that_end_delay_nothing_after_the_stall(broker):
    first, second = stalled(broker)
    broker.send(first, "DISCONNECT")
    broker.workers.pop(first)
    leases = broker.machine.tasks.leases
    assert [offering.name for offering in leases.withheld] == ["n"]
    broker.let_go()
    assert not leases.withheld
    assert broker.handed(second) == ["n1"]
    assert broker.handed(broker.worker("three", "m")) == ["m1"]


def test_a_withheld_task_of_a_withdrawn_service_gets_the_next_free_slot(broker):
    worker = broker.worker("one", "m", "n", slots=2, service_slots=[1, 1])
    broker.submit_many(["n0", "n1"], "n")
    broker.submit_many(["m0", "m1"], "m")
    assert broker.handed(worker) == ["n0", "m0"]
    broker.hold()
    broker.done(worker, "n0")
    broker.run(STALL_SECONDS)
    broker.ready(worker, "m", slots=1)
    broker.done(worker, "m0")
    broker.request("m", timeout=20)
    broker.let_go()
    assert broker.handed(worker) == ["n1"]
    answer(broker, worker)
    assert broker.handed(worker) == [], "its only slot is that of n1"
    broker.done(worker, "n1")
    assert broker.handed(worker) == ["m1"]


def test_a_backend_that_reduced_its_slots_gets_nothing_in_advance_beyond_its_room(broker):
    worker = broker.worker("one", "m", slots=4, prefetch=2)
    broker.submit_many(f"t{number}" for number in range(30))
    held = broker.handed(worker)
    for _ in range(3):
        broker.pass_time(0.001)
        broker.done(worker, held.pop(0))
        held += broker.handed(worker)
    assert len(held) == 6
    broker.ready(worker, "m", slots=1, prefetch=2)
    while len(held) > 3:
        broker.pass_time(0.001)
        broker.done(worker, held.pop(0))
        assert broker.handed(worker) == []
    broker.pass_time(0.001)
    broker.done(worker, held.pop(0))
    assert len(broker.handed(worker)) == 1


def test_withheld_tasks_beyond_the_reduced_slots_of_their_service_use_the_slots_of_others(broker):
    worker = broker.worker("one", "m", "n", slots=4, service_slots=[3, 1])
    broker.submit_many(["m0", "m1", "m2", "m3", "m4", "m5"], "m")
    assert broker.handed(worker) == ["m0", "m1", "m2"]
    broker.submit_many(["n0", "n1", "n2"], "n")
    assert broker.handed(worker) == ["n0"]
    broker.hold()
    broker.done(worker, "m0", "m1", "m2", "n0")
    broker.run(STALL_SECONDS)
    broker.ready(worker, "m", "n", slots=2, service_slots=[1, 1])
    broker.let_go()
    assert sorted(broker.handed(worker)) == ["m3", "m4", "m5", "n1"]
    broker.done(worker, "n1")
    assert broker.handed(worker) == [], "it has three tasks and two slots"
    broker.done(worker, "m3", "m4")
    assert broker.handed(worker) == ["n2"]


def test_a_task_that_leaves_late_takes_no_slot_beyond_its_service_while_another_is_withheld(broker):
    """Found by seed 910011: a request had the only slot of m, and m1 took a second one."""
    worker = broker.worker("one", "m", "n", slots=2, service_slots=[1, 2])
    broker.submit_many(["m0", "m1"], "m")
    broker.submit_many(["n0", "n1"], "n")
    assert sorted(broker.handed(worker)) == ["m0", "n0"]
    broker.hold()
    broker.done(worker, "m0")
    broker.done(worker, "n0")
    broker.run(STALL_SECONDS)
    broker.request("m", timeout=20)
    (offering,) = [one for one in broker.machine.tasks.leases.withheld if one.name == "m"]
    broker.host.end_one()
    assert broker.handed(worker) == ["m1"]
    assert offering.busy == offering.slots == 1
    broker.let_go()
    assert broker.handed(worker) == ["n1"]
    answer(broker, worker)
    assert offering.busy == offering.slotted == 1
