"""Ids that a broker makes for tasks whose clients give none."""

from __future__ import annotations

import random

from scale0.kernel.names import is_identity
from tests.unit.tasks.harness import TaskBroker


# Promise: STORE-12
def test_a_store_of_an_earlier_time_gives_no_id_to_another_task() -> None:
    rng = random.Random(1)
    lost = TaskBroker(rng=rng)
    before = [lost.submit(None) for _ in range(3)]
    restored = TaskBroker(rng=rng)  # as of before these tasks
    after = [restored.submit(None) for _ in range(3)]
    assert not {*before} & {*after}


def test_the_ids_of_all_starts_are_different_identities(broker: TaskBroker) -> None:
    ids = [broker.submit(None) for _ in range(3)]
    broker.restart()
    ids += [broker.submit(None) for _ in range(3)]
    assert len({*ids}) == len(ids)
    assert all(is_identity(id_) and id_.startswith("s0:") and len(id_) <= 24 for id_ in ids)
    assert broker.status(ids[0]) == "queued"
