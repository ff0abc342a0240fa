"""One agent in the evaluation: its labels, its checks and their states, its downtimes, and its rows in the store.

The agent's own row has an empty check name, and the configuration's row an empty agent name. Real names are never
empty, so neither is mistaken for a state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from scale0.config.schema import ClientConfig
from scale0.kernel.errors import StoreError
from scale0.monitoring.helen.core.check_rules import CompiledCheck
from scale0.monitoring.helen.core.check_state import CheckState, from_row
from scale0.storage.check_rows import CheckStateRow, IncidentRow, NoticeRow, PutCheckState

CONFIG_ROW: Final = "book"
"""The `check` of the configuration's row; its agent is empty."""

Covered = tuple[str, str]
"""A downtime's name, and the check that it covers; empty: all checks of the agent."""


class StoredChecks(msgspec.Struct, frozen=True):
    """What the evaluation loads: all states, all open and the newest closed incidents, all notifications."""

    states: tuple[CheckStateRow, ...] = ()
    incidents: tuple[IncidentRow, ...] = ()
    notices: tuple[NoticeRow, ...] = ()


class StoredDowntimes(msgspec.Struct, array_like=True):
    """An agent's own row."""

    labels: dict[str, str] = {}
    downtimes: list[tuple[str, str, float]] = []
    """Downtimes that were recorded as started: name, check (empty: all), and when they end."""
    closed: list[tuple[str, float]] = []
    """Incidents that another Helen closed, and when."""


_encode: Final = msgspec.msgpack.Encoder().encode
read_own: Final = msgspec.msgpack.Decoder(StoredDowntimes).decode
_encode_config: Final = msgspec.json.Encoder().encode
_decode_config: Final = msgspec.json.Decoder(ClientConfig).decode


class MonitoredAgent:
    __slots__ = ("agent", "closed", "downtimes", "labels", "queued", "rules", "selected", "states")

    def __init__(self, agent: str) -> None:
        self.agent = agent
        self.labels: dict[str, str] = {}
        self.rules: object = None
        """The rules that `selected` was selected from."""
        self.selected: dict[str, CompiledCheck] = {}
        self.states: dict[str, CheckState] = {}
        self.downtimes: dict[Covered, float] = {}
        """Downtimes that were recorded as started, and when they end."""
        self.closed: list[tuple[str, float]] = []
        """The last incidents that another Helen closed."""
        self.queued = False
        """It waits to be re-evaluated."""

    def put(self) -> PutCheckState:
        downtimes = [(name, check, ends) for (name, check), ends in self.downtimes.items()]
        return PutCheckState(self.agent, "", _encode(StoredDowntimes(self.labels, downtimes, self.closed)))


def config_row(part: ClientConfig) -> PutCheckState:
    """The configuration is stored, so that checks are evaluated right after a restart, even without the network."""
    return PutCheckState("", CONFIG_ROW, _encode_config(part))


def read_states(rows: Iterable[CheckStateRow]) -> tuple[dict[str, MonitoredAgent], ClientConfig | None]:
    """All agents by name, and the last configuration."""
    agents: dict[str, MonitoredAgent] = {}
    part: ClientConfig | None = None
    for row in rows:
        try:
            if not row.agent:
                part = _read_config(row)
                continue
            monitored = agents.get(row.agent)
            if monitored is None:
                agents[row.agent] = monitored = MonitoredAgent(row.agent)
            if row.check:
                monitored.states[row.check] = from_row(row.body)
            else:
                stored = read_own(row.body)
                monitored.labels = stored.labels
                monitored.closed = stored.closed
                monitored.downtimes = {(name, check): ends for name, check, ends in stored.downtimes}
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StoreError(f"the state of {row.agent}/{row.check} is damaged: {error}") from error
    return agents, part


def _read_config(row: CheckStateRow) -> ClientConfig | None:
    try:
        return _decode_config(row.body)
    except msgspec.ValidationError:
        # Another version wrote it: the network will deliver the configuration again.
        return None
