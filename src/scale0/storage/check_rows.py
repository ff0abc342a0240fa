"""The rows that a Helen stores about agents and checks, and the writes and queries for them.

Bodies are opaque bytes. A put inserts or replaces its row, a drop of a missing row is no error, and no write touches a
second table. Every list is ordered and continues after a key, so concurrent writes do not shift its pages.
"""

from __future__ import annotations

import msgspec


class AgentRow(msgspec.Struct, frozen=True):
    identity: str
    body: bytes


class PutAgent(AgentRow, frozen=True):
    """Store an agent."""


class DropAgent(msgspec.Struct, frozen=True):
    """Delete an agent's row; the states of its checks and its spools are deleted by writes of their own."""

    identity: str


class CheckStateRow(msgspec.Struct, frozen=True):
    """The state of one check on one agent."""

    agent: str
    check: str
    body: bytes


class PutCheckState(CheckStateRow, frozen=True):
    """Store the state of a check. The most frequent write of all: thousands per second."""


class DropCheckState(msgspec.Struct, frozen=True):
    agent: str
    check: str


class SpoolRow(msgspec.Struct, frozen=True):
    """Which reports of an agent's spool are stored."""

    agent: str
    spool: str
    seen: bytes
    heard_us: int
    """When its last report arrived. Wall clock."""


class PutSpool(SpoolRow, frozen=True):
    """Store which reports of a spool are stored."""


class DropSpool(msgspec.Struct, frozen=True):
    agent: str
    spool: str


class IncidentRow(msgspec.Struct, frozen=True):
    id: str
    agent: str
    check: str
    opened_us: int
    closed_us: int | None
    """None: it is open."""
    body: bytes


class PutIncident(IncidentRow, frozen=True):
    """Store an incident; a put with a known id replaces it."""


class SweepIncidents(msgspec.Struct, frozen=True):
    """Delete at most `limit` incidents that were closed at `before_us` or earlier, the first closed first."""

    before_us: int
    limit: int


class NoticeRow(msgspec.Struct, frozen=True):
    """A notification that must be sent."""

    id: str
    body: bytes


class PutNotice(NoticeRow, frozen=True):
    """Store a notification that must be sent."""


class DropNotice(msgspec.Struct, frozen=True):
    """Delete a notification: it was sent."""

    id: str


CheckWrite = (
    PutAgent
    | DropAgent
    | PutCheckState
    | DropCheckState
    | PutSpool
    | DropSpool
    | PutIncident
    | SweepIncidents
    | PutNotice
    | DropNotice
)


class ReadAgents(msgspec.Struct, frozen=True):
    """AgentRows by identity, after `after`; "": from the first."""

    after: str
    limit: int


class ReadCheckStates(msgspec.Struct, frozen=True):
    """CheckStateRows by (agent, check), after this key; ("", ""): from the first."""

    after_agent: str
    after_check: str
    limit: int


class ReadSpools(msgspec.Struct, frozen=True):
    """SpoolRows by (agent, spool), after this key; ("", ""): from the first."""

    after_agent: str
    after_spool: str
    limit: int


class ReadNotices(msgspec.Struct, frozen=True):
    """NoticeRows by id, after `after`; "": from the first."""

    after: str
    limit: int


class ReadIncidents(msgspec.Struct, frozen=True):
    """IncidentRows, newest first: those before (opened_us, id), or from the newest on."""

    open_only: bool
    before_us: int | None
    """None: from the newest."""
    before_id: str
    limit: int


CheckQuery = ReadAgents | ReadCheckStates | ReadSpools | ReadNotices | ReadIncidents

CheckAnswer = (
    tuple[AgentRow, ...]
    | tuple[CheckStateRow, ...]
    | tuple[SpoolRow, ...]
    | tuple[IncidentRow, ...]
    | tuple[NoticeRow, ...]
)
"""The class of a CheckQuery determines which."""
