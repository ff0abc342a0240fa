"""Incidents: from the moment that a check goes down until it is up again.

A check has at most one open incident. Memory and store change in the same commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from scale0.config.monitoring import MAX_WALL
from scale0.history.events.checks import IncidentClosed, IncidentOpened
from scale0.kernel.clock import Now
from scale0.kernel.confirmed_clock import LONG_AGO, ConfirmedClock
from scale0.kernel.effects import Effects
from scale0.kernel.errors import StoreError
from scale0.monitoring.protocol.results import MAX_MESSAGE_CHARS, SEVERITY
from scale0.storage.check_rows import IncidentRow, PutIncident, SweepIncidents

RECENT: Final = 1_000
"""Closed incidents in memory; the journal has all."""
KEPT_SECONDS: Final = 90 * 86_400.0
"""How long the store keeps a closed incident."""
SWEEP_LIMIT: Final = 2_000
"""Incidents deleted in one sweep: few enough for one commit, and more per day than a network opens."""

UP: Final = "up"
REMOVED: Final = "removed"
MERGED: Final = "merged"
"""Two Helens each opened one for the same check: the older one continues."""
MOVED: Final = "moved"
"""Another Helen continues it: it is closed in this store only, without an event."""

MAX_CLOSED: Final = 100
"""Closed incidents of one agent in its bundle: another Helen may have an old copy in which one of them is open."""
MAX_AGENTS: Final = 20_000
"""Agents whose closed incidents are remembered."""
MAX_SUPPRESSED: Final = 1_000
"""Reasons of suppression in another Helen's incident."""

_MICROSECONDS: Final = 1_000_000

Closed = tuple[str, float]
"""The id of a closed incident, and when it was closed."""
Key = tuple[str, str]
"""An agent and a check."""


class Incident(msgspec.Struct, kw_only=True):
    """One incident; open while `closed` is None. Times are wall times of results."""

    id: str
    agent: str
    check: str
    opened: float
    closed: float | None = None
    state: str
    worst: str
    message: str = ""
    flapping: bool = False
    suppressed: tuple[str, ...] = ()
    """What suppressed its notifications when it was opened."""
    reason: str = ""

    @property
    def sort_key(self) -> tuple[int, str]:
        return _microseconds(self.opened), self.id

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = msgspec.to_builtins(self)
        return out

    @property
    def moved(self) -> bool:
        """Another Helen has it."""
        return self.reason == MOVED


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Incident).decode


