"""The agents that Helen knows, connected or not, and their rows in the store.

There is one record per identity. A changed record is written in the same turn. An agent's description never goes back
in time.
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
"""Known agents, including those that are away; each has a certificate."""
MAX_LABELS: Final = 64
"""Labels of one agent; the rest is dropped."""
MAX_LABEL_CHARS: Final = 255
"""Longer label names and values are dropped."""
MAX_CHECKS: Final = 1_000
"""Check names of one agent; the rest is dropped."""
MAX_NAME_CHARS: Final = 255
MAX_ALL_NAMES_CHARS: Final = 32_768
"""The total length of an agent's check names; the rest is dropped. Each event of its connections contains them."""
MAX_SOFTWARE_CHARS: Final = 100
"""The length of an agent's version; the rest is cut."""
TAKEOVERS: Final = 3
"""Within TAKEOVER_SECONDS, an identity may connect this often while it is still connected; beyond it, two hosts use the
same certificate."""
TAKEOVER_SECONDS: Final = 600.0
MAX_SERIAL_CHARS: Final = 64
"""The length of a serial number in another Helen's bundle."""
MAX_MERGED: Final = 16
"""The last handovers of one agent, so that none counts twice."""
MAX_MERGED_CHARS: Final = 200
"""The length of a handover's id."""

MAX_PAGE_CHARS: Final = 1_000_000
"""The length of one page: a character takes up to six bytes as JSON, and a message that is too long would cost Helen
her connection to the network."""
ITEM_CHARS: Final = 800
"""The length of an item without the agent's own data."""

CONNECTED: Final = "connected"
AWAY: Final = "away"
DOUBLED: Final = "doubled"
"""Connected, and another host uses the same certificate."""


class StoredAgent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"described_at": "told_at"}):
    """The body of an agent's row; keys of later versions are ignored."""

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
    """Another Helen has the agent: see `migrated_agents`. Empty: the agent is ours."""


_to_json: Final = msgspec.json.Encoder().encode
read_stored_agent: Final = msgspec.json.Decoder(StoredAgent).decode


