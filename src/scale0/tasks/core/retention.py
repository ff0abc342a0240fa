"""Retention: the time by which ended tasks, with their results and keys, expire. Time counts only as far as a process
saw it pass: after a jump of the wall clock forward, or a start long after the stored time of retention (which may be
the same jump), it goes on by the monotonic clock from where it was. It lags behind the wall clock then.

A lag is made up in two stages, each at once: the first when every task from before the jump that began it has expired,
and no later jump moves that point; the second, with all later jumps, when every task from before the last of them has.
Then the second becomes the first. Invariants: no jump deletes an ended task before its result_ttl has passed; jumps and
downtimes, however many, keep it at most for twice the longest result_ttl of time that passed in processes (in a store
that brokers share, they may keep it longer)."""

from __future__ import annotations

from typing import Final, NamedTuple

from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.storage.rows import PutSetting
from scale0.tasks.core.task import of_seconds

STEP_US: Final = 1_000_000
"""A larger advance of the wall clock over the monotonic one is a jump."""
LONGEST: Final = "time:longest-result"
"""The setting with the longest result_ttl that a broker has seen."""
NEVER: Final = 2**62
"""Until the longest result_ttl is known."""


class Lag(NamedTuple):
    """What a start needs besides the time of retention."""

    ahead_us: int = 0
    """How far the wall clock is ahead of the time of retention."""
    jump_us: int = 0
    """How much of it the first stage makes up; 0: there is no lag."""
    first_us: int = 0
    """When: the time of retention after which the first stage is over."""
    until_us: int = 0
    """The time of retention, as it counts during the first stage, after which the second one is over."""


class Retention:
    def __init__(self, is_shared: bool) -> None:
        self._is_shared = is_shared
        """Other brokers end tasks in the store too, so that their longest result_ttl is looked for again and again."""
        self._offset_us = 0
        """The time of retention minus the monotonic clock."""
        self.lag = Lag()
        self._dated_us = 0
        """How far the clock by which the stored tasks are dated was ahead."""
        self._longest_us = 0
        """The longest result_ttl of a stored task."""
        self._is_known = False
        """Whether this is true; a start learns it from the store."""

    @property
    def must_look(self) -> bool:
        """Whether it must be told when the last stored task expires."""
        return self._is_shared or not self._is_known

    def start(self, wall_us: int, last_time_us: int, lag: Lag, longest_us: int | None, now: Now) -> None:
        """`last_time_us`: the time that counted before the start; 0: none is known. `longest_us`: the longest
        result_ttl ever; None: it is not known."""
        self._offset_us = min(wall_us, last_time_us or wall_us) - of_seconds(now.mono)
        self.lag = lag
        # A process that ended before it knew the longest result_ttl may not have dated any.
        self._dated_us = lag.ahead_us if NEVER not in lag else 0
        if longest_us is not None:
            self._longest_us = longest_us
            if not self._is_shared:
                self._know(self._offset_us + of_seconds(now.mono))

    def now_us(self, wall_us: int, now: Now) -> int:
        """Returns the time by which stored tasks expire."""
        mono_us = of_seconds(now.mono)
        time_us = mono_us + self._offset_us
        ahead_us = wall_us - time_us
        was_ahead_us, jump_us, first_us, until_us = self.lag
        if ahead_us - was_ahead_us > STEP_US:
            until_us = time_us + self._longest_us if self._is_known else NEVER
            if not jump_us:
                jump_us, first_us = ahead_us, until_us
        jump_us = min(jump_us, max(ahead_us, 0))
        while jump_us and time_us > first_us:
            time_us += jump_us
            ahead_us -= jump_us
            until_us = min(until_us + jump_us, NEVER)
            jump_us, first_us = ahead_us, until_us
        if not jump_us:
            time_us, ahead_us = wall_us, 0
        self._offset_us = time_us - mono_us
        self.lag = Lag(ahead_us, jump_us, first_us, until_us)
        return time_us

    def stored(self, last_us: int | None, time_us: int, effects: Effects) -> None:
        """Notes when the last stored task expires; `time_us`: the time of retention."""
        longest_us = 0 if last_us is None else last_us - time_us - self._dated_us
        if longest_us > self._longest_us or not self._is_known:
            self._longest_us = max(self._longest_us, longest_us)
            effects.write(PutSetting(LONGEST, b"%d" % self._longest_us))
        self._know(time_us)
        self._dated_us = self.lag.ahead_us

    def ended(self, result_ttl_us: int, effects: Effects) -> None:
        """Notes the end of a task in the commit that stores it."""
        if result_ttl_us > self._longest_us:
            self._longest_us = result_ttl_us
            if self._is_known:
                effects.write(PutSetting(LONGEST, b"%d" % result_ttl_us))

    def _know(self, time_us: int) -> None:
        self._is_known = True
        self.lag = Lag(*(time_us + self._longest_us if each == NEVER else each for each in self.lag))
