"""Clock skew: decides whether a client's wall clock is wrong, or the broker's.

Wall clocks never decide liveness. Invariant: a jump of the broker's own clock disconnects no client.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Final

from scale0.broker.core.members import Member, Members
from scale0.broker.core.state import BrokerState
from scale0.history.events.sources import BrokerClockSuspect
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import Refusal

MAX_WINDOW_SECONDS: Final = 10.0
"""How long readings are collected before they are evaluated, unless the network's own interval is longer."""
SLACK: Final = 64
"""Readings of members that left, beyond one for each live member, before they are discarded."""
QUORUM: Final = 3
"""With fewer clients, no majority can overrule a clock of the broker that a client has confirmed."""


class ClockSkew:
    def __init__(self, state: BrokerState, members: Members) -> None:
        self._state = state
        self._members = members
        self._readings: dict[Member, tuple[float, float]] = {}
        """The time of each reading, and the client's offset to our monotonic clock, because our wall clock may jump."""
        self._offset: float | None = None
        """The offset of our wall clock to our monotonic clock, at the start or when a client last agreed with it."""
        self._confirmed = False
        """True once a client agreed with our clock: before that, few clients may be right against it."""
        self._judging = False

    def start(self, now: Now) -> None:
        """Store the offset at the start: a jump is detected even before a client has sent its time."""
        self._offset = now.wall - now.mono

    def read(self, member: Member, time: float, now: Now, effects: Effects) -> None:
        if not math.isfinite(time):
            raise Refusal(codes.MALFORMED, "time is a finite number of seconds")
        self._forget_gone()
        difference = time - now.wall
        limit = self._state.limits.max_clock_skew
        offset = now.wall - now.mono
        if abs(difference) <= limit:
            # After a jump of our clock one reading proves nothing: a message that waited has an old time.
            doubtful = self._state.clock_suspect or self._stepped(offset)
            if not doubtful:
                self._offset, self._confirmed = offset, True
            if member in self._readings or doubtful or len(self._members.by_name) >= QUORUM:
                self._readings[member] = (now.mono, time - now.mono)
            if doubtful:
                self._judge_later(now)
            return
        self._readings[member] = (now.mono, time - now.mono)
        few = len(self._members.by_name) < QUORUM
        if not self._state.clock_suspect and (self._stepped(offset) or (few and not self._confirmed)):
            self._suspect_own_clock(now, effects)
        if self._state.clock_suspect or not few:
            self._judge_later(now)
        else:
            self._expel((member,), now, effects)

    def _forget_gone(self) -> None:
        if len(self._readings) > 2 * len(self._members.by_name) + SLACK:
            self._readings = {member: reading for member, reading in self._readings.items() if not member.gone}

    def _judge_later(self, now: Now) -> None:
        """Evaluate after one interval: by then every live member has sent its time."""
        if not self._judging:
            self._judging = True
            self._state.timers.add((self._judge, None), now.mono + self._window())

    def _window(self) -> float:
        longest = max((member.interval for member in self._readings), default=0.0)
        # A client with a very long interval must not delay the evaluation for all.
        return max(self._state.interval, min(longest, MAX_WINDOW_SECONDS))

    def _judge(self, _: None, now: Now, effects: Effects) -> None:
        self._judging = False
        since = now.mono - 1.5 * self._window()
        self._readings = {m: r for m, r in self._readings.items() if not m.gone and r[0] >= since}
        limit, offset = self._state.limits.max_clock_skew, now.wall - now.mono
        wrong = [member for member, reading in self._readings.items() if abs(reading[1] - offset) > limit]
        outvoted = len(self._readings) >= QUORUM and 2 * len(wrong) > len(self._readings)
        # Our clock may have jumped after these readings, or be wrong since the start; then the clients are right.
        doubtful = self._state.clock_suspect or (bool(wrong) and (self._stepped(offset) or not self._confirmed))
        if outvoted or (doubtful and not self._is_right_again(wrong, offset)):
            if not self._state.clock_suspect:
                self._suspect_own_clock(now, effects)
            self._judge_later(now)
            return
        self._state.clock_suspect = False
        if len(wrong) < len(self._readings):
            # Store only an offset that a client confirms; after an undetected jump the next reading shows it.
            self._offset, self._confirmed = offset, True
        self._expel(wrong, now, effects)

    def _stepped(self, offset: float) -> bool:
        """True if our clock differs from the offset that a client last confirmed."""
        return self._offset is not None and abs(offset - self._offset) > self._state.limits.max_clock_skew / 2

    def _is_right_again(self, wrong: list[Member], offset: float) -> bool:
        """Our clock is back at the confirmed offset, or clients agree with it again. A tie proves nothing after a jump;
        a clock that did not jump since the start counts as one more client that agrees."""
        if self._offset is not None and not self._stepped(offset):
            return self._confirmed or (bool(self._readings) and 2 * len(wrong) <= len(self._readings))
        most = len(self._readings) >= QUORUM and 2 * len(wrong) < len(self._readings)
        return most or (bool(self._readings) and not wrong)

    def _suspect_own_clock(self, now: Now, effects: Effects) -> None:
        self._state.clock_suspect = True
        differences = [reading[1] - (now.wall - now.mono) for reading in self._readings.values()]
        limit = self._state.limits.max_clock_skew
        effects.record(
            BrokerClockSuspect(
                identity=self._state.identity,
                clients=len(differences),
                skewed=sum(abs(difference) > limit for difference in differences),
                skew_seconds=statistics.median(differences),
            )
        )

    def _expel(self, members: Iterable[Member], now: Now, effects: Effects) -> None:
        limit = self._state.limits.max_clock_skew
        for member in members:
            self._readings.pop(member, None)
            self._members.expel(member, 425, f"your clock is more than {limit:g} s from the broker's", now, effects)
