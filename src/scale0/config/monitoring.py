"""The monitoring sections of the network document: checks, handlers, downtimes and silences.

An entry is identified by its name alone. A valid document has no circular dependency, because two checks that depend on
each other would suppress each other's notices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from scale0.config import value_types as types
from scale0.config.secret_references import reference_errors
from scale0.config.tree import duplicates

MIN_INTERVAL: Final = 0.1
"""Seconds between two runs of a check: an agent must not become a load generator."""
MAX_INTERVAL: Final = types.MAX_SECONDS
MAX_ATTEMPTS: Final = 1_000
"""Attempts of a check before a problem is hard, and of a notice."""
MAX_DEPENDENCIES: Final = 100_000
"""The most (agent, check) pairs that are connected by `depends_on`."""
MAX_WALL: Final = 253_402_300_800.0
"""The year 10,000: below it times are exact in microseconds."""

Interval = Annotated[float, Meta(ge=MIN_INTERVAL, le=MAX_INTERVAL)]
Attempts = Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)]
Percent = Annotated[float, Meta(ge=0, le=100)]
SomePercent = Annotated[float, Meta(ge=0.01, le=100)]
Wall = Annotated[float, Meta(ge=0, le=MAX_WALL)]
"""Seconds since the Unix epoch."""
Formula = Literal["icinga", "nagios", "sensu", "off"]
ReactionType = Literal["webhook", "command", "email", "task"]
StateName = Literal["ok", "warning", "critical", "unknown"]


class Flapping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a check changes state too often; a missing key means the default of the formula."""

    formula: Formula = "icinga"
    start: SomePercent | None = None
    end: Percent | None = None
    suppress: bool = False
    """Send no notices while the check flaps."""


class CheckDefinition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One check on every agent that it selects."""

    name: types.MonitoringName
    check: types.MonitoringNameOrBlank = ""
    """Its name on the agent; blank: `name`."""
    args: dict[str, Any] = {}
    interval: Interval = 60.0
    timeout: types.CheckSeconds = 10.0
    agents: tuple[types.Glob, ...] = ()
    labels: dict[types.LabelName, types.Line] = {}
    thresholds: types.Thresholds = {}
    max_attempts: Attempts = 3
    flapping: Flapping = Flapping()
    depends_on: tuple[types.Reference, ...] = ()
    handlers: tuple[types.MonitoringName, ...] = ()
    enabled: bool = True


class NotificationHandler(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of `handlers`: how to notify somebody of a hard state."""

    name: types.MonitoringName
    type: ReactionType
    url: types.UrlOrBlank = ""
    headers: dict[types.LabelName, types.Line] = {}
    command: types.IdentityOrBlank = ""
    """A name from Helen's own file: the replicated document never contains a program to run."""
    to: tuple[types.Email, ...] = ()
    method: types.ServiceNameOrBlank = ""
    params: dict[str, Any] = {}
    check_again: bool = True
    states: tuple[StateName, ...] = ()
    """Empty: all four; for a task all but `ok`, because there is nothing to repair."""
    limit: types.Count = 60
    period: types.Seconds = 3600.0
    max_attempts: Attempts = 5
    backoff: types.Seconds = 10.0
    timeout: types.Seconds = 30.0


class Downtime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A planned downtime: notices are suppressed, and availability is not affected."""

    name: types.MonitoringName
    agents: tuple[types.Glob, ...] = ()
    checks: tuple[types.Glob, ...] = ()
    labels: dict[types.LabelName, types.Line] = {}
    starts: Wall
    ends: Wall
    reason: types.Line = ""
    author: types.Line = ""


class Silence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Notices that are suppressed for now."""

    name: types.MonitoringName
    agents: tuple[types.Glob, ...] = ()
    checks: tuple[types.Glob, ...] = ()
    labels: dict[types.LabelName, types.Line] = {}
    ends: Wall = 0.0
    """0: until it is removed."""
    reason: types.Line = ""
    author: types.Line = ""


NEEDED: Final[dict[str, str]] = {"webhook": "url", "command": "command", "email": "to", "task": "method"}
"""The required key of each handler type."""

ANY_AGENT: Final = ""
"""An agent that no dependency names."""


def matches_any(globs: tuple[str, ...], name: str) -> bool:
    """True if one of the globs matches; no globs match everything."""
    return not globs or any(fnmatchcase(name, glob) for glob in globs)


