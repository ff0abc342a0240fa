"""Whole networks under faults: two hundred seeds of ten virtual minutes, every promise kept in each."""

# Promise: SIM-1
from __future__ import annotations

import pytest

from scale0.testing.sim import replay, simulate

SEEDS = 200
CHUNK = 10


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
def test_every_promise_is_kept(first):
    broken = []
    for seed in range(first, first + CHUNK):
        outcome, _ = simulate(seed)
        if outcome.broken:
            broken.append(f"seed {seed} broke {outcome.broken}: {outcome.story}\n    {replay(outcome, ())}")
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("seed", [10, 20])
def test_in_calm_every_call_is_answered(seed):
    outcome, world = simulate(seed, minutes=4)
    assert outcome.broken == "", outcome.story
    assert world.plan.calm
    assert outcome.calls > 100
    assert outcome.answered == outcome.calls


def test_a_few_seeds_under_faults_keep_every_promise():
    for seed in (1, 2, 3):
        outcome, world = simulate(seed, minutes=4)
        assert outcome.broken == "", f"seed {seed}: {outcome.broken}: {outcome.story}"
        assert not world.plan.calm
        assert sum(world.fault_counts.values())
