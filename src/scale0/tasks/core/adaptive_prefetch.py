"""Adaptive prefetch: measures how fast each backend completes the tasks of each service and derives how many of them it
may hold in advance.
Short tasks are sent in batches and long ones one at a time, so that no idle worker waits while another holds a backlog.
Invariants: the prefetch of each service covers about HORIZON_SECONDS of its work; a backend never holds more in advance
than it asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from scale0.broker.core.scheduler import Backend, Offering, Scheduler
from scale0.broker.core.state import BrokerState
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects

HORIZON_SECONDS: Final = 0.1
"""Seconds of work that a backend may hold in advance: enough to cover a commit and a round trip."""
RECALL_SECONDS: Final = 0.25
"""If a backend completes nothing for this long while another is idle, the broker reclaims the tasks that it has not
started."""
PACE_WEIGHT: Final = 0.3
"""Weight of the newest measurement in the moving average."""


class AdaptivePrefetch:
    def __init__(
        self,
        state: BrokerState,
        slots: Scheduler,
        recall: Callable[[Backend, Iterable[str], Now, Effects], None],
        time: Callable[[Offering, Now], None],
    ) -> None:
        """`recall` reclaims tasks that were not started; `time` starts the timeout of tasks that occupy a slot."""
        self._state = state
        self._slots = slots
        self._recall = recall
        self._time = time
        self._ahead: dict[Offering, None] = {}
        """Offerings that may have more tasks than slots."""
        self._watching = False

    def room(self, offering: Offering) -> int:
        """Returns how many more tasks of this service the backend may hold in advance."""
        backend = offering.backend
        if not backend.prefetch or not offering.pace or not backend.pushes:
            return 0
        quota = min(backend.prefetch, int(HORIZON_SECONDS / offering.pace * offering.slots))
        # A backend that reduced its slots may have more tasks in slots than it has slots.
        own = quota - (offering.held - min(offering.slotted, offering.slots))
        return min(own, backend.prefetch - (len(backend.tasks) - min(backend.slotted, backend.slots)))

    def measured(self, offering: Offering, count: int, now: Now) -> None:
        """Updates the average seconds per task of this service: the backend has just completed `count` of them."""
        at_once = min(max(offering.slots, 1), offering.held + count)
        seconds = (now.mono - offering.paced) * at_once / count
        offering.paced = now.mono
        if seconds > 0.0:
            offering.pace = seconds if not offering.pace else offering.pace + PACE_WEIGHT * (seconds - offering.pace)

    def watch(self, offering: Offering, now: Now) -> None:
        """Checks this offering periodically from now on, because its backend holds tasks in advance."""
        self._ahead[offering] = None
        if not self._watching:
            self._watching = True
            self._state.timers.add((self._reclaim_slow, None), now.mono + RECALL_SECONDS)

    def _reclaim_slow(self, _: None, now: Now, effects: Effects) -> None:
        """Reclaims prefetched tasks of slow backends while others are idle."""
        self._watching = False
        ahead, self._ahead = self._ahead, {}
        for offering in ahead:
            self._time(offering, now)
            if offering.held <= offering.slotted:
                continue
            if now.mono - offering.paced >= RECALL_SECONDS and self._is_wanted(offering):
                self._recall(offering.backend, (offering.name,), now, effects)
                # The tasks that it completed last do not predict the duration of the ones that it runs now.
                offering.pace = 0.0
            else:
                self.watch(offering, now)

    def _is_wanted(self, offering: Offering) -> bool:
        return self._slots.has_room(offering.name) and any(
            task.method == offering.name and not task.start_reported and not task.restored
            for task in offering.backend.tasks.values()
        )
