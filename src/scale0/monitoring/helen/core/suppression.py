"""What suppresses a notification: planned downtimes, silences, a dependency that is down, flapping, and another Helen
who may have sent it.

Suppression never stops a check and never changes a state. Each recorded start of a downtime gets one recorded end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from scale0.config.monitoring import Downtime
from scale0.history.events.checks import DowntimeEnded, DowntimeStarted
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.monitoring.helen.core.check_rules import CheckRules, CompiledCheck
from scale0.monitoring.helen.core.check_state import CheckState
from scale0.monitoring.helen.core.monitored_agent import Covered, MonitoredAgent
from scale0.monitoring.protocol.results import OK

ON_TIME_SECONDS: Final = 5.0
"""A change that is noticed this soon is recorded with its planned time."""

Find = Callable[[str, str], CheckState | None]
"""The state of a check of an agent, if it is known here."""


def dependencies_down(agent: str, definition: CompiledCheck, find: Find) -> list[str]:
    """The dependencies that are down; a check never depends on itself."""
    out: list[str] = []
    for text, where, check in definition.depends_on:
        if (where or agent) == agent and check == definition.name:
            continue
        state = find(where or agent, check)
        if state is not None and state.down:
            out.append(text)
    return out


def causes(
    rules: CheckRules,
    agent: str,
    labels: Mapping[str, str],
    definition: CompiledCheck,
    state: CheckState,
    find: Find,
    wall: float,
) -> tuple[str, ...]:
    """Everything that suppresses a notification of this check now; empty: it may be sent."""
    name = definition.name
    out = [f"depends_on {text}" for text in dependencies_down(agent, definition, find)]
    downtimes, silences = rules.active_at(wall)
    for downtime, targets in downtimes:
        if targets.has_agent(agent, labels) and targets.has_check(name):
            out.append(f"downtime {downtime.name}")
    for silence, targets in silences:
        if targets.has_agent(agent, labels) and targets.has_check(name):
            out.append(f"silence {silence.name}")
    if definition.suppress_flapping and state.flapping:
        out.append("flapping")
    if state.doubtful and state.state == OK:
        out.append(f"helen {state.doubtful}")
    return tuple(out)


def covered(
    rules: CheckRules, agent: str, labels: Mapping[str, str], checks: Iterable[str], wall: float
) -> dict[Covered, Downtime]:
    """The downtimes that cover an agent, or single checks of it, now."""
    out: dict[Covered, Downtime] = {}
    for downtime, targets in rules.active_at(wall).downtimes:
        if not targets.has_agent(agent, labels):
            continue
        if targets.all_checks:
            out[downtime.name, ""] = downtime
        else:
            out.update({(downtime.name, check): downtime for check in checks if targets.has_check(check)})
    return out


def update_downtimes(rules: CheckRules, monitored: MonitoredAgent, now: Now, effects: Effects) -> bool:
    """Record the downtimes that began or ended; True: the agent's own row changed."""
    changed = False
    wanted = covered(rules, monitored.agent, monitored.labels, monitored.selected, now.wall)
    for one in [one for one in monitored.downtimes if one not in wanted]:
        end_downtime(monitored, one, now, effects)
        changed = True
    for one, downtime in wanted.items():
        ends = monitored.downtimes.get(one)
        if ends == downtime.ends:
            continue
        if ends is not None:
            end_downtime(monitored, one, now, effects)
        _start_downtime(monitored, one, downtime, ends is None, now, effects)
        changed = True
    return changed


def _start_downtime(
    monitored: MonitoredAgent, one: Covered, downtime: Downtime, is_new: bool, now: Now, effects: Effects
) -> None:
    name, check = one
    monitored.downtimes[one] = downtime.ends
    on_time = is_new and now.wall - downtime.starts <= ON_TIME_SECONDS
    at = downtime.starts if on_time else None
    effects.record(DowntimeStarted(name, monitored.agent, check, downtime.ends, downtime.reason, downtime.author, at))


def end_downtime(monitored: MonitoredAgent, one: Covered, now: Now, effects: Effects) -> None:
    ends = monitored.downtimes.pop(one)
    on_time = 0.0 <= now.wall - ends <= ON_TIME_SECONDS
    effects.record(DowntimeEnded(one[0], monitored.agent, one[1], ends, ends if on_time else None))
