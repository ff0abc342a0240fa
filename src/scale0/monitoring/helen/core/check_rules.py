"""Check rules: the monitoring configuration, compiled.

They say which agent runs which checks, what a finding means under the thresholds, and which schedule an agent gets.
Rules never change: a new configuration makes new rules.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from fnmatch import translate
from typing import Any, Final, NamedTuple

import msgspec

from scale0.config.monitoring import CheckDefinition, Downtime, NotificationHandler, Silence, reference
from scale0.config.schema import ClientConfig
from scale0.history.events.columns import EventMetric
from scale0.monitoring.checks.thresholds import Range, judge
from scale0.monitoring.helen.core.flapping import FlapRule, rule_of
from scale0.monitoring.protocol.results import MAX_MESSAGE_CHARS, OK, SEVERITY, CheckFinding

MAX_MATCHES_PER_TURN: Final = 50_000
"""Definitions that are matched against agents in one turn."""
MAX_CACHED: Final = 10_000
"""Cached selections, and cached schedules."""

ALIVE: Final = "equus.alive"
"""The check that Helen runs herself: is the agent connected? It is in no agent's schedule."""

Matcher = Callable[[str], object]

_to_json: Final = msgspec.json.Encoder(order="sorted").encode


class _Scheduled(msgspec.Struct, frozen=True):
    name: str
    check: str
    args: dict[str, Any]
    interval: float
    timeout: float


def matcher(globs: Iterable[str]) -> Matcher | None:
    """A test for names that match one of the globs; None: every name matches."""
    patterns = [translate(glob) for glob in globs]
    return re.compile("|".join(patterns)).match if patterns else None


class TargetSelector:
    """Which agents and checks an entry of the configuration applies to."""

    __slots__ = ("_agents", "_checks", "_labels")

    def __init__(self, agents: Iterable[str], checks: Iterable[str], labels: Mapping[str, str]) -> None:
        self._agents = matcher(agents)
        self._checks = matcher(checks)
        self._labels = tuple((name, re.compile(translate(glob)).match) for name, glob in labels.items())

    @property
    def all_checks(self) -> bool:
        """True if it applies to all checks of an agent."""
        return self._checks is None

    def has_agent(self, agent: str, labels: Mapping[str, str]) -> bool:
        if self._agents is not None and not self._agents(agent):
            return False
        for name, matches in self._labels:
            value = labels.get(name)
            if value is None or not matches(value):
                return False
        return True

    def has_check(self, check: str) -> bool:
        return self._checks is None or bool(self._checks(check))


class MetricThreshold(msgspec.Struct, frozen=True, gc=False):
    warn: Range | None
    crit: Range | None


def _range(value: Any) -> Range | None:
    try:
        return None if value is None else Range.parse(value)
    except ValueError:
        # A newer version's configuration may have a syntax that is unknown here: ignore this threshold and use the
        # rest.
        return None


class CompiledCheck:
    """A check definition, compiled."""

    __slots__ = (
        *("alive", "depends_on", "flap_rule", "handlers", "interval", "max_attempts", "name", "scheduled"),
        *("suppress_flapping", "targets", "thresholds", "timeout"),
    )

    def __init__(self, given: CheckDefinition) -> None:
        self.name = given.name
        self.interval = given.interval
        self.timeout = given.timeout
        self.max_attempts = given.max_attempts
        self.flap_rule: FlapRule | None = rule_of(given.flapping)
        self.suppress_flapping = given.flapping.suppress
        self.depends_on = tuple((text, *reference(text)) for text in given.depends_on)
        """Each as written, with its agent (empty: the same agent) and its check."""
        self.handlers = given.handlers
        self.targets = TargetSelector(given.agents, (), given.labels)
        self.thresholds = {
            name: MetricThreshold(_range(pair.get("warn")), _range(pair.get("crit")))
            for name, pair in given.thresholds.items()
        }
        self.scheduled = _Scheduled(given.name, given.check or given.name, given.args, given.interval, given.timeout)
        self.alive = self.scheduled.check == ALIVE
        """Helen runs it, not the agent."""

    def args_json(self) -> bytes:
        """The arguments, encoded as in the schedule."""
        return _to_json(self.scheduled.args)

    def judge(self, finding: CheckFinding) -> tuple[str, str, tuple[EventMetric, ...]]:
        """State, message and metrics of a finding: the worse of the agent's state and the thresholds' state."""
        if not self.thresholds:
            return finding.state, finding.message, finding.metrics
        state: str = finding.state
        why: list[str] = []
        metrics: list[EventMetric] = []
        for metric in finding.metrics:
            limit = self.thresholds.get(metric.name)
            if limit is None:
                metrics.append(metric)
                continue
            found = judge(metric.value, limit.warn, limit.crit)
            if found != OK:
                why.append(f"{metric.name} = {metric.value:g}{metric.unit or ''} is {found}")
                if SEVERITY[found] > SEVERITY[state]:
                    state = found
            metrics.append(_with_limit(metric, limit))
        message = finding.message
        if why and state != finding.state:
            # An agent may send one metric hundreds of times; the message is stored with the state, so it must stay
            # short.
            message = "; ".join([message, *why] if message else why)[:MAX_MESSAGE_CHARS]
        return state, message, tuple(metrics)


