"""The oracle: what must follow from the results that a Helen stored, computed in the simplest way.

It derives states, incidents and notifications from the documented rules with lists and fractions, and uses no code of
Helen that decides the same. It gets stored turns only, in order, so it never has to revise anything.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from fractions import Fraction
from typing import Any, Final

import msgspec

from scale0.config import ClientConfig
from scale0.config.monitoring import CheckDefinition, matches_any, matches_labels, reference
from scale0.history.events.checks import (
    CheckAnswered,
    CheckRemoved,
    CheckStateChanged,
    IncidentClosed,
    IncidentOpened,
)
from scale0.monitoring.helen.core.check_state import CheckState, from_row
from scale0.monitoring.helen.core.incidents import Incident
from scale0.monitoring.helen.core.notifications import Notification
from scale0.monitoring.protocol.results import CheckFinding
from scale0.storage.check_rows import PutCheckState, PutIncident, PutNotice
from simulator.invariants.evaluation_recorder import (
    Configured,
    DoubtEnded,
    HandedOver,
    Known,
    StoredTurn,
    Taken,
    TakenOver,
    Ticked,
)
from simulator.promises import broken

Key = tuple[str, str]

WORSE: Final = ("ok", "warning", "unknown", "critical")
DOWN: Final = ("unknown", "critical")
TRANSITIONS: Final = 20
QUIET: Final = ("critical", "unknown", "warning")
LIMITS: Final = {"icinga": (30, 25), "nagios": (30, 20), "sensu": (60, 20)}


def _weights(low: Fraction, high: Fraction) -> tuple[Fraction, ...]:
    """In even steps, the oldest transition first."""
    return tuple(low + (high - low) * place / (TRANSITIONS - 1) for place in range(TRANSITIONS))


NAGIOS_WEIGHTS: Final = _weights(Fraction(3, 4), Fraction(5, 4))
ICINGA_WEIGHTS: Final = _weights(Fraction(80, 100), Fraction(118, 100))

_incident: Final = msgspec.msgpack.Decoder(Incident)
_notice: Final = msgspec.msgpack.Decoder(Notification)


class CheckOracle:
    """One check of one agent."""

    def __init__(self) -> None:
        self.state = ""
        self.hard = False
        self.run = 0
        """Results in a row that are not ok."""
        self.flapping = False
        self.weighed = ""
        """The last state that counts for flapping."""
        self.changes = [False] * TRANSITIONS
        """Whether each state differs from the one before, the oldest first."""
        self.known = 0
        self.at = 0.0
        self.since = 0.0
        self.notified = "ok"
        self.notified_at = 0.0
        self.notified_handlers: list[str] = []
        self.held = False
        self.doubtful = ""
        """The Helen who may have closed the incident and notified of the recovery."""

    @property
    def attempt(self) -> int:
        """Problems in a row while soft."""
        return 0 if self.hard else self.run

    @property
    def down(self) -> bool:
        """Hard, and critical or unknown."""
        return self.hard and self.state in DOWN

    def advance(self, state: str, given: CheckDefinition) -> bool:
        """Apply a result; True: something changed."""
        before = (self.state, self.hard, self.flapping)
        self.run = 0 if state == "ok" else self.run + 1
        stays = self.hard and self.state not in ("", "ok")
        self.hard = state == "ok" or stays or self.run >= given.max_attempts
        self.state = state
        formula = given.flapping.formula
        if formula == "off":
            self.flapping = False
        elif self.hard or formula != "nagios":
            self.changes = [*self.changes[1:], self.weighed not in ("", state)]
            self.weighed = state
            self.known += 1
            self.flapping = self._flaps(formula)
        return before != (self.state, self.hard, self.flapping)

    @classmethod
    def of(cls, state: CheckState) -> CheckOracle:
        """The state at a handover."""
        made = cls()
        made.state, made.hard, made.run, made.flapping = state.state, state.hard, state.attempt, state.flapping
        made.weighed, made.known = state.weighed, state.known
        made.changes = [bool(state.history >> place & 1) for place in reversed(range(TRANSITIONS))]
        made.at, made.since, made.held, made.doubtful = state.at, state.since, state.held, state.doubtful
        made.notified, made.notified_at, made.notified_handlers = (
            state.notified,
            state.notified_at,
            list(state.notified_handlers),
        )
        return made

    def _flaps(self, formula: str) -> bool:
        weights = NAGIOS_WEIGHTS if formula == "nagios" else ICINGA_WEIGHTS
        weighed = (weight for weight, changed in zip(weights, self.changes, strict=True) if changed)
        percent = sum(weighed, Fraction(0)) * 100 / TRANSITIONS
        start, end = LIMITS[formula]
        if formula == "sensu":
            percent = Fraction(int(percent)) if self.known > TRANSITIONS else Fraction(0)
        if self.flapping:
            return percent > end
        return percent > start if formula == "icinga" else percent >= start


class Oracle:
    """What must follow from the stored turns of one Helen."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.part: ClientConfig | None = None
        self.labels: dict[str, dict[str, str]] = {}
        self.states: dict[Key, CheckOracle] = {}
        self.incidents: dict[Key, float] = {}
        """When each open incident was opened."""
        self.adopted: set[Key] = set()
        """Checks that another Helen knew a part of."""
        self.notices: dict[str, Notification] = {}
        """All notifications that were ever stored, by id."""
        self.new_notices: list[Notification] = []
        """Those of the last turn."""
        self.deferred: set[Key] = set()
        """Removed checks of agents that another Helen may have: they are dropped later."""
        self._wall = 0.0

    def selected(self, agent: str, labels: dict[str, str]) -> dict[str, CheckDefinition]:
        """The checks that an agent runs; silences and downtimes do not matter."""
        return {
            one.name: one
            for one in (() if self.part is None else self.part.checks)
            if one.enabled and matches_any(one.agents, agent) and matches_labels(one.labels, labels)
        }

    def stored(self, turn: StoredTurn) -> None:
        """A turn is stored: check that its events follow from its inputs."""
        self._wall = turn.wall
        expected: list[tuple[Any, ...]] = []
        notices: list[tuple[str, ...]] = []
        joined: dict[str, list[frozenset[str] | None]] = {}
        """Agents of which another Helen's bundle was merged, with the Helens whose doubts ended after that."""
        undecided: frozenset[str] = frozenset()
        for note in turn.notes:
            match note:
                # What follows a merge acts on the merged state, which only `_adopt` knows: nothing is derived here.
                case Taken(agent, labels) if agent in joined:
                    self.labels[agent] = labels
                case DoubtEnded(agent, helens) if agent in joined:
                    joined[agent].append(helens)
                case Configured(part):
                    self.part = part
                case Known(agent, labels):
                    self.labels[agent] = labels
                case Taken():
                    expected += self._take(note, notices)
                case Ticked(undecided, unknown):
                    expected += self._drop_unselected(undecided, unknown, turn)
                case DoubtEnded(agent, helens):
                    expected += self._end_doubt(agent, helens, notices)
                case HandedOver(agent):
                    self._hand_over(agent)
                case TakenOver(agent, labels):
                    self.labels[agent] = labels
                    joined[agent] = []
        self._compare("check-state", expected, turn, joined, CheckAnswered, CheckStateChanged)
        self._compare("check-incident", expected, turn, joined, IncidentOpened, IncidentClosed)
        self._compare_notices(notices, turn, joined)
        for agent, answered in joined.items():
            in_doubt = {key for key, one in self.states.items() if key[0] == agent and one.doubtful}
            self._adopt(agent, turn)
            if agent in undecided:
                self.deferred |= self._unselected(agent)
            self._check_merged(agent, in_doubt, answered, turn)

    def _take(self, note: Taken, notices: list[tuple[str, ...]]) -> Iterator[tuple[Any, ...]]:
        agent, labels, answered = note.agent, note.labels, note.answered
        self.labels[agent] = labels
        given = self.selected(agent, labels).get(answered.check) if answered.scheduled else None
        at = answered.at
        state = answered.finding.state if given is None else judged(answered.finding, given)
        yield CheckAnswered, agent, answered.check, answered.ref, at, state, given is not None
        if given is None:
            return
        key = (agent, answered.check)
        one = self.states.setdefault(key, CheckOracle())
        if one.state and at < one.at <= self._wall:
            return
        one.at = at
        before = one.state
        if one.advance(state, given):
            one.since = at
            if one.doubtful and state != "ok" and (not one.hard or before == "ok"):
                one.notified, one.notified_handlers = "ok", []
            causes = self.causes(key) if (one.hard and state != "ok") or one.notified != "ok" else ()
            yield CheckStateChanged, *key, answered.ref, at, state, one.hard, one.attempt, one.flapping, causes
            if one.down and key not in self.incidents:
                self.incidents[key] = at
                yield IncidentOpened, *key, at, state
            elif not one.down and key in self.incidents and not one.doubtful:
                yield self._close(key, at, "up")
        notices += self._decide(key, given)

    def definition(self, key: Key) -> CheckDefinition:
        return self.selected(key[0], self.labels[key[0]])[key[1]]

    def causes(self, key: Key) -> tuple[str, ...]:
        """Everything that suppresses a notification of this check."""
        agent, check = key
        labels, part = self.labels[agent], self.part
        if part is None:
            return ()
        out: set[str] = set()
        given = self.definition(key)
        for text in given.depends_on:
            where, name = reference(text)
            other = (where or agent, name)
            if other != key and other in self.states and self.states[other].down:
                out.add(f"depends_on {text}")
        for kind, entries in (("downtime", part.downtimes), ("silence", part.silences)):
            for one in entries:
                reaches = matches_any(one.agents, agent) and matches_any(one.checks, check)
                if reaches and matches_labels(one.labels, labels) and self._runs(one):
                    out.add(f"{kind} {one.name}")
        if given.flapping.suppress and self.states[key].flapping:
            out.add("flapping")
        if self.states[key].doubtful and self.states[key].state == "ok":
            out.add(f"helen {self.states[key].doubtful}")
        return tuple(sorted(out))

    def _runs(self, one: Any) -> bool:
        starts = getattr(one, "starts", 0.0)
        return bool(starts <= self._wall and (one.ends == 0.0 or self._wall < one.ends))

    def is_due(self, key: Key) -> bool:
        """The handlers were notified of another hard state than the current one."""
        one = self.states[key]
        return one.hard and one.state != one.notified

    def _decide(self, key: Key, given: CheckDefinition) -> list[tuple[str, ...]]:
        one = self.states[key]
        one.held = self.is_due(key) and bool(self.causes(key))
        return self._notify(key, given) if self.is_due(key) and not one.held else []

    def _notify(self, key: Key, given: CheckDefinition) -> list[tuple[str, ...]]:
        one = self.states[key]
        handlers = {} if self.part is None else {each.name: each for each in self.part.handlers}
        recovered = one.state == "ok"
        names = []
        for name in one.notified_handlers if recovered else given.handlers:
            wanted = handlers[name].states or (QUIET if handlers[name].type == "task" else WORSE)
            if one.state in wanted:
                names.append(name)
        one.notified, one.notified_at = one.state, self._wall
        one.notified_handlers = (
            []
            if recovered
            else [*one.notified_handlers, *(name for name in names if name not in one.notified_handlers)]
        )
        return [(name, *key, one.state, repr(one.at)) for name in names]

    def _end_doubt(
        self, agent: str, helens: frozenset[str] | None, notices: list[tuple[str, ...]]
    ) -> Iterator[tuple[Any, ...]]:
        """What the other Helen may have decided is decided here."""
        for key, one in self.states.items():
            if key[0] != agent or not one.doubtful or (helens is not None and one.doubtful not in helens):
                continue
            one.doubtful = ""
            if not one.down and key in self.incidents:
                yield self._close(key, one.since, "up")
            given = self.selected(agent, self.labels[agent]).get(key[1])
            if given is not None:
                notices += self._decide(key, given)

    def _drop_unselected(
        self, undecided: frozenset[str], unknown: frozenset[str], turn: StoredTurn
    ) -> Iterator[tuple[Any, ...]]:
        """A check that an agent no longer runs has no state and no incident; later, if another Helen may have it."""
        if self.part is None:
            return
        dropped = {(event.agent, event.check) for event in turn.events if isinstance(event, CheckRemoved)}
        for agent, check in dropped:
            if agent in unknown:
                story = f"{self.name} at {turn.virtual:.6f}: drops {check} of {agent}, which another Helen may have"
                raise broken("check-incident-once", story)
        for key in list(self.states):
            agent, check = key
            if check in self.selected(agent, self.labels[agent]):
                self.deferred.discard(key)
            elif (agent in undecided or self.states[key].doubtful or key in self.deferred) and key not in dropped:
                self.deferred.add(key)
            else:
                self.deferred.discard(key)
                del self.states[key]
                if key in self.incidents:
                    yield self._close(key, self._wall, "removed")

    def _unselected(self, agent: str) -> set[Key]:
        """Checks that this agent has a state of, and no longer runs."""
        runs = self.selected(agent, self.labels[agent])
        return {key for key in self.states if key[0] == agent and key[1] not in runs}

    def _close(self, key: Key, at: float, reason: str) -> tuple[Any, ...]:
        opened = self.incidents.pop(key)
        return IncidentClosed, *key, max(opened, at), reason

    def _hand_over(self, agent: str) -> None:
        """The agent moved to another Helen: nothing of it remains, and nothing of it has ended."""
        self.labels.pop(agent, None)
        for key in [key for key in self.states if key[0] == agent]:
            del self.states[key]
            self.incidents.pop(key, None)

    def _adopt(self, agent: str, turn: StoredTurn) -> None:
        """Two Helens knew a part each: the merged state is accepted as it was stored."""
        for write in turn.writes:
            match write:
                case PutCheckState(name, check, body) if name == agent and check:
                    self.states[agent, check] = CheckOracle.of(from_row(body))
                    self.adopted.add((agent, check))
                case PutIncident(_, name, check) if name == agent:
                    incident = _incident.decode(write.body)
                    if incident.closed is None:
                        self.incidents[agent, check] = incident.opened
                    elif self.incidents.get((agent, check)) == incident.opened:
                        del self.incidents[agent, check]

    def _check_merged(
        self, agent: str, in_doubt: set[Key], answered: list[frozenset[str] | None], turn: StoredTurn
    ) -> None:
        """The stored result of a merge: a check that is down has an incident, one that is certainly up has none.

        A soft problem may keep the incident of a hard one until its next result, unless a doubt of it ended here.
        """
        for key, one in self.states.items():
            if key[0] != agent:
                continue
            if one.doubtful and any(helens is None or one.doubtful in helens for helens in answered):
                story = f"{self.name} at {turn.virtual:.6f}: {key} is in doubt, and {one.doubtful} has answered"
                raise broken("check-incident", story)
            up = not one.down and not one.doubtful and (one.hard or key in in_doubt)
            if (one.down and key not in self.incidents) or (up and key in self.incidents):
                found = "no incident" if one.down else "an incident"
                story = f"{self.name} at {turn.virtual:.6f}: {key} is {one.state} after a merge, with {found}"
                raise broken("check-incident", story)

    def _compare(
        self, promise: str, expected: Iterable[tuple[Any, ...]], turn: StoredTurn, joined: Container[str], *kinds: type
    ) -> None:
        wanted = sorted(repr(one[1:]) + one[0].kind for one in expected if one[0] in kinds and one[1] not in joined)
        events = [event for event in turn.events if type(event) in kinds and event.agent not in joined]
        found = sorted(repr(plain(event)) + event.kind for event in events)
        if wanted != found:
            missing = [one for one in wanted if one not in found]
            raise broken(promise, f"{self.name} at {turn.virtual:.6f}: expected {missing or wanted}, recorded {found}")

    def _compare_notices(self, expected: list[tuple[str, ...]], turn: StoredTurn, joined: Container[str]) -> None:
        found: list[tuple[str, ...]] = []
        self.new_notices = []
        for put in turn.writes:
            if isinstance(put, PutNotice) and put.id not in self.notices:
                self.notices[put.id] = notice = _notice.decode(put.body)
                self.new_notices.append(notice)
                if notice.agent not in joined:
                    found.append((notice.handler, notice.agent, notice.check, notice.state, repr(notice.payload["at"])))
        expected = [one for one in expected if one[1] not in joined]
        # A held notification is sent when the suppression ends: at a time that Helen chooses, but not before.
        for key in dict.fromkeys((one[1], one[2]) for one in found if one not in expected):
            one = self.states.get(key)
            if one is not None and one.held and self.is_due(key) and not self.causes(key):
                one.held = False
                expected += self._notify(key, self.definition(key))
        if sorted(expected) != sorted(found):
            raise broken("check-notice", f"{self.name} at {turn.virtual:.6f}: expected {expected}, made {found}")


def judged(finding: CheckFinding, given: CheckDefinition) -> str:
    """The worse of the agent's state and the thresholds' state."""
    state: str = finding.state
    for metric in finding.metrics:
        limits = given.thresholds.get(metric.name)
        if limits is None:
            continue
        found = "ok"
        for name, level in (("warn", "warning"), ("crit", "critical")):
            if metric.value > float(str(limits[name])):
                found = level
        state = max(state, found, key=WORSE.index)
    return state


def plain(event: Any) -> tuple[Any, ...]:
    """An event in the form in which it is expected."""
    match event:
        case CheckAnswered():
            return event.agent, event.check, event.ref, event.at, event.state, event.scheduled
        case CheckStateChanged():
            causes = tuple(sorted(event.suppressed))
            values = (event.state, event.hard, event.attempt, event.flapping)
            return event.agent, event.check, event.ref, event.at, *values, causes
        case IncidentOpened():
            return event.agent, event.check, event.at, event.state
        case IncidentClosed():
            return event.agent, event.check, event.at, event.reason
    raise AssertionError(f"nobody expects {event!r}")
