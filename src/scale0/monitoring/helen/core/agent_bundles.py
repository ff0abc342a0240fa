"""Agent bundles: what one Helen sends to another when an agent migrates, and the messages that carry it.

A bundle is validated as a whole before it is used: if any part of it is invalid, nothing of it counts.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final

import msgspec

from scale0.config.monitoring import MAX_WALL
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.monitoring.helen.core import check_state as states
from scale0.monitoring.helen.core import deduplication
from scale0.monitoring.helen.core import incidents as incident_rows
from scale0.monitoring.helen.core.agents import (
    MAX_MERGED,
    MAX_MERGED_CHARS,
    Agent,
    StoredAgent,
    is_check_name,
    read_stored_agent,
)
from scale0.monitoring.helen.core.check_state import CheckState
from scale0.monitoring.helen.core.deduplication import MAX_SPOOLS, HandedSpool, SeenReports, is_spool
from scale0.monitoring.helen.core.incidents import MAX_CLOSED, UP, Closed, Incident, Incidents, Key
from scale0.monitoring.helen.core.monitored_agent import Covered, MonitoredAgent, read_own
from scale0.monitoring.protocol.results import OK
from scale0.storage.check_rows import DropCheckState

PAGE: Final = 500
"""Agents in one `has` request."""
Name = Annotated[str, msgspec.Meta(max_length=255)]
MAX_STATES: Final = 10_000
"""Checks of one agent."""
MAX_DOWNTIMES: Final = 10_000
"""Downtimes that one agent is in, counted for each check."""
SHORT_MESSAGE_CHARS: Final = 200
"""The length of a message in a bundle that would otherwise be too long."""
MAX_BUNDLE_BYTES: Final = 2 * 1024 * 1024
"""The maximum size of the rows of a bundle: it must fit into a message. A longer bundle is sent with short messages."""


class EvaluationBundle(msgspec.Struct, frozen=True, kw_only=True):
    """The evaluation's rows of one agent, not decoded."""

    own: bytes = b""
    """The agent's own row: its labels and the downtimes that were recorded as started."""
    states: dict[str, bytes] = {}
    incidents: list[bytes] = []
    closed: list[Closed] = []
    """Incidents whose end was recorded: an older copy must not reopen them."""

    @property
    def size(self) -> int:
        return len(self.own) + sum(map(len, self.states.values())) + sum(map(len, self.incidents))

    def shorten(self) -> EvaluationBundle:
        """The same bundle with short messages."""
        short: dict[str, bytes] = {}
        for check, body in self.states.items():
            state = states.from_row(body)
            state.message = state.message[:SHORT_MESSAGE_CHARS]
            short[check] = states.to_row(state)
        return EvaluationBundle(own=self.own, states=short, incidents=self.incidents, closed=self.closed)


class OpenedEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """An EvaluationBundle, decoded and validated."""

    downtimes: dict[Covered, float]
    states: dict[str, CheckState]
    incidents: dict[str, Incident]
    closed: list[Closed]

    def doubt(self, helen: str) -> None:
        """This Helen may have closed these incidents, and notified of these recoveries."""
        for check, state in self.states.items():
            if state.notified != OK or check in self.incidents:
                state.doubtful = helen

    def trust(self, helen: str) -> None:
        """This Helen receives it: what she may have closed, she knows."""
        for state in self.states.values():
            if state.doubtful == helen:
                state.doubtful = ""


def open_evaluation(carried: EvaluationBundle, agent: str) -> OpenedEvaluation:
    """Decode and validate what another Helen sent. Raises ValueError or MsgspecError if anything is invalid."""
    downtimes = read_own(carried.own).downtimes if carried.own else []
    if len(carried.states) > MAX_STATES or len(carried.incidents) > MAX_STATES or len(downtimes) > MAX_DOWNTIMES:
        raise ValueError("too many checks for one agent")
    if not all(is_check_name(check) for check in carried.states):
        raise ValueError("invalid check name")
    if not all(math.isfinite(ends) for _, _, ends in downtimes):
        raise ValueError("a downtime without a finite end")
    if len(carried.closed) > MAX_CLOSED or not all(
        id_.startswith(f"{agent}/") and 0.0 <= at <= MAX_WALL for id_, at in carried.closed
    ):
        raise ValueError("closed incidents of another agent")
    found = [incident_rows.read_foreign(body, agent) for body in carried.incidents]
    return OpenedEvaluation(
        downtimes={(name, check): ends for name, check, ends in downtimes},
        states={check: states.read_foreign(body) for check, body in carried.states.items()},
        incidents={incident.check: incident for incident in found if incident.check in carried.states},
        closed=carried.closed,
    )


def export_evaluation(monitored: MonitoredAgent, incidents: Incidents, now: Now, effects: Effects) -> EvaluationBundle:
    """Everything that the evaluation has of an agent, as rows; the store drops them with this turn."""
    carried = EvaluationBundle(
        own=monitored.put().body,
        states={check: states.to_row(state) for check, state in monitored.states.items()},
        incidents=[
            body
            for check in monitored.states
            if (body := incidents.hand_over((monitored.agent, check), now, effects)) is not None
        ],
        closed=incidents.closed_of(monitored.agent),
    )
    for check in ("", *monitored.states):
        effects.write(DropCheckState(monitored.agent, check))
    return carried