class Agent:
    """One identity. `connection` is None while the agent is away."""

    __slots__ = (
        *("_takeovers", "checks", "connection", "described_at", "described_on", "doubled_at", "elsewhere_until"),
        *("identity", "left_mono"),
        *("issued", "labels", "left", "merged", "protocol", "reloaded", "revoked", "serial", "since", "software"),
    )

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.connection: AgentConnection | None = None
        self.labels: dict[str, str] = {}
        self.checks: tuple[str, ...] = ()
        self.described_at = 0.0
        """When the agent last described itself, wall time."""
        self.described_on: AgentConnection | None = None
        """The connection on which it last did so."""
        self.protocol = 0
        self.software = ""
        self.since = 0.0
        """When it connected, wall time."""
        self.left: float | None = None
        """When it disconnected, wall time; None: it is connected, or Helen did not see it disconnect."""
        self.reloaded: tuple[int, str] | None = None
        """The versions with which it was asked to reload because they are too old."""
        self._takeovers: deque[tuple[float, str]] | None = None
        self.doubled_at: float | None = None
        self.serial = ""
        self.issued = 0
        """The serial of its last certificate and when it was issued: Helen checks them against revocations while it is
        away."""
        self.revoked = False
        """Its last certificate is revoked: it is not reported as missing."""
        self.merged: tuple[str, ...] = ()
        """The last handovers that were merged."""
        self.left_mono = 0.0
        """When it disconnected, monotonic time; 0: not since the start of this process."""
        self.elsewhere_until = 0.0
        """Until this monotonic time, another Helen is assumed to have it."""

    def describe(self, labels: dict[str, str], checks: Iterable[str], at: float, now: Now) -> bool:
        """Update labels and checks; False: nothing changed, or a newer description is known."""
        if at < self.described_at <= now.wall:  # a time in the future comes from a clock that was set back since
            return False
        stored = {
            sys.intern(name): value
            for name, value in labels.items()
            if 0 < len(name) <= MAX_LABEL_CHARS and len(value) <= MAX_LABEL_CHARS
        }
        if len(stored) > MAX_LABELS:
            stored = dict(heapq.nsmallest(MAX_LABELS, stored.items()))
        # Thousands of agents have the same check names: interned, they share one string.
        names = _some({sys.intern(name) for name in checks if is_check_name(name)})
        self.described_at = at
        if stored == self.labels and tuple(names) == self.checks:
            return False
        self.labels, self.checks = stored, tuple(names)
        return True

    def take_over(self, address: str, now: Now, effects: Effects) -> bool:
        """Another connection replaces the current one; True: so often that two hosts must use the certificate."""
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
        """Continue the count of takeovers from an earlier record of the same agent."""
        if other is not None and self._takeovers is None:
            self._takeovers, self.doubled_at = other._takeovers, other.doubled_at

    def is_doubled(self, now: Now) -> bool:
        return self.doubled_at is not None and now.mono - self.doubled_at < TAKEOVER_SECONDS

    def absorb(self, stored: StoredAgent, id_: str, now: Now) -> None:
        """Merge what another Helen knew, where it is newer."""
        # What the agent said on its present connection is the newest, whatever the clocks of the two Helens say.
        if self.connection is None or self.described_on is not self.connection:
            self.describe(stored.labels, stored.checks, min(stored.described_at, now.wall), now)
        if not self.protocol:
            self.protocol, self.software = max(0, stored.protocol), stored.software[:MAX_SOFTWARE_CHARS]
            self.serial, self.issued = stored.serial[:MAX_SERIAL_CHARS], stored.issued
        if self.connection is None and stored.left is not None:
            self.left = min(max(stored.left, self.left or 0.0), now.wall)
        known = dict.fromkeys((*stored.merged, *self.merged, id_))
        self.merged = tuple(known)[-MAX_MERGED:]

    def row(self) -> PutAgent:
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
        """The length of its item in a page."""
        described_chars = sum(map(len, self.checks)) + sum(
            len(name) + len(value) for name, value in self.labels.items()
        )
        return ITEM_CHARS + described_chars + len(self.software)

    def view(self, now: Now) -> dict[str, Any]:
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
    def __init__(self) -> None:
        self.by_identity: dict[str, Agent] = {}
        self.connected = 0
        self._changed: dict[Agent, None] = {}

    def load(self, rows: Iterable[AgentRow]) -> dict[str, bytes]:
        """Load the store's rows; returns the bodies of agents that another Helen has."""
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
        return self.by_identity.get(identity)

    def enter(self, identity: str) -> Agent | None:
        """Find or create a record; None: there are too many."""
        agent = self.by_identity.get(identity)
        if agent is None and len(self.by_identity) < MAX_KNOWN:
            agent = self.by_identity[identity] = Agent(identity)
        return agent

    def connect(self, agent: Agent, connection: AgentConnection, protocol: int, software: str, now: Now) -> None:
        """The agent is accepted on this connection; a previous connection is closed already."""
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
        agent.connection, agent.left, agent.left_mono = None, now.wall, now.mono
        agent.described_on = None
        self.connected -= 1
        self._changed[agent] = None

    def change(self, agent: Agent) -> None:
        self._changed[agent] = None

    def forget(self, agent: Agent, effects: Effects) -> None:
        del self.by_identity[agent.identity]
        self._changed.pop(agent, None)
        effects.write(DropAgent(agent.identity))

    def release(self, agent: Agent) -> None:
        """Another Helen has the agent; the caller takes care of its row."""
        self.by_identity.pop(agent.identity, None)
        self._changed.pop(agent, None)

    def settle(self, effects: Effects) -> None:
        """Write the records that this turn changed."""
        if self._changed:
            for agent in self._changed:
                effects.write(agent.row())
            self._changed = {}

    def page(self, everyone: bool, after: str, limit: int, now: Now) -> dict[str, Any]:
        """A page of agents, by identity, and where the next page begins."""
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
    """The first names that fit into the limits."""
    stored: list[str] = []
    left = MAX_ALL_NAMES_CHARS
    for name in sorted(names)[:MAX_CHECKS]:
        left -= len(name)
        if left < 0:
            break
        stored.append(name)
    return stored


def is_check_name(name: str) -> bool:
    """True for a name that is printable, without spaces and not too long: it must fit into a line and a log."""
    return 0 < len(name) <= MAX_NAME_CHARS and name.isprintable() and " " not in name


def host_of(address: str) -> str:
    """The host of `host:port`: each connection has another port."""
    host, colon, _ = address.rpartition(":")
    return host if colon and (":" not in host or host.endswith("]")) else address


def is_older(software: str, least: str) -> bool:
    """True if this version is below `least`, or cannot be compared with it."""
    return _numbers(software) < _numbers(least)


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, without trailing zeros: 1.20.0 is 1.20."""
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
