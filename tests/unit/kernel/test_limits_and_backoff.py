"""Backoff and rate windows, against their definitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scale0.kernel.backoff import Backoff, pause
from scale0.kernel.rate_window import RateWindow


def test_a_pause_doubles_until_its_maximum_and_starts_again_after_a_reset():
    backoff = Backoff(1.0, 5.0)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next() == 1.0
    assert pause(0.5, 60.0, 10**9) == 60.0


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 5)), max_size=30))
def test_a_window_counts_what_came_since_it_began(steps):
    window, now, began, used = RateWindow(), 0.0, None, 0
    for pause_seconds, amount in steps:
        now += pause_seconds
        if began is None or now - began >= 2.0:
            began, used = now, 0
        if used + amount <= 10:
            used += amount
            assert window.allows(amount, 10, 2.0, now)
        else:
            assert not window.allows(amount, 10, 2.0, now)
        assert window.left(10, 2.0, now) == 10 - used
