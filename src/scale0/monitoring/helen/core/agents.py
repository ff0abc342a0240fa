"""Who the agents are: what is known of each, connected or not.

Lives here: `Agent`, `Agents`, and how an agent is kept in the store. Never here: a connection's own rules
(`helen_line`), or who may come in (`helen_greeting`). Invariants: one record per identity; a record that changed is
written in the same turn; what an agent says of itself never counts backwards in time.
"""

from __future__ import annotations

import heapq
import sys
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.history.events.checks import AgentDoubled
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.errors import StoreError
from scale0.storage.check_rows import AgentRow, DropAgent, PutAgent

if TYPE_CHECKING:
    from scale0.monitoring.helen.core.agent_connection import AgentConnection

MAX_KNOWN: Final = 200_000
"""Agents that are remembered, away ones included; each has a certificate of ours."""
MAX_LABELS: Final = 64
"""Of one agent; the rest is dropped."""
MAX_LABEL_CHARS: Final = 255
"""Of a label's name, and of its value: what is longer is dropped."""
MAX_CHECKS: Final = 1_000
"""Names of checks of one agent; the rest is dropped."""
MAX_NAME_CHARS: Final = 255
"""Of a check's name."""
MAX_ALL_NAMES_CHARS: Final = 32_768
"""Of all names together; the rest is dropped. They are in every event of the agent's coming and going."""
MAX_SOFTWARE_CHARS: Final = 100
"""Of the version that an agent says it has; the rest is cut."""
TAKEOVERS: Final = 3
"""So many times in TAKEOVER_SECONDS may one identity come again while it is still here; more, and it is on two
machines."""
TAKEOVER_SECONDS: Final = 600.0
MAX_SERIAL_CHARS: Final = 64
"""Of a certificate's serial number that another Helen wrote down."""
MAX_MERGED: Final = 16
"""Handovers of one agent that are remembered, so that none counts twice."""
MAX_MERGED_CHARS: Final = 200
"""Of a handover's id."""

MAX_PAGE_CHARS: Final = 1_000_000
"""Of one page: a character has up to six bytes as JSON, and a message that is too long cuts Helen off the network."""
ITEM_CHARS: Final = 800
"""Of an item beside what an agent says of itself."""

CONNECTED: Final = "connected"
AWAY: Final = "away"
DOUBLED: Final = "doubled"
"""Connected, and its certificate is on another machine as well."""


class StoredAgent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"described_at": "told_at"}):
    """The body of an agent's row; keys that a later version adds are ignored."""

    labels: dict[str, str] = {}
    checks: tuple[str, ...] = ()
    described_at: float = 0.0
    protocol: int = 0
    software: str = ""
    left: float | None = None
    serial: str = ""
    issued: int = 0
    merged: tuple[str, ...] = ()
    moved: msgspec.Raw = msgspec.Raw(b"")
    """Another Helen has it: what `moved` keeps. Empty: it is ours."""


_to_json: Final = msgspec.json.Encoder().encode
read_stored_agent: Final = msgspec.json.Decoder(StoredAgent).decode
"""The body of an agent's row, read."""


