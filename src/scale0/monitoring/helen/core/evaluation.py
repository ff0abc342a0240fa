"""Watch: what results mean. States, incidents, downtimes, and the notices that follow.

Lives here: `Evaluation`, which Helen hands every result to. Never here: connections, spools, or the thresholds,
formulas and rows that it uses (each has a file of its own). Invariants: everything that a result changes is in the
commit of its event; what is suppressed is notices, never events and never a state; a result that is older than the last
one is recorded and moves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from scale0.config.schema import ClientConfig
from scale0.history.events.checks import CheckAnswered, CheckRemoved, CheckStateChanged
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.monitoring.helen.core import downtimes, evaluation_bundle, views
from scale0.monitoring.helen.core.check_rules import CheckRules, CompiledCheck
from scale0.monitoring.helen.core.check_state import CheckState, to_row
from scale0.monitoring.helen.core.evaluation_bundle import EvaluationBundle, OpenedEvaluation
from scale0.monitoring.helen.core.incidents import REMOVED, UP, Incidents, Key
from scale0.monitoring.helen.core.monitored_agent import MonitoredAgent, StoredChecks, put_part, read_states
from scale0.monitoring.helen.core.notifications import Outbox, notice_of, wants
from scale0.monitoring.helen.core.reevaluation import SLICE, Reevaluation
from scale0.monitoring.helen.core.suppression import causes
from scale0.monitoring.protocol.results import OK, CheckFinding
from scale0.storage.check_rows import DropCheckState, PutCheckState

__all__ = ["Evaluation", "IncomingResult", "StoredChecks"]

SWEEP_SECONDS: Final = 300.0
"""How often incidents that are long over are forgotten, some at a time: faster than they can go on being opened."""
MAX_RUN_SECONDS: Final = 1e9
"""A run that says it took longer says nothing."""


class IncomingResult(msgspec.Struct, frozen=True, gc=False):
    """A result, and where it came from."""

    check: str
    """The definition's name; of one asked for by hand, the check's."""
    finding: CheckFinding
    ref: str
    at: float
    """When it was, by the wall clock here."""
    scheduled: bool


class Evaluation:
    """All checks of one Helen."""

    __slots__ = (
        *("_agents", "_book", "_dirty", "_held", "_incidents", "_looks", "_outbox", "_part", "_part_changed"),
        *("_started", "_sweep_at", "_touched", "_wall"),
    )

    def __init__(self, rows: StoredChecks) -> None:
        self._agents, self._part = read_states(rows.states)
        self._part_changed = False
        self._book = CheckRules() if self._part is None else CheckRules.of(self._part)
        self._incidents = Incidents(rows.incidents)
        self._outbox = Outbox(rows.notices)
        self._outbox.configure(self._book.handlers)
        self._dirty: dict[Key, CheckState] = {}
        """States that this turn changed."""
        self._touched: dict[str, MonitoredAgent] = {}
        """Agents whose own row this turn changed."""
        self._held: dict[Key, None] = {}
        """Checks with a notice that is due and suppressed."""
        self._looks = Reevaluation()
        self._sweep_at = 0.0
        self._wall = 0.0
        self._started = False
        for watched in self._agents.values():
            self._incidents.note_ends(watched.closed)
            for check, state in watched.states.items():
                if state.held:
                    self._held[watched.agent, check] = None

    @property
    def configured(self) -> bool:
        """False until the first configuration ever came: an agent that has a schedule should keep it until then."""
        return self._part is not None

    def configure(self, part: ClientConfig, now: Now, step: Effects) -> None:
        """Her part of the network document; one that says the same changes nothing."""
        known = self._part
        if known is not None and (known.checks, known.handlers, known.downtimes, known.silences) == (
            part.checks,
            part.handlers,
            part.downtimes,
            part.silences,
        ):
            return
        self._part, self._part_changed = part, True
        self._book = CheckRules.of(part)
        self._outbox.configure(self._book.handlers)
        self._look_at_all(now)

    @property
    def slice(self) -> int:
        """Agents whose checks may be chosen in one turn."""
        return min(SLICE, self._book.agents_at_once)

    def _look_at_all(self, now: Now) -> None:
        """Times or settings changed."""
        self._looks.begin(self._agents.values(), self._held, self._book.next_boundary(now.wall), now)

    def _know(self, agent: str, labels: dict[str, str]) -> MonitoredAgent:
        """The agent, with the checks that it runs by its labels and the current book."""
        watched = self._agents.get(agent)
        if watched is None:
            self._agents[agent] = watched = MonitoredAgent(agent)
            self._touch(watched)
        elif watched.book is self._book and watched.labels == labels:
            # Equal, and perhaps another object: the next look is quick again.
            watched.labels = labels
            return watched
        if watched.labels != labels:
            self._touch(watched)
        watched.labels = labels
        self._choose(watched)
        self._looks.queue(watched)
        return watched

    def _choose(self, watched: MonitoredAgent) -> None:
        watched.selected = self._book.select(watched.agent, watched.labels)
        watched.book = self._book

    def _touch(self, watched: MonitoredAgent) -> None:
        self._touched[watched.agent] = watched

    def schedule_for(self, agent: str, labels: dict[str, str]) -> bytes:
        """The JSON of what an agent runs by itself. `labels` is kept, and must not be changed in place."""
        return self._book.schedule(self._know(agent, labels).selected)

    def take(self, agent: str, labels: dict[str, str], answered: IncomingResult, now: Now, step: Effects) -> None:
        """A result. `labels` is kept, and must not be changed in place."""
        watched = self._agents.get(agent)
        if watched is None or watched.labels is not labels or watched.book is not self._book:
            watched = self._know(agent, labels)
        name, finding, at, wall = answered.check, answered.finding, answered.at, now.wall
        if not 0.0 <= at <= wall:
            at = wall
        seconds = finding.seconds
        if seconds is not None and not 0.0 <= seconds <= MAX_RUN_SECONDS:
            seconds = None
        definition = watched.selected.get(name) if answered.scheduled else None
        if definition is None:
            step.events.append(
                CheckAnswered(
                    agent, name, answered.ref, at, finding.state, seconds, finding.metrics, finding.message, False
                )
            )
            return
        found, message, metrics = definition.judge(finding)
        # fmt: off
        step.events.append(CheckAnswered(
            agent, name, answered.ref, at, found, seconds, metrics, message,
            True, definition.interval, definition.timeout, definition.max_attempts,
        ))
        # fmt: on
        state = watched.states.get(name)
        if state is None:
            watched.states[name] = state = CheckState()
        elif at < state.at <= wall:
            return
        previous = state.state
        changed = state.advance(found, definition.max_attempts, definition.flap_rule)
        state.at, state.ref, state.seconds, state.message = at, answered.ref, seconds, message
        key = (agent, name)
        self._dirty[key] = state
        if changed:
            state.since = at
            self._change(watched, definition, state, previous, now, step)
        elif state.held:
            self._reconsider(key, now, step)

    def _change(
        self,
        watched: MonitoredAgent,
        definition: CompiledCheck,
        state: CheckState,
        previous: str,
        now: Now,
        step: Effects,
    ) -> None:
        """State, hardness or flapping is another: record it, and what follows from it."""
        agent, check = key = (watched.agent, definition.name)
        suppressed = self._causes(watched, definition, state, now) if state.problem or state.told != OK else ()
        rule = definition.flap_rule
        step.record(
            CheckStateChanged(
                agent,
                check,
                state.ref,
                state.at,
                state.state,
                state.hard,
                state.attempt,
                previous,
                state.flapping,
                0.0 if rule is None else rule.percent(state.history, state.known),
                state.message,
                suppressed,
            )
        )
        incident = self._incidents.find(key)
        if state.down:
            incident = self._incidents.open(key, state.state, state.message, state.at, suppressed, step)
        elif incident is not None:
            self._incidents.close(key, state.at, UP, step)
        if state.flapping:
            self._incidents.flaps(key, step)
        self._decide(watched, definition, state, suppressed, "" if incident is None else incident.id, now, step)

    def _causes(
        self, watched: MonitoredAgent, definition: CompiledCheck, state: CheckState, now: Now
    ) -> tuple[str, ...]:
        return causes(self._book, watched.agent, watched.labels, definition, state, self._find, now.wall)

    def _find(self, agent: str, check: str) -> CheckState | None:
        watched = self._agents.get(agent)
        return None if watched is None else watched.states.get(check)

    def _decide(
        self,
        watched: MonitoredAgent,
        definition: CompiledCheck,
        state: CheckState,
        suppressed: tuple[str, ...],
        incident: str,
        now: Now,
        step: Effects,
    ) -> None:
        """Tell, hold, or leave it: a notice is due when the hard state is not the one that was told last."""
        key = (watched.agent, definition.name)
        due = state.hard and state.state != state.told
        state.held = due and bool(suppressed)
        self._dirty[key] = state
        if state.held:
            self._held[key] = None
            return
        self._held.pop(key, None)
        if due:
            self._tell(watched, definition, state, incident, now, step)

    def _tell(
        self,
        watched: MonitoredAgent,
        definition: CompiledCheck,
        state: CheckState,
        incident: str,
        now: Now,
        step: Effects,
    ) -> None:
        """Have the handlers told; of a recovery only those that heard of the problem."""
        recovered = state.state == OK
        told: list[str] = []
        for name in state.told_to if recovered else definition.handlers:
            handler = self._book.handlers.get(name)
            if handler is None or not wants(handler, state.state):
                continue
            told.append(name)
            key = (watched.agent, definition.name)
            self._outbox.put(notice_of(name, key, state, watched.labels, incident, now.wall), now, step)
        state.told, state.told_at = state.state, now.wall
        state.told_to = () if recovered else tuple(dict.fromkeys((*state.told_to, *told)))

    def _reconsider(self, key: Key, now: Now, step: Effects) -> None:
        """A notice was held: is it still due, and still suppressed?"""
        watched = self._agents.get(key[0])
        state = None if watched is None else watched.states.get(key[1])
        definition = None if watched is None else watched.selected.get(key[1])
        if watched is None or state is None or definition is None:
            self._held.pop(key, None)
            return
        incident, suppressed = self._incidents.find(key), self._causes(watched, definition, state, now)
        self._decide(watched, definition, state, suppressed, "" if incident is None else incident.id, now, step)

    def _look_at_agent(self, watched: MonitoredAgent, now: Now, step: Effects) -> None:
        """Forget the states of checks that it no longer runs; record the downtimes that began or ended."""
        if self._part is None:
            # Nobody has said yet what there is to watch: nothing is known to be gone.
            return
        if watched.book is not self._book:
            self._choose(watched)
        for check in [name for name in watched.states if name not in watched.selected]:
            self._drop(watched, check, now, step)
        if downtimes.look(self._book, watched, now, step):
            self._touch(watched)

    def _drop(self, watched: MonitoredAgent, check: str, now: Now, step: Effects) -> None:
        key = (watched.agent, check)
        del watched.states[check]
        self._dirty.pop(key, None)
        self._held.pop(key, None)
        self._incidents.close(key, now.wall, REMOVED, step)
        step.record(CheckRemoved(*key))
        step.write(DropCheckState(*key))

    def forget(self, agent: str, now: Now, step: Effects) -> None:
        """An agent is gone for good."""
        watched = self._agents.pop(agent, None)
        if watched is None:
            return
        for check in list(watched.states):
            self._drop(watched, check, now, step)
        for one in list(watched.downtimes):
            downtimes.end(watched, one, now, step)
        self._touched.pop(agent, None)
        step.write(DropCheckState(agent, ""))

    def hand_over(self, agent: str, now: Now, step: Effects) -> EvaluationBundle | None:
        """Another Helen watches this agent from here on: what she needs to go on. Nothing is recorded as over."""
        watched = self._agents.pop(agent, None)
        if watched is None:
            return None
        for check in watched.states:
            self._dirty.pop((agent, check), None)
            self._held.pop((agent, check), None)
        self._touched.pop(agent, None)
        return evaluation_bundle.hand_over(watched, self._incidents, now, step)

    def take_over(
        self, agent: str, labels: dict[str, str], unpacked: OpenedEvaluation, now: Now, step: Effects
    ) -> None:
        """Go on from where another Helen was. `labels` is kept, and must not be changed in place."""
        watched = self._know(agent, labels)
        for key in evaluation_bundle.take_over(watched, unpacked, self._incidents, now, step):
            self._dirty[key] = state = watched.states[key[1]]
            if state.held:
                self._held[key] = None
            elif state.hard and state.state != state.told:
                # Each of the two knew a part: only together they know that a notice is due.
                self._reconsider(key, now, step)
        self._touch(watched)
        self._looks.queue(watched)

    @property
    def alive_checks(self) -> tuple[CompiledCheck, ...]:
        """The checks that Helen runs herself; the same object until another configuration comes."""
        return self._book.alive

    def selects(self, agent: str, labels: dict[str, str], check: str) -> CompiledCheck | None:
        """The definition of that name, if this agent has it. `labels` is kept, and must not be changed in place."""
        return self._know(agent, labels).selected.get(check)

    def settle(self, step: Effects) -> None:
        """The turn ends: write what it changed, each row once."""
        if self._dirty:
            step.writes += [PutCheckState(agent, check, to_row(state)) for (agent, check), state in self._dirty.items()]
            self._dirty = {}
        if self._touched:
            step.writes += [watched.put() for watched in self._touched.values()]
            self._touched = {}
        if self._part_changed and self._part is not None:
            self._part_changed = False
            step.write(put_part(self._part))
        self._outbox.settle(step)

    def answer(self, ask: Any, value: Any, now: Now, step: Effects) -> None:
        """What one of our own Asks found."""
        ask.then(value, now, step)

    def tick(self, now: Now, step: Effects) -> None:
        """Do what its time has come for."""
        self._wall = now.wall
        if not self._started:
            self._started = True
            self._outbox.start(now)
            self._sweep_at = now.mono + SWEEP_SECONDS
            self._look_at_all(now)
        if self._looks.is_due(now):
            self._look_at_all(now)
        self._looks.note(now)
        for watched in self._looks.take_agents(self.slice):
            if self._agents.get(watched.agent) is watched:
                self._look_at_agent(watched, now, step)
        for key in self._looks.take_held():
            self._reconsider(key, now, step)
        if self.configured:
            # Until somebody says which handlers there are, none is known to be gone.
            self._outbox.tick(now, step)
        if now.mono >= self._sweep_at:
            self._sweep_at = now.mono + SWEEP_SECONDS
            self._incidents.sweep(now, step)

    def deadline(self) -> float | None:
        """When `tick` has something to do, by the monotonic clock."""
        if not self._started:
            return 0.0
        when = min(self._sweep_at, self._looks.deadline(self._book.has_times))
        due = self._outbox.deadline() if self.configured else None
        return when if due is None else min(when, due)

    def checks(self, query: Mapping[str, Any], now: Now | None = None) -> dict[str, Any]:
        """A page of checks as they stand; what a query may hold is `watch_views.ChecksQuery`."""
        wall = self._wall if now is None else now.wall
        return views.checks(query, self._agents, self._suppressed, self._incidents, wall)

    def _suppressed(self, watched: MonitoredAgent, definition: CompiledCheck, state: CheckState) -> tuple[str, ...]:
        return causes(self._book, watched.agent, watched.labels, definition, state, self._find, self._wall)

    def incidents(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """A page of those incidents that are at hand, newest first; a query is a `watch_views.IncidentsQuery`."""
        return views.incidents(query, self._incidents)

    def find_incidents(self, query: Mapping[str, Any], tell: views.Tell, step: Effects) -> None:
        """The same of all that the store keeps: `tell` gets the page, in a later turn where the store must be read."""
        views.find_incidents(query, self._incidents, tell, step)