def read_row(row: IncidentRow) -> Incident:
    try:
        return _decode(row.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError(f"the row of incident {row.id} is damaged: {error}") from error


def read_foreign(body: bytes, agent: str) -> Incident:
    """Decode and validate an open incident of another Helen. Raises ValueError or MsgspecError."""
    incident = _decode(body)
    if (
        incident.agent != agent
        or incident.closed is not None
        or not 0.0 <= incident.opened <= MAX_WALL
        or incident.id != id_of((agent, incident.check), incident.opened)
        or incident.state not in SEVERITY
        or incident.worst not in SEVERITY
        or len(incident.suppressed) > MAX_SUPPRESSED
    ):
        raise ValueError("invalid incident")
    incident.message, incident.reason = incident.message[:MAX_MESSAGE_CHARS], ""
    return incident


def _microseconds(wall: float) -> int:
    return round(wall * _MICROSECONDS)


def id_of(key: Key, opened: float) -> str:
    return f"{key[0]}/{key[1]}@{_microseconds(opened)}"


class Incidents:
    def __init__(self, rows: Iterable[IncidentRow]) -> None:
        self._open: dict[Key, Incident] = {}
        self._recent: deque[Incident] = deque(maxlen=RECENT)
        self._clock: ConfirmedClock | None = None
        self._ends: dict[str, dict[str, float]] = {}
        """By agent: the last closed incidents, here or at another Helen. An older copy that is still open is wrong."""
        found = {row.id: read_row(row) for row in rows}
        for incident in sorted(found.values(), key=lambda one: one.sort_key):
            if incident.closed is None:
                self._open[incident.agent, incident.check] = incident
            elif not incident.moved:
                self._remember(incident)

    def __len__(self) -> int:
        return len(self._open)

    def find(self, key: Key) -> Incident | None:
        return self._open.get(key)

    def open(
        self, key: Key, state: str, message: str, at: float, suppressed: tuple[str, ...], effects: Effects
    ) -> Incident:
        """A check is down: open an incident, or continue the open one."""
        incident = self._open.get(key)
        if incident is not None:
            self._continue(incident, state, message, effects)
            return incident
        agent, check = key
        incident = Incident(
            id=id_of(key, at),
            agent=agent,
            check=check,
            opened=at,
            state=state,
            worst=state,
            message=message,
            suppressed=suppressed,
        )
        self._open[key] = incident
        self._write(incident, effects)
        effects.record(IncidentOpened(agent, check, incident.id, at, state, message, suppressed))
        return incident

    def _continue(self, incident: Incident, state: str, message: str, effects: Effects) -> None:
        if incident.state == state:
            return
        incident.state, incident.message = state, message
        if SEVERITY[state] > SEVERITY[incident.worst]:
            incident.worst = state
        self._write(incident, effects)

    def flaps(self, key: Key, effects: Effects) -> None:
        incident = self._open.get(key)
        if incident is not None and not incident.flapping:
            incident.flapping = True
            self._write(incident, effects)

    def close(self, key: Key, at: float, reason: str, effects: Effects) -> None:
        """Close the open incident of a check, if there is one."""
        incident = self._open.pop(key, None)
        if incident is None:
            return
        # A clock that was set back must not give a negative duration.
        incident.closed = max(at, incident.opened)
        incident.reason = reason
        self._remember(incident)
        self._write(incident, effects)
        seconds = incident.closed - incident.opened
        effects.record(
            IncidentClosed(*key, incident.id, incident.closed, incident.worst, seconds, reason, incident.flapping)
        )

    def _remember(self, incident: Incident) -> None:
        self._recent.append(incident)
        self._note_end(incident.id, incident.closed or incident.opened)

    def _note_end(self, id_: str, at: float) -> None:
        agent = id_.partition("/")[0]
        ends = self._ends.get(agent)
        if ends is None:
            self._ends[agent] = ends = {}
            if len(self._ends) > MAX_AGENTS:
                del self._ends[next(iter(self._ends))]
        ends[id_] = at
        if len(ends) > MAX_CLOSED:
            del ends[next(iter(ends))]

    def hand_over(self, key: Key, now: Now, effects: Effects) -> bytes | None:
        """The open incident of a check that moves to another Helen; here it is closed without an event."""
        incident = self._open.pop(key, None)
        if incident is None:
            return None
        body = _encode(incident)
        incident.closed, incident.reason = max(now.wall, incident.opened), MOVED
        self._write(incident, effects)
        return body

    def closed_of(self, agent: str) -> list[Closed]:
        """The last closed incidents of an agent."""
        return list(self._ends.get(agent, {}).items())

    def is_over(self, key: Key, at: float) -> bool:
        """True if the incident that was opened then is closed."""
        return self._has_ended(key[0], id_of(key, at))

    def _has_ended(self, agent: str, id_: str) -> bool:
        return id_ in self._ends.get(agent, ())

    def note_ends(self, ends: Iterable[Closed]) -> None:
        """After a restart: incidents that another Helen closed."""
        for id_, at in ends:
            self._note_end(id_, at)

    def learn_closed(self, closed: Closed, effects: Effects) -> None:
        """Another Helen closed this incident: close an older copy that is open here."""
        id_, at = closed
        self._note_end(id_, at)
        agent, _, check = id_.rpartition("@")[0].partition("/")
        incident = self._open.get((agent, check))
        if incident is not None and incident.id == id_:
            del self._open[agent, check]
            incident.closed, incident.reason = max(at, incident.opened), UP
            self._remember(incident)
            self._write(incident, effects)

    def take_over(self, incident: Incident, effects: Effects) -> None:
        """Continue an incident of another Helen; of two for one check, the older one continues."""
        key = (incident.agent, incident.check)
        ours = self._open.get(key)
        if self._has_ended(incident.agent, incident.id):
            return
        if ours is not None and ours.id == incident.id:
            if SEVERITY[incident.worst] > SEVERITY[ours.worst]:
                ours.worst = incident.worst
                self._write(ours, effects)
            return
        if ours is not None and ours.sort_key <= incident.sort_key:
            self._open[key] = incident
            self.close(key, incident.opened, MERGED, effects)
            self._open[key] = ours
            return
        if ours is not None:
            self.close(key, ours.opened, MERGED, effects)
        self._open[key] = incident
        self._write(incident, effects)

    def _write(self, incident: Incident, effects: Effects) -> None:
        closed = None if incident.closed is None else _microseconds(incident.closed)
        body = _encode(incident)
        effects.write(
            PutIncident(incident.id, incident.agent, incident.check, _microseconds(incident.opened), closed, body)
        )

    def sweep(self, now: Now, effects: Effects) -> None:
        """Delete old closed incidents from the store; a jump of the wall clock makes none old."""
        self._clock = self._clock or ConfirmedClock(now, LONG_AGO)
        effects.write(SweepIncidents(max(0, _microseconds(self._clock.read(now) - KEPT_SECONDS)), SWEEP_LIMIT))

    def newest_first(self, open_only: bool) -> list[Incident]:
        found = list(self._open.values())
        if not open_only:
            found += self._recent
        found.sort(key=lambda one: one.sort_key, reverse=True)
        return found
