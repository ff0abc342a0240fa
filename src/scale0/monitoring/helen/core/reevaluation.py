"""Looks: what Watch must look at again after times or settings changed, some of it in each turn.

Lives here: the agents and held notices that wait for a look, and when planned times are compared with the clock. Never
here: what a look finds (`watch`). Invariants: after a change everything is looked at, each once, and agents before
notices; no turn looks at more than a slice; a wall clock that jumps is noticed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from scale0.kernel.clock import Now
from scale0.monitoring.helen.core.incidents import Key
from scale0.monitoring.helen.core.monitored_agent import MonitoredAgent

SLICE: Final = 500
"""Agents, and held notices, that are looked at in one turn after a change: others wait for the turn."""
LOOK_SECONDS: Final = 30.0
"""How often the wall clock is compared with planned times: it may jump."""
STEP_SECONDS: Final = 1.0
"""A wall clock that goes back by more makes us look at planned times again."""


class Reevaluation:
    """All that waits for a look."""

    __slots__ = ("_agents", "_boundary", "_held", "_look_at", "_mono", "_wall")

    def __init__(self) -> None:
        self._agents: deque[MonitoredAgent] = deque()
        """Their selection or their downtimes may be others."""
        self._held: deque[Key] = deque()
        """Checks whose notice is due and suppressed."""
        self._boundary: float | None = None
        """The next wall time at which a downtime or silence begins or ends."""
        self._mono = 0.0
        self._wall = 0.0
        """The time of the last look at these."""
        self._look_at = 0.0

    def begin(self, agents: Iterable[MonitoredAgent], held: Iterable[Key], boundary: float | None, now: Now) -> None:
        """Look at everything."""
        for watched in agents:
            self.queue(watched)
        self._held = deque(held)
        self._boundary = boundary
        self._mono, self._wall = now.mono, now.wall

    def queue(self, watched: MonitoredAgent) -> None:
        """Look at this agent; twice is once."""
        if not watched.queued:
            watched.queued = True
            self._agents.append(watched)

    def is_due(self, now: Now) -> bool:
        """True if a planned time has come, or the wall clock was set back."""
        return now.wall < self._wall - STEP_SECONDS or (self._boundary is not None and now.wall >= self._boundary)

    def note(self, now: Now) -> None:
        """The clock was compared."""
        self._mono, self._wall = now.mono, now.wall
        self._look_at = now.mono + LOOK_SECONDS

    def take_agents(self, most: int) -> Iterator[MonitoredAgent]:
        """Some of those that wait."""
        for _ in range(min(most, len(self._agents))):
            watched = self._agents.popleft()
            watched.queued = False
            yield watched

    def take_held(self) -> Iterator[Key]:
        """Some of the notices, once no agent waits."""
        if not self._agents:
            for _ in range(min(SLICE, len(self._held))):
                yield self._held.popleft()

    def deadline(self, has_times: bool) -> float:
        """When there is something to do, by the monotonic clock. `has_times`: there are planned times at all."""
        if self._agents or self._held:
            return 0.0
        when = self._look_at if has_times else math.inf
        return when if self._boundary is None else min(when, self._mono + self._boundary - self._wall)
