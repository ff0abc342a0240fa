"""Evaluation of results: states, incidents, downtimes, and the notifications that follow.

Everything that a result changes is in the commit of its event. Suppression applies to notifications, never to events or
states. A result that is older than the last one is recorded and changes no state.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from scale0.config.schema import ClientConfig
from scale0.history.events.checks import CheckAnswered, CheckRemoved, CheckStateChanged, IncidentClosed
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.monitoring.helen.core import views
from scale0.monitoring.helen.core.agent_bundles import (
    EvaluationBundle,
    OpenedEvaluation,
    export_evaluation,
    import_evaluation,
)
from scale0.monitoring.helen.core.check_rules import CheckRules, CompiledCheck
from scale0.monitoring.helen.core.check_state import CheckState, to_row
from scale0.monitoring.helen.core.incidents import REMOVED, UP, Incident, Incidents, Key
from scale0.monitoring.helen.core.monitored_agent import MonitoredAgent, StoredChecks, config_row, read_states
from scale0.monitoring.helen.core.notifications import Outbox, notification_for, wants
from scale0.monitoring.helen.core.suppression import causes, end_downtime, update_downtimes
from scale0.monitoring.protocol.results import OK, CheckFinding
from scale0.storage.check_rows import DropCheckState, PutCheckState

__all__ = ["Evaluation", "IncomingResult", "StoredChecks"]

SWEEP_SECONDS: Final = 300.0
"""How often old incidents are swept, some at a time."""
MAX_RUN_SECONDS: Final = 1e9
"""A longer run time is not believed."""

RESUME_SECONDS: Final = 10.0
"""How often deferred decisions are tried again."""
SLICE: Final = 500
"""Agents, and held notifications, that are re-evaluated in one turn."""
CLOCK_CHECK_SECONDS: Final = 30.0
"""How often the wall clock is compared with planned times: it may be set."""
CLOCK_STEP_SECONDS: Final = 1.0
"""If the wall clock goes back by more, planned times are evaluated again."""


class IncomingResult(msgspec.Struct, frozen=True, gc=False):
    """A result and its origin."""

    check: str
    """The name of the definition; of a check that a client requested, the name of the check."""
    finding: CheckFinding
    ref: str
    at: float
    """When it was, wall time here."""
    scheduled: bool


class Reevaluation:
    """What must be re-evaluated after planned times or the configuration changed: agents, then held notifications."""

    def __init__(self) -> None:
        self._agents: deque[MonitoredAgent] = deque()
        """Agents whose selection or downtimes may have changed."""
        self._held: deque[Key] = deque()
        """Checks with a held notification."""
        self._boundary: float | None = None
        """The next wall time at which a downtime or silence begins or ends."""
        self._mono = 0.0
        self._wall = 0.0
        """When planned times were last compared with the clock."""
        self._check_clock_at = 0.0

    def begin(self, agents: Iterable[MonitoredAgent], held: Iterable[Key], boundary: float | None, now: Now) -> None:
        for monitored in agents:
            self.queue(monitored)
        self._held = deque(held)
        self._boundary = boundary
        self._mono, self._wall = now.mono, now.wall

    def queue(self, monitored: MonitoredAgent) -> None:
        """Re-evaluate this agent, once."""
        if not monitored.queued:
            monitored.queued = True
            self._agents.append(monitored)

    def is_due(self, now: Now) -> bool:
        """True if a planned time has come, or the wall clock was set back."""
        return now.wall < self._wall - CLOCK_STEP_SECONDS or (self._boundary is not None and now.wall >= self._boundary)

    def note_clock(self, now: Now) -> None:
        self._mono, self._wall = now.mono, now.wall
        self._check_clock_at = now.mono + CLOCK_CHECK_SECONDS

    def take_agents(self, most: int) -> Iterator[MonitoredAgent]:
        """Take some agents from the queue."""
        for _ in range(min(most, len(self._agents))):
            monitored = self._agents.popleft()
            monitored.queued = False
            yield monitored

    def take_held(self) -> Iterator[Key]:
        """Take some held notifications, once no agent is left."""
        if not self._agents:
            for _ in range(min(SLICE, len(self._held))):
                yield self._held.popleft()

    def deadline(self, has_times: bool) -> float:
        """The monotonic time of the next work. `has_times`: there are planned times."""
        if self._agents or self._held:
            return 0.0
        when = self._check_clock_at if has_times else math.inf
        return when if self._boundary is None else min(when, self._mono + self._boundary - self._wall)


class _AgentCheck(NamedTuple):
    """A check of an agent."""

    monitored: MonitoredAgent
    definition: CompiledCheck
    state: CheckState

    @property
    def key(self) -> Key:
        return self.monitored.agent, self.definition.name


class Evaluation:
    """The checks of all agents of one Helen."""

    def __init__(self, rows: StoredChecks) -> None:
        self._agents, self._config = read_states(rows.states)
        self._config_changed = False
        self._rules = CheckRules() if self._config is None else CheckRules.of(self._config)
        self._incidents = Incidents(rows.incidents)
        self._outbox = Outbox(rows.notices)
        self._outbox.configure(self._rules.handlers)
        self._changed_states: dict[Key, CheckState] = {}
        """States that this turn changed."""
        self._changed_agents: dict[str, MonitoredAgent] = {}
        """Agents whose own row this turn changed."""
        self._held: dict[Key, None] = {}
        """Checks with a notification that is due and suppressed."""
        self._reevaluation = Reevaluation()
        self.decides: Callable[[str, Now], bool] = lambda _agent, _now: True
        """False: another Helen may have this agent, so nothing is closed or notified without its results."""
        self._resume_at = math.inf
        """When to do what was deferred because another Helen decides."""
        self._sweep_at = 0.0
        self._wall = 0.0
        self._started = False
        for monitored in self._agents.values():
            self._incidents.note_ends(monitored.closed)
            for check, state in monitored.states.items():
                if state.held:
                    self._held[monitored.agent, check] = None

    @property
    def configured(self) -> bool:
        """False until the first configuration: until then agents keep the schedules that they have."""
        return self._config is not None

    def configure(self, config: ClientConfig, now: Now, effects: Effects) -> None:
        """Use a new configuration; an equal one changes nothing."""
        if self._config is not None and _monitoring(self._config) == _monitoring(config):
            return
        self._config, self._config_changed = config, True
        self._rules = CheckRules.of(config)
        self._outbox.configure(self._rules.handlers)
        self._reevaluate_all(now)

    @property
    def slice(self) -> int:
        """The number of agents whose checks may be selected in one turn."""
        return min(SLICE, self._rules.agents_per_turn)

    def _reevaluate_all(self, now: Now) -> None:
        self._reevaluation.begin(self._agents.values(), self._held, self._rules.next_boundary(now.wall), now)

    def _update_agent(self, agent: str, labels: dict[str, str]) -> MonitoredAgent:
        """The monitored agent, with the checks that its labels and the current rules select."""
        monitored = self._agents.get(agent)
        if monitored is None:
            self._agents[agent] = monitored = MonitoredAgent(agent)
            self._mark_changed(monitored)
        elif monitored.rules is self._rules and monitored.labels == labels:
            # Equal labels: remember this object, so that the next comparison is by identity.
            monitored.labels = labels
            return monitored
        if monitored.labels != labels:
            self._mark_changed(monitored)
        monitored.labels = labels
        self._select_checks(monitored)
        self._reevaluation.queue(monitored)
        return monitored

    def _select_checks(self, monitored: MonitoredAgent) -> None:
        monitored.selected = self._rules.select(monitored.agent, monitored.labels)
        monitored.rules = self._rules

    def _mark_changed(self, monitored: MonitoredAgent) -> None:
        self._changed_agents[monitored.agent] = monitored

    def schedule_for(self, agent: str, labels: dict[str, str]) -> bytes:
        """The schedule of an agent, as JSON. Keeps a reference to `labels`: the caller must not modify it."""
        return self._rules.schedule(self._update_agent(agent, labels).selected)

    def process_result(
        self, agent: str, labels: dict[str, str], answered: IncomingResult, now: Now, effects: Effects
    ) -> None:
        """Evaluate a result. Keeps a reference to `labels`: the caller must not modify it."""
        monitored = self._agents.get(agent)
        if monitored is None or monitored.labels is not labels or monitored.rules is not self._rules:
            monitored = self._update_agent(agent, labels)
        name, finding, at, wall = answered.check, answered.finding, answered.at, now.wall
        if not 0.0 <= at <= wall:
            at = wall
        seconds = finding.seconds
        if seconds is not None and not 0.0 <= seconds <= MAX_RUN_SECONDS:
            seconds = None
        definition = monitored.selected.get(name) if answered.scheduled else None
        if definition is None:
            effects.events.append(
                CheckAnswered(
                    agent, name, answered.ref, at, finding.state, seconds, finding.metrics, finding.message, False
                )
            )
            return
        found, message, metrics = definition.judge(finding)
        # fmt: off
        effects.events.append(CheckAnswered(
            agent, name, answered.ref, at, found, seconds, metrics, message,
            True, definition.interval, definition.timeout, definition.max_attempts,
        ))
        # fmt: on
        state = monitored.states.get(name)
        if state is None:
            monitored.states[name] = state = CheckState()
        elif at < state.at <= wall:
            return
        previous = state.state
        changed = state.advance(found, definition.max_attempts, definition.flap_rule)
        state.at, state.ref, state.seconds, state.message = at, answered.ref, seconds, message
        key = (agent, name)
        self._changed_states[key] = state
        if changed:
            state.since = at
            self._change(_AgentCheck(monitored, definition, state), previous, now, effects)
        elif state.held:
            self._reevaluate_held(key, now, effects)

    def _change(self, check: _AgentCheck, previous: str, now: Now, effects: Effects) -> None:
        """State, hardness or flapping changed: record it, and update the incident."""
        key, state, rule = check.key, check.state, check.definition.flap_rule
        if state.doubtful and state.state != OK and (not state.hard or previous == OK):
            # It recovered and fails again: no other Helen can have notified of this problem.
            state.notified, state.notified_handlers = OK, ()
        suppressed = self._causes(check, now.wall) if state.problem or state.notified != OK else ()
        percent = 0.0 if rule is None else rule.percent(state.history, state.known)
        # fmt: off
        effects.record(CheckStateChanged(
            *key, state.ref, state.at, state.state, state.hard, state.attempt, previous, state.flapping, percent,
            state.message, suppressed,
        ))
        # fmt: on
        incident = self._incidents.find(key)
        if state.down:
            incident = self._incidents.open(key, state.state, state.message, state.at, suppressed, effects)
        elif incident is not None and not state.doubtful:
            self._incidents.close(key, state.at, UP, effects)
        if state.flapping:
            self._incidents.flaps(key, effects)
        self._notify_or_hold(check, suppressed, incident, now, effects)

    def _causes(self, check: _AgentCheck, wall: float) -> tuple[str, ...]:
        monitored = check.monitored
        return causes(self._rules, monitored.agent, monitored.labels, check.definition, check.state, self._find, wall)

    def _find(self, agent: str, check: str) -> CheckState | None:
        monitored = self._agents.get(agent)
        return None if monitored is None else monitored.states.get(check)

    def _notify_or_hold(
        self, check: _AgentCheck, suppressed: tuple[str, ...], incident: Incident | None, now: Now, effects: Effects
    ) -> None:
        """Notify if the hard state is not the one that was notified last; hold the notification while suppressed."""
        key, state = check.key, check.state
        due = state.hard and state.state != state.notified
        state.held = due and bool(suppressed)
        self._changed_states[key] = state
        if state.held:
            self._held[key] = None
            return
        self._held.pop(key, None)
        if due:
            self._notify(check, "" if incident is None else incident.id, now, effects)

    def _notify(self, check: _AgentCheck, incident: str, now: Now, effects: Effects) -> None:
        """Notify the handlers; of a recovery only those that were notified of the problem."""
        state, labels = check.state, check.monitored.labels
        recovered = state.state == OK
        notified: list[str] = []
        for name in state.notified_handlers if recovered else check.definition.handlers:
            handler = self._rules.handlers.get(name)
            if handler is None or not wants(handler, state.state):
                continue
            notified.append(name)
            self._outbox.put(notification_for(name, check.key, state, labels, incident, now.wall), now, effects)
        state.note_notified(now.wall)
        state.notified_handlers = () if recovered else tuple(dict.fromkeys((*state.notified_handlers, *notified)))

    def _reevaluate_held(self, key: Key, now: Now, effects: Effects, incident: Incident | None = None) -> None:
        """Check whether a held notification is still due and still suppressed; `incident`: it was closed just now."""
        monitored = self._agents.get(key[0])
        state = None if monitored is None else monitored.states.get(key[1])
        definition = None if monitored is None else monitored.selected.get(key[1])
        if monitored is None or state is None or definition is None:
            self._held.pop(key, None)
            return
        check = _AgentCheck(monitored, definition, state)
        incident = incident or self._incidents.find(key)
        self._notify_or_hold(check, self._causes(check, now.wall), incident, now, effects)

    def _reevaluate_agent(self, monitored: MonitoredAgent, now: Now, effects: Effects) -> None:
        """Drop the states of checks that the agent no longer runs; record downtimes that began or ended."""
        if self._config is None:
            # Without a configuration, no check is known to be removed.
            return
        if monitored.rules is not self._rules:
            self._select_checks(monitored)
        removed = [
            name for name, state in monitored.states.items() if name not in monitored.selected and not state.doubtful
        ]
        if removed and not self._decides_now(monitored.agent, now):
            removed = []
        for check in removed:
            self._drop(monitored, check, now, effects)
        if update_downtimes(self._rules, monitored, now, effects):
            self._mark_changed(monitored)

    def _decides_now(self, agent: str, now: Now) -> bool:
        """False: another Helen may have the agent; what is to be decided is tried again soon."""
        if self.decides(agent, now):
            return True
        self._resume_at = min(self._resume_at, now.mono + RESUME_SECONDS)
        return False

    def _drop(self, monitored: MonitoredAgent, check: str, now: Now, effects: Effects) -> None:
        key = (monitored.agent, check)
        del monitored.states[check]
        self._changed_states.pop(key, None)
        self._held.pop(key, None)
        self._incidents.close(key, now.wall, REMOVED, effects)
        effects.record(CheckRemoved(*key))
        effects.write(DropCheckState(*key))

    def forget(self, agent: str, now: Now, effects: Effects) -> None:
        monitored = self._agents.pop(agent, None)
        if monitored is None:
            return
        for check in list(monitored.states):
            self._drop(monitored, check, now, effects)
        for one in list(monitored.downtimes):
            end_downtime(monitored, one, now, effects)
        self._changed_agents.pop(agent, None)
        effects.write(DropCheckState(agent, ""))

    def hand_over(self, agent: str, now: Now, effects: Effects) -> EvaluationBundle | None:
        """Remove an agent that moved to another Helen; returns her bundle. Nothing is recorded as ended."""
        monitored = self._agents.pop(agent, None)
        if monitored is None:
            return None
        for check in monitored.states:
            self._changed_states.pop((agent, check), None)
            self._held.pop((agent, check), None)
        self._changed_agents.pop(agent, None)
        return export_evaluation(monitored, self._incidents, now, effects)

    def take_over(
        self, agent: str, labels: dict[str, str], unpacked: OpenedEvaluation, now: Now, effects: Effects
    ) -> None:
        """Merge another Helen's bundle. Keeps a reference to `labels`: the caller must not modify it."""
        monitored = self._update_agent(agent, labels)
        known = [*unpacked.incidents.values(), *(self._incidents.find((agent, check)) for check in unpacked.states)]
        keys = import_evaluation(monitored, unpacked, self._incidents, now, effects)
        ended = {event.incident for event in effects.events if isinstance(event, IncidentClosed)}
        closed = {one.check: one for one in known if one is not None and one.id in ended}
        for key in keys:
            self._changed_states[key] = state = monitored.states[key[1]]
            due = state.hard and state.state != state.notified
            if due and self._decides_now(agent, now):
                # Each of the two Helens knew a part: only the merged state shows that a notification is due.
                self._reevaluate_held(key, now, effects, closed.get(key[1]))
            elif due or state.held:
                state.held = due
                self._held[key] = None
        self._mark_changed(monitored)
        self._reevaluation.queue(monitored)

    @property
    def agent_names(self) -> Collection[str]:
        return self._agents.keys()

    def doubtful_agents(self) -> list[str]:
        """Agents with a check whose recovery another Helen may have notified."""
        return [name for name in self._agents if self.doubted_helens(name)]

    def doubted_helens(self, agent: str) -> set[str]:
        """The Helens who may have notified of recoveries of this agent."""
        monitored = self._agents.get(agent)
        return set() if monitored is None else {one.doubtful for one in monitored.states.values() if one.doubtful}

    def end_doubt(self, agent: str, helens: Collection[str] | None, now: Now, effects: Effects) -> None:
        """These Helens have answered, or it is too late for all (None): close and notify what remains."""
        monitored = self._agents.get(agent)
        if monitored is None:
            return
        for check, state in monitored.states.items():
            if not state.doubtful or (helens is not None and state.doubtful not in helens):
                continue
            key, state.doubtful = (agent, check), ""
            self._changed_states[key] = state
            incident = self._incidents.find(key)
            if not state.down:
                self._incidents.close(key, state.since, UP, effects)
            self._reevaluate_held(key, now, effects, incident)
            self._reevaluation.queue(monitored)

    @property
    def alive_checks(self) -> tuple[CompiledCheck, ...]:
        """The checks that Helen runs herself; the same object until the configuration changes."""
        return self._rules.alive

    def selects(self, agent: str, labels: dict[str, str], check: str) -> CompiledCheck | None:
        """The definition of that name, if this agent has it. Keeps a reference to `labels`."""
        return self._update_agent(agent, labels).selected.get(check)

    def settle(self, effects: Effects) -> None:
        """Write what this turn changed, each row once."""
        if self._changed_states:
            effects.writes += [
                PutCheckState(agent, check, to_row(state)) for (agent, check), state in self._changed_states.items()
            ]
            self._changed_states = {}
        if self._changed_agents:
            effects.writes += [monitored.put() for monitored in self._changed_agents.values()]
            self._changed_agents = {}
        if self._config_changed and self._config is not None:
            self._config_changed = False
            effects.write(config_row(self._config))
        self._outbox.settle(effects)

    def tick(self, now: Now, effects: Effects) -> None:
        self._wall = now.wall
        if not self._started:
            self._started = True
            self._outbox.start(now)
            self._sweep_at = now.mono + SWEEP_SECONDS
            self._reevaluate_all(now)
        if self._reevaluation.is_due(now) or now.mono >= self._resume_at:
            self._resume_at = math.inf
            self._reevaluate_all(now)
        self._reevaluation.note_clock(now)
        for monitored in self._reevaluation.take_agents(self.slice):
            if self._agents.get(monitored.agent) is monitored:
                self._reevaluate_agent(monitored, now, effects)
        for key in self._reevaluation.take_held():
            if self._decides_now(key[0], now):
                self._reevaluate_held(key, now, effects)
        if self.configured:
            # Without a configuration, no handler is known to be removed.
            self._outbox.tick(now, effects)
        if now.mono >= self._sweep_at:
            self._sweep_at = now.mono + SWEEP_SECONDS
            self._incidents.sweep(now, effects)

    def deadline(self) -> float | None:
        if not self._started:
            return 0.0
        when = min(self._sweep_at, self._resume_at, self._reevaluation.deadline(self._rules.has_times))
        due = self._outbox.deadline() if self.configured else None
        return when if due is None else min(when, due)

    def checks(self, query: Mapping[str, Any], now: Now | None = None) -> dict[str, Any]:
        """A page of checks; the query is a `views.ChecksQuery`."""
        wall = self._wall if now is None else now.wall
        return views.checks(query, self._agents, self._suppressed, self._incidents, wall)

    def _suppressed(self, monitored: MonitoredAgent, definition: CompiledCheck, state: CheckState) -> tuple[str, ...]:
        return self._causes(_AgentCheck(monitored, definition, state), self._wall)

    def incidents(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """A page of the incidents in memory, newest first; the query is a `views.IncidentsQuery`."""
        return views.incidents(query, self._incidents)

    def find_incidents(self, query: Mapping[str, Any], on_page: views.OnPage, effects: Effects) -> None:
        """A page of all stored incidents: `on_page` gets it, in a later turn if the store must be read."""
        views.find_incidents(query, self._incidents, on_page, effects)


def _monitoring(config: ClientConfig) -> tuple[object, ...]:
    """The parts of a configuration that matter to the evaluation."""
    return config.checks, config.handlers, config.downtimes, config.silences