class Agent:
    """One identity. `line` is its connection; None: it is away."""

    __slots__ = (
        *(
            "_takeovers",
            "checks",
            "doubled_at",
            "elsewhere_until",
            "identity",
            "issued",
            "labels",
            "left",
            "connection",
        ),
        *("merged", "protocol", "reloaded", "revoked", "serial", "since", "software", "described_at"),
    )

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.connection: AgentConnection | None = None
        self.labels: dict[str, str] = {}
        self.checks: tuple[str, ...] = ()
        self.described_at = 0.0
        """When it spoke of itself last, by the wall clock."""
        self.protocol = 0
        self.software = ""
        self.since = 0.0
        """When it came, by the wall clock."""
        self.left: float | None = None
        """When it went, by the wall clock; None: it is here, or nobody saw it go."""
        self.reloaded: tuple[int, str] | None = None
        """The versions with which it was told to reload because it is too old."""
        self._takeovers: deque[tuple[float, str]] | None = None
        self.doubled_at: float | None = None
        self.serial = ""
        self.issued = 0
        """Of its last certificate, and when that was made: who is revoked while it is away is known by them."""
        self.revoked = False
        """Its last certificate counts no more: it is not missed."""
        self.merged: tuple[str, ...] = ()
        """The last handovers by which it came here."""
        self.elsewhere_until = 0.0
        """Until then, by the monotonic clock, another Helen is believed to have it."""

    def describe(self, labels: dict[str, str], checks: Iterable[str], at: float, now: Now) -> bool:
        """What it says of itself; False: it says nothing new, or said it before what is known."""
        if at < self.described_at <= now.wall:  # what was told in the future was told by a clock that has stepped back
            return False
        stored = {
            sys.intern(name): value
            for name, value in labels.items()
            if 0 < len(name) <= MAX_LABEL_CHARS and len(value) <= MAX_LABEL_CHARS
        }
        if len(stored) > MAX_LABELS:
            stored = dict(heapq.nsmallest(MAX_LABELS, stored.items()))
        # Thousands of agents have the same names: one text each serves them all.
        names = _some({sys.intern(name) for name in checks if is_check_name(name)})
        self.described_at = at
        if stored == self.labels and tuple(names) == self.checks:
            return False
        self.labels, self.checks = stored, tuple(names)
        return True

    def take_over(self, address: str, now: Now, effects: Effects) -> bool:
        """It comes while it is still here; True: so often that two machines must have its certificate."""
        recent = self._takeovers
        if recent is None:
            self._takeovers = recent = deque(maxlen=2 * TAKEOVERS)
        while recent and recent[0][0] <= now.mono - TAKEOVER_SECONDS:
            recent.popleft()
        recent.append((now.mono, host_of(address)))
        if len(recent) <= TAKEOVERS:
            return False
        if not self.is_doubled(now):
            old = () if self.connection is None else (host_of(self.connection.address),)
            addresses = tuple(sorted({*(host for _, host in recent), *old}))
            effects.record(AgentDoubled(identity=self.identity, addresses=addresses))
            self.doubled_at = now.mono
        return True

    def inherit(self, other: Agent | None) -> None:
        """The record before this one may have been pushed out, too."""
        if other is not None and self._takeovers is None:
            self._takeovers, self.doubled_at = other._takeovers, other.doubled_at

    def is_doubled(self, now: Now) -> bool:
        """It was noticed on two machines lately."""
        return self.doubled_at is not None and now.mono - self.doubled_at < TAKEOVER_SECONDS

    def absorb(self, stored: StoredAgent, id_: str, now: Now) -> None:
        """What another Helen knew of it counts where it is newer."""
        self.describe(stored.labels, stored.checks, min(stored.described_at, now.wall), now)
        if not self.protocol:
            self.protocol, self.software = max(0, stored.protocol), stored.software[:MAX_SOFTWARE_CHARS]
            self.serial, self.issued = stored.serial[:MAX_SERIAL_CHARS], stored.issued
        if self.connection is None and stored.left is not None:
            self.left = min(max(stored.left, self.left or 0.0), now.wall)
        known = dict.fromkeys((*stored.merged, *self.merged, id_))
        self.merged = tuple(known)[-MAX_MERGED:]

    def row(self) -> PutAgent:
        """As the store keeps it."""
        stored = StoredAgent(
            labels=self.labels,
            checks=self.checks,
            described_at=self.described_at,
            protocol=self.protocol,
            software=self.software,
            left=self.left,
            serial=self.serial,
            issued=self.issued,
            merged=self.merged,
        )
        return PutAgent(self.identity, _to_json(stored))

    @property
    def chars(self) -> int:
        """How much there is to show of it."""
        described_chars = sum(map(len, self.checks)) + sum(
            len(name) + len(value) for name, value in self.labels.items()
        )
        return ITEM_CHARS + described_chars + len(self.software)

    def view(self, now: Now) -> dict[str, Any]:
        """For people and programs that ask who is there."""
        connection = self.connection
        state = AWAY if connection is None else DOUBLED if self.is_doubled(now) else CONNECTED
        out: dict[str, Any] = {
            "agent": self.identity,
            "state": state,
            "protocol": self.protocol,
            "software": self.software,
            "labels": self.labels,
            "checks": self.checks,
        }
        if connection is not None:
            out |= {
                "since": self.since,
                "address": connection.address,
                "silent_seconds": round(now.mono - connection.last_seen, 3),
            }
        elif self.left is not None:
            out["left"] = self.left
        return out


