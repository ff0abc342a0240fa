"""Events of monitoring: results of checks, states, incidents, downtimes, notices and agents.

There may be 10,000 `check.answered` a second, so this class makes its journal cells itself; the caller passes times
that are finite and not negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from scale0.history.events.columns import Event, EventMetric, EventRow


class _AnsweredData(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The data of `check.answered`; the fields are in alphabetical order, as the journal writes keys."""

    interval: float | None = None
    max_attempts: int | None = None
    message: str
    scheduled: bool
    timeout: float | None = None


_to_json: Final = msgspec.json.Encoder().encode


class CheckAnswered(Event, frozen=True, gc=False):
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


class CheckStateChanged(Event, frozen=True):
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


class CheckRemoved(Event, frozen=True):
    """An agent no longer runs a check: its definition no longer selects the agent, or the agent was deleted."""

    kind: ClassVar[str] = "check.removed"
    agent: str
    check: str


class IncidentOpened(Event, frozen=True):
    """A check is down: its hard state is critical or unknown."""

    kind: ClassVar[str] = "incident.opened"
    agent: str
    check: str
    incident: str
    at: float
    state: str
    message: str = ""
    suppressed: tuple[str, ...] = ()


class IncidentClosed(Event, frozen=True):
    """The check is up again, or was removed."""

    kind: ClassVar[str] = "incident.closed"
    targets: ClassVar[Mapping[str, str]] = {"worst": "state"}
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


class DowntimeStarted(Event, frozen=True):
    """A planned downtime began for one agent, or for one check of it."""

    kind: ClassVar[str] = "downtime.started"
    optional: ClassVar[tuple[str, ...]] = ("check",)
    downtime: str
    agent: str
    check: str
    """Blank: all checks of the agent."""
    ends: float
    reason: str = ""
    author: str = ""
    at: float | None = None
    """When it began, if that was before it was recorded."""


class DowntimeEnded(Event, frozen=True):
    """A planned downtime ended, or was removed before its end."""

    kind: ClassVar[str] = "downtime.ended"
    optional: ClassVar[tuple[str, ...]] = ("check",)
    downtime: str
    agent: str
    check: str
    ends: float
    """The planned end."""
    at: float | None = None


class NoticeSent(Event, frozen=True):
    """A notice was submitted as a task, so that from now on the guarantees of the task queue apply; or Helen has
    delivered it herself."""

    kind: ClassVar[str] = "notice.sent"
    optional: ClassVar[tuple[str, ...]] = ("agent", "check", "task")
    notice: str
    """The id of the notice."""
    agent: str
    check: str
    handler: str
    state: str
    task: str
    """The id of the task; empty: there is none."""
    via: str = "queue"
    """`queue`, or `direct`: she delivered it herself."""


class NoticeDropped(Event, frozen=True):
    """Notices that were not sent: too many in a period, not accepted by the queue, not delivered directly, or their
    handler is gone."""

    kind: ClassVar[str] = "notice.dropped"
    targets: ClassVar[Mapping[str, str]] = {"count": "code"}
    optional: ClassVar[tuple[str, ...]] = ("agent", "check")
    handler: str
    count: int
    reason: str
    agent: str = ""
    check: str = ""
    """For a single notice."""


class AgentDoubled(Event, frozen=True):
    """Connections with one certificate replace each other: it is on two machines."""

    kind: ClassVar[str] = "agent.doubled"
    identity: str
    addresses: tuple[str, ...]


class AgentMoved(Event, frozen=True):
    """An agent migrated from another Helen with its state: its incidents continue."""

    kind: ClassVar[str] = "agent.moved"
    targets: ClassVar[Mapping[str, str]] = {"sender": "from"}
    identity: str
    sender: str
    """The identity of the other Helen."""
    checks: int
    incidents: int
    """The number of open ones."""


class AgentRefused(Event, frozen=True):
    """An agent was refused, and its connection was closed."""

    kind: ClassVar[str] = "agent.refused"
    optional: ClassVar[tuple[str, ...]] = ("identity",)
    identity: str
    """Blank: it had no certificate."""
    reason: str


class AgentLate(Event, frozen=True):
    """A result arrived after its request had timed out, and was dropped."""

    kind: ClassVar[str] = "agent.late"
    identity: str
    check: str
    ref: str
