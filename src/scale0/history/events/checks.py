"""Events of monitoring: results of checks, states, incidents, downtimes, notices and agents.

There may be 10,000 `check.answered` a second, so this class makes its journal cells itself; the caller passes times
that are finite and not negative.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from scale0.history.events.columns import EventMetric, EventRow, clip_int


class _AnsweredData(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The data of `check.answered`; the fields are in alphabetical order, as the journal writes keys."""

    interval: float | None = None
    max_attempts: int | None = None
    message: str
    scheduled: bool
    timeout: float | None = None


_to_json: Final = msgspec.json.Encoder().encode


class CheckAnswered(msgspec.Struct, frozen=True, gc=False):
    """A check ended, on schedule or on request; `at` is its end."""

    kind: ClassVar[str] = "check.answered"
    agent: str
    check: str
    ref: str
    """`spool:n` of a report, or the id of the request or message."""
    at: float
    state: str
    seconds: float | None
    metrics: tuple[EventMetric, ...]
    message: str
    scheduled: bool = False
    interval: float | None = None
    timeout: float | None = None
    max_attempts: int | None = None

    def _data(self) -> _AnsweredData:
        return _AnsweredData(
            message=self.message,
            scheduled=self.scheduled,
            interval=self.interval,
            timeout=self.timeout,
            max_attempts=self.max_attempts,
        )

    def cells(self) -> list[Any]:
        # fmt: off
        return ["check.answered", self.at, self.agent, self.check, self.ref,
                None, None, self.state, self.seconds, None, None, None,
                self.metrics or None, _to_json(self._data()).decode()]
        # fmt: on

    def row(self) -> EventRow:
        return EventRow(
            kind=self.kind,
            at=self.at,
            identity=self.agent,
            service=self.check,
            ref=self.ref,
            state=self.state,
            seconds=self.seconds,
            metrics=list(self.metrics) or None,
            data=msgspec.to_builtins(self._data()),
        )


class CheckStateChanged(msgspec.Struct, frozen=True):
    """A result changed the state of a check, its hardness or its flapping."""

    kind: ClassVar[str] = "check.state_changed"
    agent: str
    check: str
    ref: str
    """The ref of the result that changed it."""
    at: float
    state: str
    hard: bool
    attempt: int
    """The number of consecutive soft problems; 0 once ok or hard."""
    previous: str
    """The previous state; blank: there was none."""
    flapping: bool
    flapping_percent: float
    message: str = ""
    suppressed: tuple[str, ...] = ()
    """Why a due notice was not sent: `silence NAME`, `downtime NAME`, `depends_on CHECK`…"""

    def row(self) -> EventRow:
        data = {
            "hard": self.hard,
            "previous": self.previous,
            "flapping": self.flapping,
            "flapping_percent": self.flapping_percent,
            "message": self.message,
            "suppressed": self.suppressed,
        }
        return EventRow(
            kind=self.kind,
            at=self.at,
            identity=self.agent,
            service=self.check,
            ref=self.ref,
            attempt=clip_int(self.attempt),
            state=self.state,
            data=data,
        )


class CheckRemoved(msgspec.Struct, frozen=True):
    """An agent no longer runs a check: its definition no longer selects the agent, or the agent was deleted."""

    kind: ClassVar[str] = "check.removed"
    agent: str
    check: str

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, identity=self.agent, service=self.check)


class IncidentOpened(msgspec.Struct, frozen=True):
    """A check is down: its hard state is critical or unknown."""

    kind: ClassVar[str] = "incident.opened"
    agent: str
    check: str
    incident: str
    at: float
    state: str
    message: str = ""
    suppressed: tuple[str, ...] = ()

    def row(self) -> EventRow:
        return EventRow(
            kind=self.kind,
            at=self.at,
            identity=self.agent,
            service=self.check,
            ref=self.incident,
            state=self.state,
            data={"message": self.message, "suppressed": self.suppressed},
        )


class IncidentClosed(msgspec.Struct, frozen=True):
    """The check is up again, or was removed."""

    kind: ClassVar[str] = "incident.closed"
    agent: str
    check: str
    incident: str
    at: float
    worst: str
    """The worst state while it was open."""
    seconds: float
    reason: str
    """`up`, or `removed`: the check is no longer defined for this agent."""
    flapping: bool = False
    """It flapped while it was open."""

    def row(self) -> EventRow:
        return EventRow(
            kind=self.kind,
            at=self.at,
            identity=self.agent,
            service=self.check,
            ref=self.incident,
            state=self.worst,
            seconds=self.seconds,
            data={"reason": self.reason, "flapping": self.flapping},
        )


