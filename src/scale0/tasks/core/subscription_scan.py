"""Finds the methods whose waiting tasks a new subscription to several methods matches, and loads their queues.

Invariants: one scan at a time, and one in SCAN_SECONDS, for all subscriptions that wait for it; none for subscriptions
that have ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects, StoreQuery
from scale0.kernel.errors import Refusal
from scale0.storage.task_queries import ListTasks
from scale0.storage.task_rows import QUEUED

SCAN_SECONDS: Final = 1.0
"""The shortest time between the starts of two scans."""
SCANNED_TASKS: Final = 1_000
"""The newest queued tasks, whose methods a scan finds."""
SENDER: Final = "subscriptions"
"""For whom scans are read, in turn with the lists of administrators."""


class SubscriptionScan:
    def __init__(self, state: BrokerState, waiting: set[bytes], on_method: Callable[[str, Now, Effects], None]) -> None:
        """`waiting`: subscriptions that no scan has seen, which the owner adds and removes."""
        self._state = state
        self._waiting = waiting
        self._on_method = on_method
        self._busy = False
        """A scan is due at a timer, or being read."""
        self._next_at = float("-inf")

    def request(self, now: Now, effects: Effects) -> None:
        """A subscription was added to those that wait."""
        if self._busy:
            return
        if now.mono >= self._next_at:
            self._start(None, now, effects)
        else:
            self._busy = True
            self._state.timers.add((self._start, None), self._next_at)

    def _start(self, _: None, now: Now, effects: Effects) -> None:
        self._busy = bool(self._waiting)
        if self._busy:
            self._waiting.clear()
            self._next_at = now.mono + SCAN_SECONDS
            ask = ListTasks(limit=SCANNED_TASKS, status=QUEUED)
            effects.ask(StoreQuery(ask, self._found, aside=True, sender=SENDER))

    def _found(self, page: Any, now: Now, effects: Effects) -> None:
        self._busy = False
        if not isinstance(page, Refusal):
            for method in dict.fromkeys(row.method for row in page.tasks):
                self._on_method(method, now, effects)
        if self._waiting:
            self.request(now, effects)