class Agents:
    """All records, by identity."""

    __slots__ = ("_changed", "by_identity", "connected")

    def __init__(self) -> None:
        self.by_identity: dict[str, Agent] = {}
        self.connected = 0
        self._changed: dict[Agent, None] = {}

    def load(self, rows: Iterable[AgentRow]) -> dict[str, bytes]:
        """What the store remembers; the answer is what it keeps of those that another Helen has."""
        moved: dict[str, bytes] = {}
        for row in rows:
            try:
                stored = read_stored_agent(row.body)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise StoreError(f"the row of agent {row.identity} is damaged: {error}") from error
            if bytes(stored.moved):
                moved[row.identity] = bytes(stored.moved)
                continue
            agent = self.by_identity[row.identity] = Agent(row.identity)
            agent.labels = {sys.intern(name): value for name, value in stored.labels.items()}
            agent.checks = tuple(sys.intern(name) for name in stored.checks)
            agent.described_at, agent.left = stored.described_at, stored.left
            agent.protocol, agent.software = stored.protocol, stored.software
            agent.serial, agent.issued, agent.merged = stored.serial, stored.issued, stored.merged
        return moved

    def get(self, identity: str) -> Agent | None:
        """The record of an identity."""
        return self.by_identity.get(identity)

    def enter(self, identity: str) -> Agent | None:
        """The record of an identity, made where there is none; None: there are too many."""
        agent = self.by_identity.get(identity)
        if agent is None and len(self.by_identity) < MAX_KNOWN:
            agent = self.by_identity[identity] = Agent(identity)
        return agent

    def connect(self, agent: Agent, connection: AgentConnection, protocol: int, software: str, now: Now) -> None:
        """It is here, on this connection; whoever had its place has left it already."""
        changed = agent.left is not None or (agent.protocol, agent.software) != (protocol, software)
        changed = changed or (agent.serial, agent.issued) != (connection.serial, connection.issued)
        agent.protocol, agent.software = protocol, software
        agent.serial, agent.issued, agent.revoked = connection.serial, connection.issued, False
        agent.connection, agent.since, agent.left = connection, now.wall, None
        agent.reloaded = None
        self.connected += 1
        if changed:
            self._changed[agent] = None

    def disconnect(self, agent: Agent, now: Now) -> None:
        """It is away."""
        agent.connection, agent.left = None, now.wall
        self.connected -= 1
        self._changed[agent] = None

    def change(self, agent: Agent) -> None:
        """Something of it that is kept has changed."""
        self._changed[agent] = None

    def forget(self, agent: Agent, effects: Effects) -> None:
        """It is no more."""
        del self.by_identity[agent.identity]
        self._changed.pop(agent, None)
        effects.write(DropAgent(agent.identity))

    def release(self, agent: Agent) -> None:
        """Another Helen has it; its row is somebody else's business."""
        self.by_identity.pop(agent.identity, None)
        self._changed.pop(agent, None)

    def settle(self, effects: Effects) -> None:
        """The turn ends: write what it changed."""
        if self._changed:
            for agent in self._changed:
                effects.write(agent.row())
            self._changed = {}

    def page(self, everyone: bool, after: str, limit: int, now: Now) -> dict[str, Any]:
        """Some of them by identity, and where to go on."""
        wanted = (
            identity
            for identity, agent in self.by_identity.items()
            if identity > after and (everyone or agent.connection is not None)
        )
        names = heapq.nsmallest(limit + 1, wanted)
        items: list[dict[str, Any]] = []
        left = MAX_PAGE_CHARS
        for name in names[:limit]:
            agent = self.by_identity[name]
            left -= agent.chars
            if left < 0 and items:
                break
            items.append(agent.view(now))
        return {"items": items, "next": names[len(items) - 1] if len(names) > len(items) else None}


def _some(names: Iterable[str]) -> list[str]:
    """The first of them, as many as an agent may have."""
    stored: list[str] = []
    left = MAX_ALL_NAMES_CHARS
    for name in sorted(names)[:MAX_CHECKS]:
        left -= len(name)
        if left < 0:
            break
        stored.append(name)
    return stored


def is_check_name(name: str) -> bool:
    """True for a name that fits into a line and a log: printable, without spaces, not too long."""
    return 0 < len(name) <= MAX_NAME_CHARS and name.isprintable() and " " not in name


def host_of(address: str) -> str:
    """`host:port` without its port: each connection has another one."""
    host, colon, _ = address.rpartition(":")
    return host if colon and (":" not in host or host.endswith("]")) else address


def is_older(software: str, least: str) -> bool:
    """True if this version is below `least`, or cannot be compared with it."""
    return _numbers(software) < _numbers(least)


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with, without zeros at the end: 1.20.0 is 1.20."""
    found: list[int] = []
    for part in version.split("."):
        digits = part[: next((at for at, char in enumerate(part) if char not in "0123456789"), len(part))]
        if not digits or len(digits) > 9:
            break
        found.append(int(digits))
        if len(digits) < len(part):
            break
    while found and not found[-1]:
        found.pop()
    return tuple(found)
