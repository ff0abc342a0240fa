"""The book: the configuration of monitoring, made ready for use.

Lives here: `CheckRules` and `CompiledCheck`: which agent runs what, what a finding means under a definition's
thresholds, and the schedule that an agent gets. Never here: a state, or the time. Invariant: a book never changes;
another configuration is another book.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from fnmatch import translate
from typing import Any, Final, NamedTuple

import msgspec

from scale0.config.monitoring import CheckDefinition, Downtime, Reaction, Silence, reference
from scale0.config.schema import ClientConfig
from scale0.history.events.columns import EventMetric
from scale0.monitoring.checks.thresholds import Range, judge
from scale0.monitoring.helen.core.flapping import FlapRule, rule_of
from scale0.monitoring.protocol.results import MAX_MESSAGE_CHARS, OK, SEVERITY, CheckFinding

MAX_MATCHES_PER_TURN: Final = 50_000
"""Definitions that are held against agents in one turn: others wait for it."""
MAX_CACHED: Final = 10_000
"""Selections, and their schedules, that are kept ready."""

ALIVE: Final = "equus.alive"
"""The check that Helen runs herself: is the agent connected? No agent gets it in its schedule."""

Matcher = Callable[[str], object]

_to_json: Final = msgspec.json.Encoder(order="sorted").encode


class _Scheduled(msgspec.Struct, frozen=True):
    """One check of a schedule."""

    name: str
    check: str
    args: dict[str, Any]
    interval: float
    timeout: float


def matcher(globs: Iterable[str]) -> Matcher | None:
    """A test for names that one of the globs matches; None: every name."""
    patterns = [translate(glob) for glob in globs]
    return re.compile("|".join(patterns)).match if patterns else None


class TargetSelector:
    """Which agents and checks something is for."""

    __slots__ = ("_agents", "_checks", "_labels")

    def __init__(self, agents: Iterable[str], checks: Iterable[str], labels: Mapping[str, str]) -> None:
        self._agents = matcher(agents)
        self._checks = matcher(checks)
        self._labels = tuple((name, re.compile(translate(glob)).match) for name, glob in labels.items())

    @property
    def all_checks(self) -> bool:
        """True if no check of an agent is left out."""
        return self._checks is None

    def has_agent(self, agent: str, labels: Mapping[str, str]) -> bool:
        """True for an agent that it is for."""
        if self._agents is not None and not self._agents(agent):
            return False
        for name, matches in self._labels:
            value = labels.get(name)
            if value is None or not matches(value):
                return False
        return True

    def has_check(self, check: str) -> bool:
        """True for a check that it is for."""
        return self._checks is None or bool(self._checks(check))


class MetricThreshold(msgspec.Struct, frozen=True, gc=False):
    """The ranges of one metric."""

    warn: Range | None
    crit: Range | None


def _range(value: Any) -> Range | None:
    try:
        return None if value is None else Range.parse(value)
    except ValueError:
        # A document that came from another version may know more: one limit less is better than no book.
        return None


class CompiledCheck:
    """A check's definition, made ready."""

    __slots__ = (
        *("alive", "depends_on", "flap_rule", "handlers", "interval", "thresholds", "max_attempts"),
        *("name", "targets", "scheduled", "suppress_flapping", "timeout"),
    )

    def __init__(self, given: CheckDefinition) -> None:
        self.name = given.name
        self.interval = given.interval
        self.timeout = given.timeout
        self.max_attempts = given.max_attempts
        self.flap_rule: FlapRule | None = rule_of(given.flapping)
        self.suppress_flapping = given.flapping.suppress
        self.depends_on = tuple((text, *reference(text)) for text in given.depends_on)
        """Each as it is written, its agent (blank: the same one) and its check."""
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
        """Its arguments, as the schedule has them."""
        return _to_json(self.scheduled.args)

    def judge(self, finding: CheckFinding) -> tuple[str, str, tuple[EventMetric, ...]]:
        """State, message and metrics of a finding: the worst of what the agent says and what the limits say."""
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
            # An agent may send one metric hundreds of times: a state is kept, and its message with it.
            message = "; ".join([message, *why] if message else why)[:MAX_MESSAGE_CHARS]
        return state, message, tuple(metrics)