class DowntimeStarted(msgspec.Struct, frozen=True):
    """A planned downtime began for one agent, or for one check of it."""

    kind: ClassVar[str] = "downtime.started"
    downtime: str
    agent: str
    check: str
    """Blank: all checks of the agent."""
    ends: float
    reason: str = ""
    author: str = ""
    at: float | None = None
    """When it began, if that was before it was recorded."""

    def row(self) -> EventRow:
        return EventRow(
            kind=self.kind,
            at=self.at,
            identity=self.agent,
            service=self.check or None,
            ref=self.downtime,
            data={"ends": self.ends, "reason": self.reason, "author": self.author},
        )


class DowntimeEnded(msgspec.Struct, frozen=True):
    """A planned downtime ended, or was removed before its end."""

    kind: ClassVar[str] = "downtime.ended"
    downtime: str
    agent: str
    check: str
    ends: float
    """The planned end."""
    at: float | None = None

    def row(self) -> EventRow:
        return EventRow(
            kind=self.kind,
            at=self.at,
            identity=self.agent,
            service=self.check or None,
            ref=self.downtime,
            data={"ends": self.ends},
        )


class NoticeSent(msgspec.Struct, frozen=True):
    """A notice was submitted as a task: from now on the guarantees of the task queue apply."""

    kind: ClassVar[str] = "notice.sent"
    notice: str
    """The id of the notice."""
    agent: str
    check: str
    handler: str
    state: str
    task: str
    """The id of the task."""

    def row(self) -> EventRow:
        return EventRow(
            kind=self.kind,
            identity=self.agent or None,
            service=self.check or None,
            ref=self.notice,
            state=self.state,
            data={"handler": self.handler, "task": self.task},
        )


class NoticeDropped(msgspec.Struct, frozen=True):
    """Notices that were not sent: too many in a period, refused by the queue, or their handler is gone."""

    kind: ClassVar[str] = "notice.dropped"
    handler: str
    count: int
    reason: str
    agent: str = ""
    check: str = ""
    """For a single notice."""

    def row(self) -> EventRow:
        return EventRow(
            kind=self.kind,
            identity=self.agent or None,
            service=self.check or None,
            code=clip_int(self.count),
            data={"handler": self.handler, "reason": self.reason},
        )


class AgentDoubled(msgspec.Struct, frozen=True):
    """Connections with one certificate replace each other: it is on two machines."""

    kind: ClassVar[str] = "agent.doubled"
    identity: str
    addresses: tuple[str, ...]

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, identity=self.identity, data={"addresses": self.addresses})


class AgentMoved(msgspec.Struct, frozen=True):
    """An agent migrated from another Helen with its state: its incidents continue."""

    kind: ClassVar[str] = "agent.moved"
    identity: str
    sender: str
    """The identity of the other Helen."""
    checks: int
    incidents: int
    """The number of open ones."""

    def row(self) -> EventRow:
        data = {"from": self.sender, "checks": self.checks, "incidents": self.incidents}
        return EventRow(kind=self.kind, identity=self.identity, data=data)


class AgentRefused(msgspec.Struct, frozen=True):
    """An agent was refused, and its connection was closed."""

    kind: ClassVar[str] = "agent.refused"
    identity: str
    """Blank: it had no certificate."""
    reason: str

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, identity=self.identity or None, data={"reason": self.reason})


class AgentLate(msgspec.Struct, frozen=True):
    """A result arrived after its request had timed out, and was dropped."""

    kind: ClassVar[str] = "agent.late"
    identity: str
    check: str
    ref: str

    def row(self) -> EventRow:
        return EventRow(kind=self.kind, identity=self.identity, service=self.check, ref=self.ref)


EVENTS: Final = (
    CheckAnswered,
    CheckStateChanged,
    CheckRemoved,
    IncidentOpened,
    IncidentClosed,
    DowntimeStarted,
    DowntimeEnded,
    NoticeSent,
    NoticeDropped,
    AgentDoubled,
    AgentMoved,
    AgentRefused,
    AgentLate,
)
