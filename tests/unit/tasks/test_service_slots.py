"""A backend with several services: each has slots and prefetch of its own, for requests and for tasks."""

# Promise: REQ-4
# Promise: TASK-10
from __future__ import annotations

from typing import Any

import pytest

from tests.unit.tasks.harness import TaskBroker

SLOW, OTHER = "one.slow", "one.other"
TOTAL = 21


def worker(broker: TaskBroker, slow: int = 1, other: int = 20, slots: int = 0, **options: Any) -> str:
    """A backend of both services with `slow` and `other` slots; in all it has the sum, or `slots`."""
    return broker.worker("one", OTHER, SLOW, slots=slots or slow + other, service_slots=[other, slow], **options)


def rows(broker: TaskBroker, what: str) -> dict[str, tuple[int, int]]:
    """The slots and the busy slots of each service."""
    items = broker.manage(f"list_{what}").body["items"]
    return {row["service"]: (row["slots"], row["busy"]) for row in items}


def test_a_backend_gets_no_more_tasks_of_a_service_than_its_slots(broker):
    first, second = worker(broker), broker.worker("two", SLOW, slots=4)
    broker.submit_many((f"t{number}" for number in range(20)), SLOW)
    assert (len(broker.handed(first)), len(broker.handed(second))) == (1, 4)


def test_a_service_whose_slots_are_taken_delays_no_other(broker):
    only = worker(broker)
    broker.submit_many((f"slow{number}" for number in range(30)), SLOW)
    broker.submit_many((f"other{number}" for number in range(25)), OTHER)
    handed = broker.handed(only)
    assert [id_ for id_ in handed if id_.startswith("slow")] == ["slow0"]
    assert len(handed) == TOTAL
    broker.done(only, "other3")
    assert broker.handed(only) == ["other20"]
    broker.done(only, "slow0")
    assert broker.handed(only) == ["slow1"]


def test_requests_and_tasks_share_the_slots_of_their_service(broker):
    only = worker(broker, slow=2)
    broker.submit("task", SLOW)
    for number in range(3):
        broker.request(SLOW, f"slow{number}")
        broker.request(OTHER, f"other{number}")
    services = [one.options["service"] for one in broker.received(only, "REQUEST")]
    assert (services.count(SLOW), services.count(OTHER)) == (1, 3)
    broker.done(only, "task")
    assert [one.options["service"] for one in broker.received(only, "REQUEST")] == [SLOW]


def test_the_total_is_a_limit_as_well(broker):
    only = worker(broker, slow=3, other=3, slots=4)
    broker.submit_many((f"slow{number}" for number in range(9)), SLOW)
    broker.submit_many((f"other{number}" for number in range(9)), OTHER)
    assert len(broker.handed(only)) == 4
    broker.done(only, "slow0")
    assert len(broker.handed(only)) == 1


def test_without_a_number_for_each_service_the_total_counts_for_all(broker):
    only = broker.worker("old", OTHER, SLOW, slots=5)
    broker.submit_many((f"t{number}" for number in range(9)), SLOW)
    assert len(broker.handed(only)) == 5
    assert rows(broker, "services") == {SLOW: (5, 5), OTHER: (5, 0)}


@pytest.mark.parametrize("what", ["services", "queues"])
def test_views_show_the_slots_of_each_service(broker, what):
    worker(broker)
    broker.submit("task", SLOW)
    broker.request(OTHER, "r1")
    broker.request(OTHER, "r2")
    assert rows(broker, what) == {SLOW: (1, 1), OTHER: (20, 2)}


def test_prefetch_follows_the_pace_of_each_service(broker):
    """A quick service gets tasks in advance; the slow one beside it gets none, and keeps none from another worker."""
    only = worker(broker, slow=1, other=1, prefetch=10)
    broker.submit_many((f"slow{number}" for number in range(9)), SLOW)
    broker.submit_many((f"other{number}" for number in range(20)), OTHER)
    for number in range(3):
        broker.pass_time(0.001)
        broker.done(only, f"other{number}")
    handed = broker.handed(only)
    assert [id_ for id_ in handed if id_.startswith("slow")] == ["slow0"]
    assert len(handed) > 5


def test_a_change_of_the_slots_of_one_service_is_applied_at_once(broker):
    only = worker(broker)
    broker.submit_many((f"t{number}" for number in range(9)), SLOW)
    assert len(broker.handed(only)) == 1
    broker.ready(only, OTHER, SLOW, slots=TOTAL, service_slots=[17, 4])
    assert len(broker.handed(only)) == 3
    broker.ready(only, OTHER, SLOW, slots=TOTAL, service_slots=[20, 1])
    for number in range(3):
        broker.done(only, f"t{number}")
    assert broker.handed(only) == []
    broker.done(only, "t3")
    assert broker.handed(only) == ["t4"]


@pytest.mark.parametrize("numbers", [[1], [1, 2, 3], [0, 1], [1, 10_001], [-1, 2]])
def test_numbers_that_do_not_fit_the_services_are_refused(broker, numbers):
    broker.send("backend-x", "CHECKCONFIG", {"identity": "x"})
    options = {"services": [OTHER, SLOW], "config_version": broker.version, "slots": 5, "service_slots": numbers}
    broker.send("backend-x", "READY", options)
    (refusal,) = broker.received("backend-x", "DISCONNECTERROR")
    assert refusal.options["code"] == 400
    assert "service_slots" in refusal.options["message"]


def test_leases_of_a_backend_that_comes_back_take_the_slots_of_their_service(broker):
    first = worker(broker)
    broker.submit("mine", SLOW)
    assert broker.handed(first) == ["mine"]
    broker.restart()
    again = worker(broker, holds=[["mine", 1]])
    broker.submit_many(["next", "after"], SLOW)
    broker.submit("other", OTHER)
    assert broker.handed(again) == ["other"]
    broker.done(again, "mine")
    assert broker.handed(again) == ["next"]


def test_prefetched_tasks_of_a_withdrawn_service_occupy_no_more_slots_than_it_had(broker):
    """Found by seed 9100455: they took all slots, and kept them when the service was offered again."""
    only = worker(broker, slow=1, other=1, prefetch=2)
    broker.submit_many((f"slow{number}" for number in range(9)), SLOW)
    for number in range(3):
        broker.pass_time(0.001)
        broker.done(only, f"slow{number}")
    assert len(broker.handed(only)) == 6, "the last three are one in a slot and two in advance"
    broker.ready(only, OTHER, slots=4, service_slots=[3], prefetch=2)
    for number in range(4):
        broker.request(OTHER, f"r{number}")
    assert len(broker.received(only, "REQUEST")) == 3
    broker.done(only, "slow3")
    broker.ready(only, OTHER, SLOW, slots=2, service_slots=[1, 1], prefetch=2)
    (backend,) = broker.machine.scheduler.backends
    assert backend.offerings[SLOW].busy == 1
