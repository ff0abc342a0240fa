"""Planned downtimes of one agent: which were recorded as begun, and which end.

Lives here: `look`, which compares what was recorded with the book and the clock. Never here: what a downtime keeps back
(`suppression`). Invariant: each start that was recorded gets one end; one that is noticed soon enough happened when it
was planned.
"""

from __future__ import annotations

from typing import Final

from scale0.config.monitoring import Downtime
from scale0.history.events.checks import DowntimeEnded, DowntimeStarted
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.monitoring.helen.core.check_rules import CheckRules
from scale0.monitoring.helen.core.monitored_agent import MonitoredAgent
from scale0.monitoring.helen.core.suppression import Covered, covered

ON_TIME_SECONDS: Final = 5.0
"""A downtime that is noticed this soon after its start or end began or ended when it was planned to."""


def look(book: CheckRules, watched: MonitoredAgent, now: Now, step: Effects) -> bool:
    """Record what began and what ended; True: the agent's own row is another."""
    changed = False
    wanted = covered(book, watched.agent, watched.labels, watched.selected, now.wall)
    for one in [one for one in watched.downtimes if one not in wanted]:
        end(watched, one, now, step)
        changed = True
    for one, downtime in wanted.items():
        ends = watched.downtimes.get(one)
        if ends == downtime.ends:
            continue
        if ends is not None:
            end(watched, one, now, step)
        _start(watched, one, downtime, ends is None, now, step)
        changed = True
    return changed


def _start(watched: MonitoredAgent, one: Covered, downtime: Downtime, is_new: bool, now: Now, step: Effects) -> None:
    name, check = one
    watched.downtimes[one] = downtime.ends
    on_time = is_new and now.wall - downtime.starts <= ON_TIME_SECONDS
    at = downtime.starts if on_time else None
    step.record(DowntimeStarted(name, watched.agent, check, downtime.ends, downtime.reason, downtime.author, at))


def end(watched: MonitoredAgent, one: Covered, now: Now, step: Effects) -> None:
    """It is over."""
    ends = watched.downtimes.pop(one)
    on_time = 0.0 <= now.wall - ends <= ON_TIME_SECONDS
    step.record(DowntimeEnded(one[0], watched.agent, one[1], ends, ends if on_time else None))