def matches_labels(wanted: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """True if every wanted label is there, with a value that its glob matches."""
    return all(name in labels and fnmatchcase(labels[name], glob) for name, glob in wanted.items())


def reference(text: str) -> tuple[str, str]:
    """The agent and the check that a dependency names; no agent: the same one."""
    agent, slash, check = text.partition("/")
    return (agent, check) if slash else (ANY_AGENT, agent)


Node = tuple[str, str]


def _edges(node: Node, checks: Mapping[str, CheckDefinition]) -> Iterator[Node]:
    """What a check on an agent depends on; a check that names itself on its own agent depends on nothing there."""
    agent, name = node
    definition = checks.get(name)
    if definition is None or (agent and not matches_any(definition.agents, agent)):
        return
    for text in definition.depends_on:
        where, check = reference(text)
        if not where:
            yield agent, check
        elif (where, check) != node:
            yield where, check


def _cycles(roots: Iterable[Node], checks: Mapping[str, CheckDefinition]) -> set[str] | None:
    """The checks in dependency cycles; None: there are too many nodes.

    Every node is visited once (Tarjan's algorithm, without recursion): a document must not keep a broker busy.
    """
    order: dict[Node, int] = {}
    lowest: dict[Node, int] = {}
    path: dict[Node, None] = {}
    """Nodes whose component is not complete, in the order of their visit."""
    found: set[str] = set()
    for root in roots:
        if root in order:
            continue
        stack: list[tuple[Node, list[Node]]] = []
        arriving: Node | None = root
        while arriving is not None or stack:
            if arriving is not None:
                if len(order) >= MAX_DEPENDENCIES:
                    return None
                order[arriving] = lowest[arriving] = len(order)
                path[arriving] = None
                stack.append((arriving, list(_edges(arriving, checks))))
                arriving = None
            node, left = stack[-1]
            while left and arriving is None:
                other = left.pop()
                if other not in order:
                    arriving = other
                elif other in path:
                    lowest[node] = min(lowest[node], order[other])
                    if other == node:
                        found.add(node[1])
            if arriving is None:
                stack.pop()
                _leave(node, stack, order, lowest, path, found)
    return found


def _leave(
    node: Node,
    stack: list[tuple[Node, list[Node]]],
    order: Mapping[Node, int],
    lowest: dict[Node, int],
    path: dict[Node, None],
    found: set[str],
) -> None:
    """All dependencies of this node were visited: if it is the root of its component, that is complete."""
    if stack:
        above = stack[-1][0]
        lowest[above] = min(lowest[above], lowest[node])
    if lowest[node] != order[node]:
        return
    component: list[Node] = []
    while not component or component[-1] != node:
        component.append(path.popitem()[0])
    if len(component) > 1:
        found.update(name for _, name in component)


def _dependency_errors(checks: Mapping[str, CheckDefinition]) -> list[str]:
    out: list[str] = []
    # A cycle stays with one agent, or goes through a check that is named with its agent.
    roots: dict[Node, None] = {(ANY_AGENT, name): None for name, definition in checks.items() if definition.depends_on}
    for definition in checks.values():
        for text in definition.depends_on:
            agent, check = reference(text)
            roots[agent, check] = None
            if check not in checks:
                out.append(f"checks.{definition.name}.depends_on: there is no check {check}")
    cycles = _cycles(roots, checks)
    if cycles is None:
        return [*out, f"checks: more than {MAX_DEPENDENCIES} dependencies of checks on agents, too many to check"]
    return out + [f"checks.{name}.depends_on: leads back to {name}" for name in checks if name in cycles]


def _check_errors(definition: CheckDefinition, handlers: frozenset[str]) -> list[str]:
    key = f"checks.{definition.name}"
    out = [f"{key}.handlers: there is no handler {name}" for name in definition.handlers if name not in handlers]
    out += duplicates(f"{key}.handlers", definition.handlers)
    out += reference_errors(f"{key}.args", definition.args)
    flapping = definition.flapping
    if flapping.start is not None and flapping.end is not None and flapping.end > flapping.start:
        out.append(f"{key}.flapping: end is above start")
    return out


def check_monitoring(
    checks: tuple[CheckDefinition, ...],
    handlers: tuple[NotificationHandler, ...],
    downtimes: tuple[Downtime, ...],
    silences: tuple[Silence, ...],
) -> list[str]:
    """The errors between entries, though each key by itself is valid."""
    out: list[str] = []
    sections: dict[str, Iterable[CheckDefinition | NotificationHandler | Downtime | Silence]] = {
        "checks": checks,
        "handlers": handlers,
        "downtimes": downtimes,
        "silences": silences,
    }
    for key, entries in sections.items():
        out += duplicates(key, (entry.name for entry in entries))
    known = frozenset(handler.name for handler in handlers)
    for definition in checks:
        out += _check_errors(definition, known)
    out += _dependency_errors({definition.name: definition for definition in checks})
    for handler in handlers:
        needed = NEEDED[handler.type]
        if not getattr(handler, needed):
            out.append(f"handlers.{handler.name}: a {handler.type} needs {needed}")
        out += reference_errors(f"handlers.{handler.name}.headers", handler.headers)
    out += [f"downtimes.{one.name}: starts is not before ends" for one in downtimes if one.starts >= one.ends]
    return out
