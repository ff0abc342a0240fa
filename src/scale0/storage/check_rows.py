"""The rows that a Helen stores about agents and checks, and the writes and queries for them.

Bodies are opaque bytes. A put inserts or replaces its row, a drop of a missing row is no error, and no write touches a
second table. Every list is ordered and continues after a key, so concurrent writes do not shift its pages.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec


class AgentRow(msgspec.Struct, frozen=True):
    identity: str
    body: bytes


class DropAgent(msgspec.Struct, frozen=True):
    """Delete an agent's row; the states of its checks and its spools are deleted by writes of their own."""

    identity: str


class CheckStateRow(msgspec.Struct, frozen=True):
    """The state of one check on one agent."""

    agent: str
    check: str
    body: bytes


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


class SweepIncidents(msgspec.Struct, frozen=True):
    """Delete at most `limit` incidents that were closed at `before_us` or earlier, the first closed first."""

    before_us: int
    limit: int


class NoticeRow(msgspec.Struct, frozen=True):
    """A notification that must be sent."""

    id: str
    body: bytes


class DropNotice(msgspec.Struct, frozen=True):
    """Delete a notification: it was sent."""

    id: str


# A row is also the write that puts it.
PutAgent = AgentRow
PutCheckState = CheckStateRow
PutSpool = SpoolRow
PutIncident = IncidentRow
PutNotice = NoticeRow

CheckPut = PutAgent | PutCheckState | PutSpool | PutIncident | PutNotice
CheckDrop = DropAgent | DropCheckState | DropSpool | DropNotice
CheckWrite = CheckPut | CheckDrop | SweepIncidents


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

CheckAnswer = tuple[AgentRow | CheckStateRow | SpoolRow | IncidentRow | NoticeRow, ...]
"""Rows of one class, which the class of a CheckQuery determines."""


class CheckTable(NamedTuple):
    """One table, and the classes for it. The first fields of each class are the key, or where a page begins."""

    name: str
    key: tuple[str, ...]
    row: type[Any]
    drop: type[Any] | None = None
    page: type[Any] | None = None
    blob: str = "body"
    """The field of a row that is bytes."""


CHECK_TABLES: Final = (
    CheckTable("agents", ("identity",), AgentRow, DropAgent, ReadAgents),
    CheckTable("check_states", ("agent", "check"), CheckStateRow, DropCheckState, ReadCheckStates),
    CheckTable("spools", ("agent", "spool"), SpoolRow, DropSpool, ReadSpools, "seen"),
    CheckTable("incidents", ("id",), IncidentRow),
    CheckTable("notices", ("id",), NoticeRow, DropNotice, ReadNotices),
)
TABLE_OF: Final = {kind: table for table in CHECK_TABLES for kind in (table.row, table.drop, table.page) if kind}
