"""Adaptive prefetch: measures how fast each backend completes tasks and derives how many tasks it may hold in advance.
Short tasks are sent in batches and long ones one at a time, so that no idle worker waits while another holds a backlog.
Invariant: a backend's prefetch covers about HORIZON_SECONDS of work and never exceeds what the backend asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from scale0.broker.core.scheduler import Scheduler
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
        recall: Callable[[Any, Now, Effects], None],
        time: Callable[[Any, Now], None],
    ) -> None:
        """`recall` reclaims tasks that were not started; `time` starts the timeout of tasks that occupy a slot."""
        self._state = state
        self._slots = slots
        self._recall = recall
        self._time = time
        self._ahead: dict[Any, None] = {}
        """Backends that may hold more tasks than they have slots."""
        self._watching = False

    def room(self, backend: Any) -> int:
        """Returns how many more tasks the backend may hold in advance."""
        if not backend.prefetch or not backend.pace or not backend.pushes:
            return 0
        quota = min(backend.prefetch, int(HORIZON_SECONDS / backend.pace * backend.slots))
        room: int = quota - (len(backend.tasks) - backend.slotted)
        return room

    def measured(self, backend: Any, count: int, before: int, now: Now) -> None:
        """Updates the backend's average seconds per task: it completed `count` of the `before` tasks that it held."""
        seconds = (now.mono - backend.paced) * min(max(backend.slots, 1), before) / count
        backend.paced = now.mono
        if seconds > 0.0:
            backend.pace = seconds if not backend.pace else backend.pace + PACE_WEIGHT * (seconds - backend.pace)

    def watch(self, backend: Any, now: Now) -> None:
        """Checks this backend periodically from now on, because it holds tasks in advance."""
        self._ahead[backend] = None
        if not self._watching:
            self._watching = True
            self._state.timers.add((self._reclaim_slow, None), now.mono + RECALL_SECONDS)

    def _reclaim_slow(self, _: None, now: Now, effects: Effects) -> None:
        """Reclaims prefetched tasks of slow backends while others are idle."""
        self._watching = False
        ahead, self._ahead = self._ahead, {}
        for backend in ahead:
            self._time(backend, now)
            if len(backend.tasks) <= backend.slotted:
                continue
            if now.mono - backend.paced >= RECALL_SECONDS and self._is_wanted(backend):
                self._recall(backend, now, effects)
                # The tasks that it completed last do not predict the duration of the ones that it runs now.
                backend.pace = 0.0
            else:
                self.watch(backend, now)

    def _is_wanted(self, backend: Any) -> bool:
        methods = {task.method for task in backend.tasks.values() if not task.start_reported and not task.restored}
        return any(self._slots.has_room(method) for method in methods)