def _with_limit(metric: EventMetric, limit: MetricThreshold) -> EventMetric:
    """The metric as it is recorded: the limits that counted, where they are one number."""
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
    """The downtimes and silences that hold at one time."""

    downtimes: tuple[tuple[Downtime, TargetSelector], ...]
    silences: tuple[tuple[Silence, TargetSelector], ...]


class CheckRules:
    """One configuration of monitoring."""

    __slots__ = (
        *("_active", "_schedules", "_selections", "_since", "_until", "alive", "definitions", "downtimes", "handlers"),
        "silences",
    )

    def __init__(
        self,
        checks: Iterable[CheckDefinition] = (),
        handlers: Iterable[Reaction] = (),
        downtimes: Iterable[Downtime] = (),
        silences: Iterable[Silence] = (),
    ) -> None:
        self.definitions = {given.name: CompiledCheck(given) for given in checks if given.enabled}
        self.alive = tuple(one for one in self.definitions.values() if one.alive)
        """Those that Helen runs herself."""
        self.handlers = {handler.name: handler for handler in handlers}
        self.downtimes = tuple((one, TargetSelector(one.agents, one.checks, one.labels)) for one in downtimes)
        self.silences = tuple((one, TargetSelector(one.agents, one.checks, one.labels)) for one in silences)
        self._active = ActiveSuppressions((), ())
        self._since = self._until = 0.0
        """Between these wall times it is that."""
        self._schedules: dict[tuple[str, ...], bytes] = {}
        self._selections: dict[tuple[str, ...], dict[str, CompiledCheck]] = {}

    @staticmethod
    def of(part: ClientConfig) -> CheckRules:
        """The book of what CHECKCONFIG delivers to a Helen."""
        return CheckRules(part.checks, part.handlers, part.downtimes, part.silences)

    @property
    def agents_per_turn(self) -> int:
        """How many agents `select` may choose for in one turn: where there are thousands of definitions, fewer."""
        return max(1, MAX_MATCHES_PER_TURN // max(1, len(self.definitions) + len(self.downtimes) + len(self.silences)))

    def active_at(self, wall: float) -> ActiveSuppressions:
        """What holds at that time; a document may be full of what is long over."""
        if not self._since <= wall < self._until:
            self._since = max((time for time in self._times() if time <= wall), default=-math.inf)
            self._until = self.next_boundary(wall) or math.inf
            self._active = ActiveSuppressions(
                tuple(pair for pair in self.downtimes if pair[0].starts <= wall < pair[0].ends),
                tuple(pair for pair in self.silences if not pair[0].ends or wall < pair[0].ends),
            )
        return self._active

    def select(self, agent: str, labels: Mapping[str, str]) -> dict[str, CompiledCheck]:
        """The checks that an agent runs, by name, in the order of the document."""
        found = {name: one for name, one in self.definitions.items() if one.targets.has_agent(agent, labels)}
        if len(self._selections) >= MAX_CACHED:
            self._selections.clear()
        # Thousands of agents have the same few selections: they share them.
        return self._selections.setdefault(tuple(found), found)

    def schedule(self, selected: Mapping[str, CompiledCheck]) -> bytes:
        """The JSON of the schedule of these checks; equal content makes equal bytes, whatever else changed."""
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
        """True if anything in it begins or ends."""
        return bool(self.downtimes) or any(one.ends for one, _ in self.silences)

    def next_boundary(self, wall: float) -> float | None:
        """When the next downtime or silence begins or ends."""
        return min((time for time in self._times() if time > wall), default=None)

    def _times(self) -> list[float]:
        """When something begins or ends, in no order."""
        times = [time for one, _ in self.downtimes for time in (one.starts, one.ends)]
        return times + [one.ends for one, _ in self.silences]
