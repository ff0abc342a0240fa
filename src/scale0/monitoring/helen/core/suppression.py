"""What keeps a notice from being sent: planned downtimes, silences, a dependency that is down, flapping.

Lives here: `causes`, and which downtimes cover an agent. Never here: notices, or events. Invariant: nothing here stops
a check or changes a state; whatever suppresses is named, so that people see why they heard nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from scale0.config.monitoring import Downtime
from scale0.monitoring.helen.core.check_rules import CheckRules, CompiledCheck
from scale0.monitoring.helen.core.check_state import CheckState

Find = Callable[[str, str], CheckState | None]
"""The state of a check of an agent, if it is known here."""

Covered = tuple[str, str]
"""A downtime's name, and the check that it covers; blank: all checks of the agent."""


def dependencies_down(agent: str, definition: CompiledCheck, find: Find) -> list[str]:
    """The dependencies that are down; a check that names itself does not excuse itself."""
    out: list[str] = []
    for text, where, check in definition.depends_on:
        if (where or agent) == agent and check == definition.name:
            continue
        state = find(where or agent, check)
        if state is not None and state.down:
            out.append(text)
    return out


def causes(
    book: CheckRules,
    agent: str,
    labels: Mapping[str, str],
    definition: CompiledCheck,
    state: CheckState,
    find: Find,
    wall: float,
) -> tuple[str, ...]:
    """Everything that suppresses a notice of this check now, each in two words; nothing: it may be sent."""
    name = definition.name
    out = [f"depends_on {text}" for text in dependencies_down(agent, definition, find)]
    downtimes, silences = book.at_work(wall)
    for downtime, reach in downtimes:
        if reach.has_agent(agent, labels) and reach.has_check(name):
            out.append(f"downtime {downtime.name}")
    for silence, reach in silences:
        if reach.has_agent(agent, labels) and reach.has_check(name):
            out.append(f"silence {silence.name}")
    if definition.suppress_flapping and state.flapping:
        out.append("flapping")
    return tuple(out)


def covered(
    book: CheckRules, agent: str, labels: Mapping[str, str], checks: Iterable[str], wall: float
) -> dict[Covered, Downtime]:
    """The downtimes that cover an agent, or single checks of it, now."""
    out: dict[Covered, Downtime] = {}
    for downtime, reach in book.at_work(wall).downtimes:
        if not reach.has_agent(agent, labels):
            continue
        if reach.all_checks:
            out[downtime.name, ""] = downtime
        else:
            out.update({(downtime.name, check): downtime for check in checks if reach.has_check(check)})
    return out
