"""A limit of audit events: the first ones of a user are recorded by themselves, a flood as a number.

Invariant: nothing is hidden: the number is recorded at the end of its window, and a user has a window of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, RecordedEvent
from scale0.kernel.rate_window import RateWindow

MAX_SINGLE: Final = 20
"""Events of one user that are recorded in WINDOW_SECONDS; further ones are recorded as a number."""
WINDOW_SECONDS: Final = 60.0
MAX_SUBJECTS: Final = 20
"""What further events were about, in the event with their number."""

Summary = Callable[[str, int, Sequence[str]], RecordedEvent]
"""Returns the event for so many further events of a user, which were about these."""


class _Window(RateWindow):
    __slots__ = ("subjects",)

    def __init__(self) -> None:
        super().__init__()
        self.subjects: dict[str, None] = {}


class AuditLimit:
    def __init__(self, state: BrokerState, summary: Summary) -> None:
        self._state = state
        self._summary = summary
        self._windows: dict[str, _Window] = {}
        """By user; blank for clients without valid credentials, which therefore hide nothing of a user."""

    def record(self, user: str, event: RecordedEvent, now: Now, effects: Effects, subject: str = "") -> None:
        window = self._windows.get(user)
        if window is None or now.mono - window.since >= WINDOW_SECONDS:
            window = self._windows[user] = _Window()
            self._state.timers.add((self._sum_up, (user, window)), now.mono + WINDOW_SECONDS)
        if window.add(1, WINDOW_SECONDS, now.mono) <= MAX_SINGLE:
            effects.record(event)
        elif subject and len(window.subjects) < MAX_SUBJECTS:
            window.subjects[subject] = None

    def _sum_up(self, which: tuple[str, _Window], _now: Now, effects: Effects) -> None:
        user, window = which
        more = window.used - MAX_SINGLE
        if more > 0:
            effects.record(self._summary(user, more, sorted(window.subjects)))
        if self._windows.get(user) is window:
            del self._windows[user]
