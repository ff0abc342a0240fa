"""Whole networks under faults: sixty seeds, every promise kept in each; `make sim` tries more."""

# Promise: SIM-1
from __future__ import annotations

import pytest

from scale0.tasks.jsonrpc.messages import KEY_CONFLICT
from simulator.main import replay, simulate
from simulator.plan import make_plan

pytestmark = pytest.mark.slow

SEEDS = 60
CHUNK = 10


@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
def test_every_promise_is_kept(first):
    broken, faults = [], 0
    for seed in range(first, first + CHUNK):
        outcome, world = simulate(seed)
        faults += sum(world.fault_counts.values())
        if outcome.broken:
            broken.append(f"seed {seed} broke {outcome.broken}: {outcome.story}\n    {replay(outcome, ())}")
    assert not broken, "\n".join(broken)
    assert faults


@pytest.mark.parametrize("seed", [10, 20])
def test_in_calm_every_call_is_answered_and_every_task_ends(seed):
    outcome, world = simulate(seed, minutes=4)
    assert outcome.broken == "", outcome.story
    assert world.plan.calm
    assert outcome.calls > 100
    assert outcome.answered == outcome.calls
    assert outcome.tasks > 50
    assert world.tasks is not None  # each of which is acknowledged and ends
    # A key that is used again with other params is refused.
    records = [each for each in world.tasks.records.by_nonce.values() if each.refused != KEY_CONFLICT]
    assert all(record.accepted is not None for record in records)
    assert all(record.notified is not None for record in records if record.watched)


def test_some_seeds_have_no_tasks_and_most_have():
    plans = [make_plan(seed, 6) for seed in range(1, 61)]
    assert 5 <= sum(plan.tasks is None for plan in plans) <= 15
    lost = {plan.tasks.announcements_lost for plan in plans if plan.tasks is not None}
    assert lost == {0.0, 0.3, 1.0}
