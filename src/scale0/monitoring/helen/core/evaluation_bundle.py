"""What Watch has of one agent, on its way from one Helen to another.

Lives here: `EvaluationBundle` as it travels and is kept, `OpenedEvaluation` once it is believed, and how both are made
and used. Never here: who may ask for it (`helen_handover`). Invariants: what is handed over is forgotten without an
event, and what is taken over repeats none; of each check the newer state counts, and of what people were told, the
last.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from scale0.config.monitoring import MAX_WALL
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.monitoring.helen.core import check_state as states
from scale0.monitoring.helen.core import incidents as incident_rows
from scale0.monitoring.helen.core.agents import is_check_name
from scale0.monitoring.helen.core.check_state import CheckState
from scale0.monitoring.helen.core.incidents import MAX_CLOSED, UP, Closed, Incident, Incidents, Key
from scale0.monitoring.helen.core.monitored_agent import MonitoredAgent, read_own
from scale0.monitoring.helen.core.suppression import Covered
from scale0.storage.check_rows import DropCheckState

MAX_STATES: Final = 10_000
"""Checks of one agent."""
MAX_DOWNTIMES: Final = 10_000
"""Downtimes that one agent is in, counted for each check."""
SHORT_MESSAGE_CHARS: Final = 200
"""Of a state's message where all of them together are too long to travel."""


class EvaluationBundle(msgspec.Struct, frozen=True, kw_only=True):
    """Rows, as one Helen keeps them: unread by whoever only passes them on."""

    own: bytes = b""
    """The agent's own row: labels, and the downtimes that were recorded as begun."""
    states: dict[str, bytes] = {}
    incidents: list[bytes] = []
    closed: list[Closed] = []
    """Incidents whose end was recorded: should an older copy be about, it is over there, too."""

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return len(self.own) + sum(map(len, self.states.values())) + sum(map(len, self.incidents))

    def shorten(self) -> EvaluationBundle:
        """The same without long messages: a state without its words is better than none."""
        short: dict[str, bytes] = {}
        for check, body in self.states.items():
            state = states.from_row(body)
            state.message = state.message[:SHORT_MESSAGE_CHARS]
            short[check] = states.to_row(state)
        return EvaluationBundle(own=self.own, states=short, incidents=self.incidents, closed=self.closed)


class OpenedEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The same, read and believed."""

    downtimes: dict[Covered, float]
    states: dict[str, CheckState]
    incidents: dict[str, Incident]
    closed: list[Closed]


def unpack(carried: EvaluationBundle, agent: str) -> OpenedEvaluation:
    """What another Helen sent. ValueError or MsgspecError: something of it cannot be true, and so nothing counts."""
    downtimes = read_own(carried.own).downtimes if carried.own else []
    if len(carried.states) > MAX_STATES or len(carried.incidents) > MAX_STATES or len(downtimes) > MAX_DOWNTIMES:
        raise ValueError("an agent has not so many checks")
    if not all(is_check_name(check) for check in carried.states):
        raise ValueError("that is no name of a check")
    if not all(math.isfinite(ends) for _, _, ends in downtimes):
        raise ValueError("a downtime without an end")
    if len(carried.closed) > MAX_CLOSED or not all(
        id_.startswith(f"{agent}/") and 0.0 <= at <= MAX_WALL for id_, at in carried.closed
    ):
        raise ValueError("these are no incidents of this agent")
    found = [incident_rows.read_foreign(body, agent) for body in carried.incidents]
    return OpenedEvaluation(
        downtimes={(name, check): ends for name, check, ends in downtimes},
        states={check: states.read_foreign(body) for check, body in carried.states.items()},
        incidents={incident.check: incident for incident in found if incident.check in carried.states},
        closed=carried.closed,
    )


def hand_over(watched: MonitoredAgent, incidents: Incidents, now: Now, step: Effects) -> EvaluationBundle:
    """Everything of an agent, as rows; the store forgets it with this turn."""
    carried = EvaluationBundle(
        own=watched.put().body,
        states={check: states.to_row(state) for check, state in watched.states.items()},
        incidents=[
            body
            for check in watched.states
            if (body := incidents.hand_over((watched.agent, check), now, step)) is not None
        ],
        closed=incidents.closed_of(watched.agent),
    )
    for check in ("", *watched.states):
        step.write(DropCheckState(watched.agent, check))
    return carried


def take_over(
    watched: MonitoredAgent, unpacked: OpenedEvaluation, incidents: Incidents, now: Now, step: Effects
) -> list[Key]:
    """Join it to what is known here; the checks that changed."""
    for one, ends in unpacked.downtimes.items():
        watched.downtimes.setdefault(one, ends)
    for closed in unpacked.closed:
        incidents.learn_closed(closed, step)
    watched.closed = list(dict.fromkeys((*watched.closed, *unpacked.closed)))[-MAX_CLOSED:]
    for check, theirs in unpacked.states.items():
        theirs.at, theirs.since = min(theirs.at, now.wall), min(theirs.since, now.wall)
        ours = watched.states.get(check)
        watched.states[check] = state = theirs if ours is None else states.join_states(ours, theirs)
        incident = unpacked.incidents.get(check)
        if incident is not None:
            incidents.take_over(incident, step)
        key = (watched.agent, check)
        if state.hard and not state.down:
            # One of the two saw it come up; where neither has an incident, nothing happens.
            incidents.close(key, state.since, UP, step)
        elif state.down and incidents.find(key) is None:
            # It came up and went down again while they were apart.
            at = now.wall if incidents.is_over(key, state.at) else state.at
            incidents.open(key, state.state, state.message, at, (), step)
    return [(watched.agent, check) for check in unpacked.states]