def _with_limit(metric: EventMetric, limit: MetricThreshold) -> EventMetric:
    """The metric as it is recorded, with the thresholds that applied if they are single numbers."""
    warn = limit.warn.bound if limit.warn is not None else None
    crit = limit.crit.bound if limit.crit is not None else None
    return EventMetric(
        metric.name,
        metric.value,
        metric.unit,
        metric.warn if warn is None else warn,
        metric.crit if crit is None else crit,
        metric.min,
        metric.max,
    )


class ActiveSuppressions(NamedTuple):
    """The downtimes and silences in force at one time."""

    downtimes: tuple[tuple[Downtime, TargetSelector], ...]
    silences: tuple[tuple[Silence, TargetSelector], ...]


class CheckRules:
    def __init__(
        self,
        checks: Iterable[CheckDefinition] = (),
        handlers: Iterable[NotificationHandler] = (),
        downtimes: Iterable[Downtime] = (),
        silences: Iterable[Silence] = (),
    ) -> None:
        self.definitions = {given.name: CompiledCheck(given) for given in checks if given.enabled}
        self.alive = tuple(one for one in self.definitions.values() if one.alive)
        """The checks that Helen runs herself."""
        self.handlers = {handler.name: handler for handler in handlers}
        self.downtimes = tuple((one, TargetSelector(one.agents, one.checks, one.labels)) for one in downtimes)
        self.silences = tuple((one, TargetSelector(one.agents, one.checks, one.labels)) for one in silences)
        self._active = ActiveSuppressions((), ())
        self._since = self._until = 0.0
        """The wall times between which `_active` is valid."""
        self._schedules: dict[tuple[str, ...], bytes] = {}
        self._selections: dict[tuple[str, ...], dict[str, CompiledCheck]] = {}

    @staticmethod
    def of(part: ClientConfig) -> CheckRules:
        return CheckRules(part.checks, part.handlers, part.downtimes, part.silences)

    @property
    def agents_per_turn(self) -> int:
        """For how many agents `select` may be called in one turn: fewer if there are thousands of definitions."""
        return max(1, MAX_MATCHES_PER_TURN // max(1, len(self.definitions) + len(self.downtimes) + len(self.silences)))

    def active_at(self, wall: float) -> ActiveSuppressions:
        """The downtimes and silences in force at that time, cached until the next boundary."""
        if not self._since <= wall < self._until:
            self._since = max((time for time in self._times() if time <= wall), default=-math.inf)
            self._until = self.next_boundary(wall) or math.inf
            self._active = ActiveSuppressions(
                tuple(pair for pair in self.downtimes if pair[0].starts <= wall < pair[0].ends),
                tuple(pair for pair in self.silences if not pair[0].ends or wall < pair[0].ends),
            )
        return self._active

    def select(self, agent: str, labels: Mapping[str, str]) -> dict[str, CompiledCheck]:
        """The checks that an agent runs, by name, in the order of the configuration."""
        found = {name: one for name, one in self.definitions.items() if one.targets.has_agent(agent, labels)}
        if len(self._selections) >= MAX_CACHED:
            self._selections.clear()
        # Thousands of agents have the same few selections, and share them.
        return self._selections.setdefault(tuple(found), found)

    def schedule(self, selected: Mapping[str, CompiledCheck]) -> bytes:
        """The schedule of these checks as JSON; equal checks give equal bytes, whatever else changed."""
        names = tuple(selected)
        body = self._schedules.get(names)
        if body is None:
            checks = _to_json([one.scheduled for one in selected.values() if not one.alive])
            body = b'{"version":%d,"checks":%b}' % (zlib.crc32(checks), checks)
            if len(self._schedules) >= MAX_CACHED:
                self._schedules.clear()
            self._schedules[names] = body
        return body

    @property
    def has_times(self) -> bool:
        """True if there is a downtime, or a silence with an end."""
        return bool(self.downtimes) or any(one.ends for one, _ in self.silences)

    def next_boundary(self, wall: float) -> float | None:
        """When the next downtime or silence begins or ends."""
        return min((time for time in self._times() if time > wall), default=None)

    def _times(self) -> list[float]:
        """All begins and ends, unordered."""
        times = [time for one, _ in self.downtimes for time in (one.starts, one.ends)]
        return times + [one.ends for one, _ in self.silences]
