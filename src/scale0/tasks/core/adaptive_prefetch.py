"""Pacing: how much a backend is given in advance, and when it must give it back.

Lives here: how quick a backend is, as its own answers show, and what follows from it. Never here: handing out. Short
tasks travel in batches and long ones one by one, so that no idle worker waits while another hoards. Invariant: a
backend has no more in advance than takes it about HORIZON_SECONDS, and never more than it asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from scale0.broker.core.scheduler import Scheduler
from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects

HORIZON_SECONDS: Final = 0.1
"""How much work a backend is given in advance: enough for a commit and a round trip, little enough to share."""
RECALL_SECONDS: Final = 0.25
"""A backend that has ended nothing for so long gives back what it has not begun, if somebody else is idle."""
PACE_WEIGHT: Final = 0.3
"""Of the newest measurement."""


class AdaptivePrefetch:
    """The pace of all backends of one broker. What is known of each stands in its own record."""

    __slots__ = ("_ahead", "_recall", "_slots", "_state", "_time", "_watching")

    def __init__(
        self,
        state: BrokerState,
        slots: Scheduler,
        recall: Callable[[Any, Now, Effects], None],
        time: Callable[[Any, Now], None],
    ) -> None:
        """`recall` takes back what was not begun; `time` begins to count the time of what holds a slot."""
        self._state = state
        self._slots = slots
        self._recall = recall
        self._time = time
        self._ahead: dict[Any, None] = {}
        """Backends that may have more in hand than slots."""
        self._watching = False

    def room(self, backend: Any) -> int:
        """How many more it may have in advance."""
        if not backend.prefetch or not backend.pace or not backend.pushes:
            return 0
        quota = min(backend.prefetch, int(HORIZON_SECONDS / backend.pace * backend.slots))
        room: int = quota - (len(backend.tasks) - backend.slotted)
        return room

    def measured(self, backend: Any, count: int, before: int, now: Now) -> None:
        """It has ended `count` tasks of the `before` that it had in hand: how quick is it?"""
        seconds = (now.mono - backend.paced) * min(max(backend.slots, 1), before) / count
        backend.paced = now.mono
        if seconds > 0.0:
            backend.pace = seconds if not backend.pace else backend.pace + PACE_WEIGHT * (seconds - backend.pace)

    def watch(self, backend: Any, now: Now) -> None:
        """It has something in advance."""
        self._ahead[backend] = None
        if not self._watching:
            self._watching = True
            self._state.timers.add((self._look, None), now.mono + RECALL_SECONDS)

    def _look(self, _: None, now: Now, effects: Effects) -> None:
        """Nobody hoards while others are idle."""
        self._watching = False
        ahead, self._ahead = self._ahead, {}
        for backend in ahead:
            self._time(backend, now)
            if len(backend.tasks) <= backend.slotted:
                continue
            if now.mono - backend.paced >= RECALL_SECONDS and self._is_wanted(backend):
                self._recall(backend, now, effects)
                # What it ended last says nothing about what it is at now.
                backend.pace = 0.0
            else:
                self.watch(backend, now)

    def _is_wanted(self, backend: Any) -> bool:
        methods = {task.method for task in backend.tasks.values() if not task.said and not task.restored}
        return any(self._slots.has_room(method) for method in methods)