def import_evaluation(
    monitored: MonitoredAgent, unpacked: OpenedEvaluation, incidents: Incidents, now: Now, effects: Effects
) -> list[Key]:
    """Merge a bundle into what is known here; returns the checks that changed."""
    for one, ends in unpacked.downtimes.items():
        monitored.downtimes.setdefault(one, ends)
    for closed in unpacked.closed:
        incidents.learn_closed(closed, effects)
    monitored.closed = list(dict.fromkeys((*monitored.closed, *unpacked.closed)))[-MAX_CLOSED:]
    for check, theirs in unpacked.states.items():
        theirs.at, theirs.since = min(theirs.at, now.wall), min(theirs.since, now.wall)
        ours = monitored.states.get(check)
        doubted = ours is not None and ours.doubtful
        monitored.states[check] = state = theirs if ours is None else states.join_states(ours, theirs)
        incident = unpacked.incidents.get(check)
        if incident is not None:
            incidents.take_over(incident, effects)
        key = (monitored.agent, check)
        if state.doubtful and not state.down:
            pass  # the other Helen may have closed its incident
        elif not state.down and (state.hard or doubted):
            # One of the two Helens saw the recovery; if neither has an incident, this does nothing.
            incidents.close(key, state.since, UP, effects)
    for check, state in monitored.states.items():
        key = (monitored.agent, check)
        if state.down and incidents.find(key) is None:
            # The other Helen closed its incident: it recovered and failed again while they were separated, or she had
            # removed the check, and then her bundle has no state of it.
            at = now.wall if incidents.is_over(key, state.at) else state.at
            incidents.open(key, state.state, state.message, at, (), effects)
    return [(monitored.agent, check) for check in unpacked.states]


class AgentBundle(msgspec.Struct, frozen=True, kw_only=True, rename={"evaluation": "watch"}):
    """Everything that one Helen sends to another about an agent."""

    id: str
    """The id of this handover: it counts once."""
    agent: bytes
    """The body of the agent's row."""
    spools: list[HandedSpool] = []
    evaluation: EvaluationBundle = EvaluationBundle()


class OpenedBundle(msgspec.Struct, frozen=True, kw_only=True):
    """An AgentBundle, decoded and validated."""

    id: str
    stored: StoredAgent
    spools: list[tuple[str, SeenReports, int]]
    evaluation: OpenedEvaluation

    @property
    def newest(self) -> float:
        """The time of the newest result."""
        return max((state.at for state in self.evaluation.states.values()), default=0.0)


def open_bundle(bundle: AgentBundle, identity: str) -> OpenedBundle:
    """Decode and validate what another Helen sent. Raises ValueError if anything is invalid."""
    try:
        stored = read_stored_agent(bundle.agent)
        ids = (bundle.id, *stored.merged)
        if len(ids) > MAX_MERGED + 1 or not all(0 < len(each) <= MAX_MERGED_CHARS for each in ids):
            raise ValueError("invalid handover id")
        if len(bundle.spools) > MAX_SPOOLS or not all(is_spool(name) for name, _, _ in bundle.spools):
            raise ValueError("invalid spools")
        spools = [(name, deduplication.read_foreign(seen), heard_us) for name, seen, heard_us in bundle.spools]
        return OpenedBundle(
            id=bundle.id, stored=stored, spools=spools, evaluation=open_evaluation(bundle.evaluation, identity)
        )
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise ValueError(f"invalid agent bundle: {error}") from None


def bundle_of(agent: Agent, id_: str, spools: list[HandedSpool], evaluation: EvaluationBundle | None) -> AgentBundle:
    """The bundle of an agent, short enough for a message."""
    carried = evaluation or EvaluationBundle()
    if carried.size > MAX_BUNDLE_BYTES:
        carried = carried.shorten()
    return AgentBundle(id=id_, agent=agent.row().body, spools=spools, evaluation=carried)


class ReleaseBody(msgspec.Struct, frozen=True):
    """The body of `helen.<identity>.release`: the agent is connected to `to`, hand it over."""

    agent: Name
    to: Name
    merged: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_MERGED)] = ()
    """The last handovers that `to` merged: a bundle of ours among them has arrived."""


class HasBody(msgspec.Struct, frozen=True, rename={"sender": "from"}):
    """The body of `helen.<identity>.has`: which of these agents are connected to you?"""

    agents: Annotated[list[Name], msgspec.Meta(max_length=2 * PAGE)]
    sender: Name = ""
    """The Helen who has a bundle for these agents; empty: none."""


class Held(msgspec.Struct, frozen=True):
    """The answer to `has`: the agents that are connected."""

    held: list[str] = []


class Released(msgspec.Struct, frozen=True):
    """The answer to `release`: the agent's bundle; None: nothing is known of it."""

    rows: AgentBundle | None = None


to_json: Final = msgspec.json.Encoder().encode
decode_released: Final = msgspec.json.Decoder(Released).decode
_decode_held: Final = msgspec.json.Decoder(Held).decode

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding an answer may raise."""


def held_of(value: Any) -> list[str]:
    """The agents in an answer to `has`; none if there is no valid answer."""
    if not isinstance(value, bytes):
        return []
    try:
        return _decode_held(value).held
    except UNREADABLE:
        return []
