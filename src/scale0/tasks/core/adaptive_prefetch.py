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

    __slots__ = ("_ahead", "_house", "_recall", "_slots", "_time", "_watching")

    def __init__(
        self,
        house: BrokerState,
        slots: Scheduler,
        recall: Callable[[Any, Now, Effects], None],
        time: Callable[[Any, Now], None],
    ) -> None:
        """`recall` takes back what was not begun; `time` begins to count the time of what holds a slot."""
        self._house = house
        self._slots = slots
        self._recall = recall
        self._time = time
        self._ahead: dict[Any, None] = {}
        """Backends that may have more in hand than slots."""
        self._watching = False

    def room(self, holder: Any) -> int:
        """How many more it may have in advance."""
        if not holder.prefetch or not holder.pace or not holder.pushes:
            return 0
        quota = min(holder.prefetch, int(HORIZON_SECONDS / holder.pace * holder.slots))
        room: int = quota - (len(holder.tasks) - holder.slotted)
        return room

    def measured(self, holder: Any, count: int, before: int, now: Now) -> None:
        """It has ended `count` tasks of the `before` that it had in hand: how quick is it?"""
        seconds = (now.mono - holder.paced) * min(max(holder.slots, 1), before) / count
        holder.paced = now.mono
        if seconds > 0.0:
            holder.pace = seconds if not holder.pace else holder.pace + PACE_WEIGHT * (seconds - holder.pace)

    def watch(self, holder: Any, now: Now) -> None:
        """It has something in advance."""
        self._ahead[holder] = None
        if not self._watching:
            self._watching = True
            self._house.timers.add((self._look, None), now.mono + RECALL_SECONDS)

    def _look(self, _: None, now: Now, step: Effects) -> None:
        """Nobody hoards while others are idle."""
        self._watching = False
        ahead, self._ahead = self._ahead, {}
        for holder in ahead:
            self._time(holder, now)
            if len(holder.tasks) <= holder.slotted:
                continue
            if now.mono - holder.paced >= RECALL_SECONDS and self._is_wanted(holder):
                self._recall(holder, now, step)
                # What it ended last says nothing about what it is at now.
                holder.pace = 0.0
            else:
                self.watch(holder, now)

    def _is_wanted(self, holder: Any) -> bool:
        methods = {task.method for task in holder.tasks.values() if not task.said and not task.restored}
        return any(self._slots.has_room(method) for method in methods)
