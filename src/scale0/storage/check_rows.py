"""What Helen keeps of agents and their checks: what a commit can say of it, what can be asked, and what comes back.

Lives here: frozen data. Never here: how it is kept, or what a body means: bodies are the machines' own bytes. A put
makes a row or takes the place of the one that was; a drop of a row that is not there is no error; no write touches
another table than its own. Invariant: every list has an order and a place to go on from, so that a page is a page
whatever was written meanwhile.
"""

from __future__ import annotations

import msgspec


class PutAgent(msgspec.Struct, frozen=True):
    """Remember an agent."""

    identity: str
    body: bytes


class DropAgent(msgspec.Struct, frozen=True):
    """Forget an agent's row; the states of its checks and its spools are dropped by writes of their own."""

    identity: str


class PutCheckState(msgspec.Struct, frozen=True):
    """Remember how a check of an agent stands. The most frequent write of all: thousands a second."""

    agent: str
    check: str
    body: bytes


class DropCheckState(msgspec.Struct, frozen=True):
    """Forget a check of an agent."""

    agent: str
    check: str


class PutSpool(msgspec.Struct, frozen=True):
    """Remember which reports of an agent's spool are stored."""

    agent: str
    spool: str
    seen: bytes
    heard_us: int
    """When it was last heard of. Wall clock."""


class DropSpool(msgspec.Struct, frozen=True):
    """Forget a spool."""

    agent: str
    spool: str


class PutIncident(msgspec.Struct, frozen=True):
    """Remember an incident; the same id again is the same incident, later."""

    id: str
    agent: str
    check: str
    opened_us: int
    closed_us: int | None
    """None: it is open."""
    body: bytes


class SweepIncidents(msgspec.Struct, frozen=True):
    """Forget incidents that were closed at `before_us` or earlier, the first closed first, at most `limit`."""

    before_us: int
    limit: int


class PutNotice(msgspec.Struct, frozen=True):
    """Remember a notice that must go out."""

    id: str
    body: bytes


class DropNotice(msgspec.Struct, frozen=True):
    """Forget a notice: it is out."""

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


class AgentRow(msgspec.Struct, frozen=True):
    """An agent as it is kept."""

    identity: str
    body: bytes


class CheckStateRow(msgspec.Struct, frozen=True):
    """How a check of an agent stands, as it is kept."""

    agent: str
    check: str
    body: bytes


class SpoolRow(msgspec.Struct, frozen=True):
    """A spool as it is kept."""

    agent: str
    spool: str
    seen: bytes
    heard_us: int


class IncidentRow(msgspec.Struct, frozen=True):
    """An incident as it is kept."""

    id: str
    agent: str
    check: str
    opened_us: int
    closed_us: int | None
    body: bytes


class NoticeRow(msgspec.Struct, frozen=True):
    """A notice that must go out, as it is kept."""

    id: str
    body: bytes


class ReadAgents(msgspec.Struct, frozen=True):
    """AgentRows by identity, after that one; "" : from the first."""

    after: str
    limit: int


class ReadCheckStates(msgspec.Struct, frozen=True):
    """CheckStateRows by (agent, check), after that place; ("", ""): from the first."""

    after_agent: str
    after_check: str
    limit: int


class ReadSpools(msgspec.Struct, frozen=True):
    """SpoolRows by (agent, spool), after that place; ("", ""): from the first."""

    after_agent: str
    after_spool: str
    limit: int


class ReadNotices(msgspec.Struct, frozen=True):
    """NoticeRows by id, after that one; "" : from the first."""

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
"""Which of them, the class of a CheckAsk says."""
