"""The oracle of Helen's evaluation: what it expects after two Helens had parts of one agent's state."""

# Promise: SIM-1, SIM-3
from __future__ import annotations

from collections.abc import Callable

import pytest

from scale0.config import CheckDefinition, ClientConfig
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.monitoring.helen.core.agent_bundles import OpenedEvaluation
from scale0.monitoring.helen.core.check_state import CheckState
from scale0.monitoring.helen.core.evaluation import Evaluation, IncomingResult, StoredChecks
from scale0.monitoring.helen.core.incidents import Incident, id_of
from scale0.monitoring.protocol.results import CheckFinding, State
from scale0.storage.check_rows import PutIncident
from simulator.invariants.check_oracle import Oracle
from simulator.invariants.evaluation_recorder import DoubtEnded, EvaluationRecorder, Note, StoredTurn
from simulator.promises import PromiseBroken

WALL = 1_700_000_000.0
KEY = ("web-1", "disk")
CHECK = CheckDefinition(name="disk", max_attempts=1)
LABELS: dict[str, str] = {}


class Observed:
    """A recorded evaluation of helen-1; each of its turns is given to the oracle."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self.unknown: set[str] = set()
        """Agents that are not connected to her, who has just started."""
        self.evaluation = EvaluationRecorder(Evaluation(StoredChecks()), self.notes, self.unknown.__contains__)
        self.oracle = Oracle("helen-1")
        self.wall = WALL
        self.refs = 0
        self.turn(lambda now, effects: self.evaluation.configure(ClientConfig(checks=(CHECK,)), now, effects))

    def turn(self, *steps: Callable[[Now, Effects], None], lost: type | None = None) -> Effects:
        """A turn of these steps; `lost`: rows of this type are not stored."""
        now, effects = Now(self.wall - WALL, self.wall), Effects()
        for step in steps:
            step(now, effects)
        self.evaluation.settle(effects)
        writes = tuple(row for row in effects.writes if lost is None or not isinstance(row, lost))
        notes, self.notes[:] = tuple(self.notes), []
        self.oracle.stored(StoredTurn(now.mono, now.wall, notes, tuple(effects.events), writes, None))
        self.wall += 10.0
        return effects

    def result(self, state: State) -> Callable[[Now, Effects], None]:
        def step(now: Now, effects: Effects) -> None:
            self.refs += 1
            answered = IncomingResult("disk", CheckFinding(state), f"s:{self.refs}", now.wall, True)
            self.evaluation.process_result("web-1", LABELS, answered, now, effects)

        return step

    def merge(self, state: CheckState, incident: Incident | None = None) -> Callable[[Now, Effects], None]:
        found = {} if incident is None else {"disk": incident}
        opened = OpenedEvaluation(downtimes={}, states={"disk": state}, incidents=found, closed=[])
        return lambda now, effects: self.evaluation.take_over("web-1", LABELS, opened, now, effects)

    def end_doubt(self, now: Now, effects: Effects) -> None:
        self.evaluation.end_doubt("web-1", {"helen-0"}, now, effects)


def state_of(state: str, at: float, doubtful: str = "") -> CheckState:
    return CheckState(state=state, hard=True, at=at, since=at, notified="critical", notified_at=WALL, doubtful=doubtful)


def incident_of(opened: float) -> Incident:
    id_ = id_of(KEY, opened)
    return Incident(id=id_, agent="web-1", check="disk", opened=opened, state="critical", worst="critical")


def closed(effects: Effects) -> list[str]:
    return [event.reason for event in effects.events if event.kind == "incident.closed"]


def recovered_in_doubt() -> tuple[Observed, float]:
    """Helen-1 used an old copy, saw a problem and its recovery, and has the incident open, in doubt."""
    seen = Observed()
    seen.turn(seen.merge(state_of("ok", seen.wall - 5.0, "helen-0")))
    opened = seen.wall
    seen.turn(seen.result("critical"))
    assert not closed(seen.turn(seen.result("ok")))
    return seen, opened


def test_an_incident_that_continues_after_a_merge_is_expected_to_close_with_the_recovery():
    # Seed 7200855: the other Helen's copy is newer, and critical; so nothing is closed although the doubt ends.
    seen, opened = recovered_in_doubt()
    newer = state_of("critical", seen.wall - 1.0)
    assert closed(seen.turn(seen.merge(newer, incident_of(opened + 1.0)), seen.end_doubt)) == ["merged"]
    assert closed(seen.turn(seen.result("ok"))) == ["up"]
    assert KEY not in seen.oracle.incidents


def test_a_merge_that_leaves_the_incident_of_a_recovery_open_is_found():
    seen, _ = recovered_in_doubt()
    newer = state_of("ok", seen.wall - 1.0)
    with pytest.raises(PromiseBroken, match=r"check-incident: .* is ok after a merge, with an incident"):
        seen.turn(seen.merge(newer), seen.end_doubt, lost=PutIncident)


def test_a_merge_that_opens_no_incident_for_a_check_that_is_down_is_found():
    seen = Observed()
    with pytest.raises(PromiseBroken, match=r"check-incident: .* is critical after a merge, with no incident"):
        seen.turn(seen.merge(state_of("critical", seen.wall - 1.0)), lost=PutIncident)


def test_a_merge_after_which_an_answered_doubt_remains_is_found():
    seen = Observed()

    def keep_doubt(_now: Now, _effects: Effects) -> None:
        seen.notes.append(DoubtEnded("web-1", frozenset({"helen-0"})))

    doubtful = state_of("ok", seen.wall - 1.0, "helen-0")
    with pytest.raises(PromiseBroken, match=r"check-incident: .* is in doubt, and helen-0 has answered"):
        seen.turn(seen.merge(doubtful), keep_doubt)


def keep_undecided(seen: Observed, undecided: bool) -> None:
    seen.evaluation.evaluation.decides = lambda _agent, _now: not undecided


def removed_in_doubt(seen: Observed) -> None:
    """Another Helen's state of a check that the agent no longer runs, while she may have the agent again."""
    keep_undecided(seen, True)
    opened = OpenedEvaluation(downtimes={}, states={"old": state_of("ok", seen.wall - 5.0)}, incidents={}, closed=[])
    seen.turn(
        lambda now, effects: seen.evaluation.take_over("web-1", LABELS, opened, now, effects), seen.evaluation.tick
    )
    keep_undecided(seen, False)


def test_a_removed_check_of_a_merge_may_be_dropped_later():
    # Found when agents joined a Helen who had just started: she drops it within ten seconds, not in the first turn.
    seen = Observed()
    removed_in_doubt(seen)
    seen.wall -= 9.0
    seen.turn(seen.evaluation.tick)
    assert ("web-1", "old") in seen.oracle.states
    seen.wall += 10.0
    assert [event.kind for event in seen.turn(seen.evaluation.tick).events] == ["check.removed"]
    assert ("web-1", "old") not in seen.oracle.states


def test_a_helen_who_has_just_started_and_drops_the_check_of_an_agent_of_another_is_found():
    seen = Observed()
    removed_in_doubt(seen)
    seen.unknown.add("web-1")
    with pytest.raises(
        PromiseBroken, match=r"check-incident-once: .* drops old of web-1, which another Helen may have"
    ):
        seen.turn(seen.evaluation.tick)
