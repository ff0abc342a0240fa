"""What a review of the shared store found, told as small stories.

Promise: STORE-6
"""

from __future__ import annotations

from scale0.store.tasks import FINISHED, QUEUED, FindNew, FindTasks
from tests.store.group import Seat
from tests.store.task_model import end, put


def test_an_id_of_a_brokers_own_kind_may_be_reserved_and_is_then_used(group):
    """Two brokers may close the same stored request: its closing has an id that both can make."""
    ann, bob = Seat(group, "ann"), Seat(group, "bob")
    id_ = "s0:titanic:0:closed"
    assert not ann.read(FindNew("@titanic", (id_,), None, None, id_)).busy
    assert bob.read(FindNew("@titanic", (id_,), None, None, id_)).busy
    ann.store.commit([put(ann.seq(1), id=id_, status=QUEUED, shelved=False), end(ann.seq(1), status=FINISHED)])
    (found,) = bob.read(FindTasks((id_,)))
    assert found is not None
    assert not bob.read(FindNew("@titanic", (id_,), None, None, id_)).busy
