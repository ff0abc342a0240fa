"""A report counts once: numbers as ranges, and the spools that they belong to."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.monitoring.helen.core.deduplication import (
    FORGET_SECONDS,
    MAX_FOREIGN_BYTES,
    MAX_RANGES,
    MAX_SPOOLS,
    SeenReports,
    Spools,
    is_spool,
)
from scale0.storage.check_rows import DropSpool, PutSpool, SpoolRow

NOW = Now(1_000.0, 1_900_000_000.0)


def has(seen: SeenReports, number: int) -> bool:
    """Without changing it."""
    return not SeenReports.decode(seen.encode()).add(number)


# Promise: AGENT-6
@given(st.lists(st.integers(1, 60), max_size=200))
def test_a_number_is_fresh_exactly_once(numbers: list[int]):
    seen, model = SeenReports(), set()
    for number in numbers:
        assert seen.add(number) == (number not in model)
        model.add(number)
    assert {number for number in range(62) if has(seen, number)} == model


@given(st.lists(st.integers(1, 2**63 - 1), max_size=40))
def test_what_was_stored_is_read_back(numbers: list[int]):
    seen = SeenReports()
    for number in numbers:
        seen.add(number)
    again = SeenReports.decode(seen.encode())
    assert all(has(again, number) for number in numbers)
    assert again.encode() == seen.encode()


@given(st.lists(st.integers(1, 60), max_size=60), st.lists(st.integers(1, 60), max_size=60))
def test_what_two_helens_saw_is_seen(ours: list[int], theirs: list[int]):
    one, other = SeenReports(), SeenReports()
    for number in ours:
        one.add(number)
    for number in theirs:
        other.add(number)
    assert one.merge(other) == bool(set(theirs) - set(ours))
    assert {number for number in range(62) if has(one, number)} == {*ours, *theirs}
    assert SeenReports.decode(one.encode()).encode() == one.encode()
    assert not one.merge(other)


def test_many_ranges_of_two_helens_are_bounded():
    one, other = SeenReports(), SeenReports()
    for number in range(MAX_RANGES):
        one.add(4 * number + 1)
        other.add(4 * number + 3)
    assert one.merge(other)
    assert len(one.encode()) <= MAX_FOREIGN_BYTES
    assert all(has(one, 4 * number + 1) and has(one, 4 * number + 3) for number in range(MAX_RANGES))


def test_spools_go_whole_and_are_forgotten_where_they_were():
    here, there = Spools(), Spools()
    for number in (1, 2, 5):
        here.add("web-1", "s1", number, NOW)
    here.add("web-2", "s1", 1, NOW)
    handed = here.hand_over("web-1", NOW)
    there.add("web-1", "s1", 3, NOW)
    there.take_over("web-1", [(name, SeenReports.decode(seen), heard) for name, seen, heard in handed], NOW)
    assert [there.add("web-1", "s1", number, NOW) for number in range(1, 6)] == [False, False, False, True, False]
    assert here.add("web-1", "s1", 1, NOW)
    assert not here.add("web-2", "s1", 1, NOW)


def test_numbers_in_order_stay_one_small_range():
    seen = SeenReports()
    for number in range(1, 100_000):
        assert seen.add(number)
    assert len(seen.encode()) < 10


def test_numbers_in_any_order_become_one_range():
    seen, numbers = SeenReports(), list(range(1, MAX_RANGES))
    random.Random(4).shuffle(numbers)
    for number in numbers:
        assert seen.add(number)
    assert len(seen.encode()) < 10


def test_beyond_the_limit_the_oldest_gap_counts_as_seen():
    seen = SeenReports()
    for number in range(0, 2 * MAX_RANGES, 2):
        seen.add(number + 1)
    assert not has(seen, 2)
    seen.add(10_000)
    assert has(seen, 2)
    assert not has(seen, 4)
    assert len(SeenReports.decode(seen.encode()).encode()) < 5 * 2 * MAX_RANGES


@pytest.mark.parametrize("ends", [[1], [3, 1], [1, 3, 2, 5], [1, 3, 3, 4]])
def test_damaged_ranges_are_our_own_fault(ends: list[int]):
    seen = SeenReports()
    seen._ends = ends
    with pytest.raises(ValueError):
        SeenReports.decode(seen.encode())


def settle(spools: Spools, now: Now = NOW) -> list[object]:
    effects = Effects()
    spools.settle(now, effects)
    return effects.writes


def test_a_turn_writes_each_spool_that_it_changed_once():
    spools = Spools()
    assert spools.add("web-1", "s1", 1, NOW)
    assert spools.add("web-1", "s1", 2, NOW)
    assert spools.add("web-2", "s1", 2, NOW)
    assert not spools.add("web-1", "s1", 2, NOW)
    writes = settle(spools)
    assert [(write.agent, write.spool) for write in writes if isinstance(write, PutSpool)] == [
        ("web-1", "s1"),
        ("web-2", "s1"),
    ]
    assert settle(spools) == []
    assert not spools.add("web-1", "s1", 2, NOW)
    assert settle(spools) == []  # a repeated report changes nothing


# Promise: AGENT-6
def test_spools_are_known_again_after_a_restart():
    spools = Spools()
    spools.add("web-1", "s1", 7, NOW)
    (put,) = settle(spools)
    assert isinstance(put, PutSpool)
    again = Spools()
    again.load([SpoolRow(put.agent, put.spool, put.seen, put.heard_us)], Now(5.0, NOW.wall + 60))
    assert not again.add("web-1", "s1", 7, Now(6.0, NOW.wall + 61))
    assert again.add("web-1", "s1", 8, Now(6.0, NOW.wall + 61))


def test_a_spool_that_was_silent_for_a_month_is_forgotten():
    spools = Spools()
    spools.add("web-1", "old", 1, NOW)
    late = Now(NOW.mono + FORGET_SECONDS, NOW.wall)
    spools.add("web-1", "new", 1, late)
    settle(spools)
    assert spools.prune(late) == 0
    later = Now(late.mono + 1, NOW.wall)
    assert spools.prune(later) == 1
    assert settle(spools) == [DropSpool("web-1", "old")]
    assert not spools.add("web-1", "new", 1, later)


def test_a_jump_of_the_wall_clock_forgets_nothing():
    spools = Spools()
    spools.add("web-1", "s1", 1, NOW)
    assert spools.prune(Now(NOW.mono + 60, NOW.wall + 10 * FORGET_SECONDS)) == 0


def test_an_agent_that_makes_spools_without_end_keeps_the_newest():
    spools = Spools()
    for number in range(MAX_SPOOLS + 3):
        spools.add("web-1", f"s{number}", 1, Now(NOW.mono + number, NOW.wall))
    writes = settle(spools)
    assert writes[:3] == [DropSpool("web-1", f"s{number}") for number in range(3)]
    assert {write.spool for write in writes[3:] if isinstance(write, PutSpool)} == {
        f"s{number}" for number in range(3, MAX_SPOOLS + 3)
    }


def test_an_agent_that_is_forgotten_takes_its_spools_along():
    spools = Spools()
    spools.add("web-1", "s1", 1, NOW)
    settle(spools)
    spools.forget("web-1")
    assert settle(spools) == [DropSpool("web-1", "s1")]
    assert spools.add("web-1", "s1", 1, NOW)


@pytest.mark.parametrize(
    ("name", "good"), [("a1-B.c_2", True), ("", False), ("a b", False), ("a:1", False), ("é", False)]
)
def test_what_a_spool_may_be_called(name: str, good: bool):
    assert is_spool(name) == good
