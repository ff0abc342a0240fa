"""Whose clock is wrong: a client's, or ours?

Lives here: comparing the times that clients send with the broker's wall clock. Never here: liveness, which no wall
clock decides. Invariant: a jump of the broker's own clock disconnects nobody.
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
"""How long readings are gathered before they are judged, unless the network's own interval is longer."""
SLACK: Final = 64
"""Readings of members that left, beyond one for each that lives, before they are thrown away."""
QUORUM: Final = 3
"""With fewer clients than these nobody can outvote the broker's clock."""


class ClockSkew:
    """The readings of the last interval, and what they say."""

    __slots__ = ("_judging", "_members", "_offset", "_readings", "_state", "suspect")

    def __init__(self, state: BrokerState, members: Members) -> None:
        self._state = state
        self._members = members
        self._readings: dict[Member, tuple[float, float]] = {}
        """When each was read, and how far its clock is from our monotonic one: our wall clock may jump in between."""
        self._offset: float | None = None
        """From our monotonic clock to our wall clock, when a client last agreed with it, or we began."""
        self._judging = False
        self.suspect = False

    def start(self, now: Now) -> None:
        """What our clock showed at the start: a jump is known as ours even if no client has told its time yet."""
        self._offset = now.wall - now.mono

    def read(self, member: Member, time: float, now: Now, effects: Effects) -> None:
        """A client told its time."""
        if not math.isfinite(time):
            raise Refusal(codes.MALFORMED, "time is a finite number of seconds")
        self._forget_gone()
        difference = time - now.wall
        limit = self._state.limits.max_clock_skew
        offset = now.wall - now.mono
        if abs(difference) <= limit:
            if not self.suspect:
                self._offset = offset
            if member in self._readings or self.suspect or len(self._members.by_name) >= QUORUM:
                self._readings[member] = (now.mono, time - now.mono)
            if self.suspect and not self._judging:
                self._judge_later(now)
            return
        self._readings[member] = (now.mono, time - now.mono)
        if self._stepped(offset) and not self.suspect:
            self._suspect(now, effects)
        if self.suspect or len(self._members.by_name) >= QUORUM:
            self._judge_later(now)
        else:
            self._expel((member,), now, effects)

    def _forget_gone(self) -> None:
        if len(self._readings) > 2 * len(self._members.by_name) + SLACK:
            self._readings = {member: reading for member, reading in self._readings.items() if not member.gone}

    def _judge_later(self, now: Now) -> None:
        """One interval decides: by then everybody who lives has told its time."""
        if not self._judging:
            self._judging = True
            self._state.timers.add((self._judge, None), now.mono + self._window())

    def _window(self) -> float:
        longest = max((member.interval for member in self._readings), default=0.0)
        # One that asked for a very long interval must not put off the judgement of all.
        return max(self._state.interval, min(longest, MAX_WINDOW_SECONDS))

    def _judge(self, _: None, now: Now, effects: Effects) -> None:
        self._judging = False
        since = now.mono - 1.5 * self._window()
        self._readings = {m: r for m, r in self._readings.items() if not m.gone and r[0] >= since}
        limit, offset = self._state.limits.max_clock_skew, now.wall - now.mono
        wrong = [member for member, reading in self._readings.items() if abs(reading[1] - offset) > limit]
        outvoted = len(self._readings) >= QUORUM and 2 * len(wrong) > len(self._readings)
        # Since they were read our clock may have jumped: then it is not they who are wrong.
        doubtful = self.suspect or (bool(wrong) and self._stepped(offset))
        if outvoted or (doubtful and not self._acquitted(wrong, offset)):
            if not self.suspect:
                self._suspect(now, effects)
            self._judge_later(now)
            return
        self.suspect = False
        if len(wrong) < len(self._readings):
            # Only what a client confirms is known to be right: after a jump that nobody saw the next one tells.
            self._offset = offset
        self._expel(wrong, now, effects)

    def _stepped(self, offset: float) -> bool:
        """Our clock is not where a client last agreed with it."""
        return self._offset is not None and abs(offset - self._offset) > self._state.limits.max_clock_skew / 2

    def _acquitted(self, wrong: list[Member], offset: float) -> bool:
        """Our clock is back where clients agreed with it, or they agree again. Silence and a tie acquit nobody."""
        if self._offset is not None and not self._stepped(offset):
            return True
        most = len(self._readings) >= QUORUM and 2 * len(wrong) < len(self._readings)
        return most or (bool(self._readings) and not wrong)

    def _suspect(self, now: Now, effects: Effects) -> None:
        self.suspect = True
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
