"""Deadlines come out in time: never before, at most a grain after."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scale0.kernel.timers import TimerWheel

times = st.floats(0, 1_000)


# Promise: REQ-7
@given(st.lists(st.tuples(times, st.booleans()), max_size=60), st.lists(times, max_size=20))
def test_every_entry_comes_out_once_never_early_and_at_most_a_grain_late(entries, looks):
    wheel: TimerWheel[int] = TimerWheel()
    buckets = {number: wheel.add(number, when) for number, (when, _) in enumerate(entries)}
    for number, (_, removed) in enumerate(entries):
        if removed:
            wheel.remove(number, buckets[number])
    waiting = {number: when for number, (when, removed) in enumerate(entries) if not removed}
    assert len(wheel) == len(waiting)
    for now in [*sorted(looks), 2_000.0]:
        due = wheel.deadline()
        assert (due is None) == (not waiting)
        if due is not None:
            assert min(waiting.values()) <= due <= min(waiting.values()) + wheel.grain
        for number in wheel.expire(now):
            assert waiting.pop(number) <= now
        assert all(when + wheel.grain > now for when in waiting.values())
    assert not waiting
    assert wheel.deadline() is None


def test_removing_what_is_not_there_is_no_error():
    wheel: TimerWheel[str] = TimerWheel()
    bucket = wheel.add("a", 1.0)
    wheel.remove("b", bucket)
    wheel.remove("a", bucket + 1)
    assert wheel.expire(1.0) == ["a"]
    wheel.remove("a", bucket)


def test_a_removed_entry_costs_nothing():
    wheel: TimerWheel[int] = TimerWheel()
    for number in range(10_000):
        wheel.remove(number, wheel.add(number, 30.0 + number / 1_000))
    assert len(wheel) == 0
    assert wheel.deadline() is None
