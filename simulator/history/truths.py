"""What was planted in a synthetic history: the records of `truths.json`.

Times are whole microseconds, UTC; an interval is [from_us, to_us). The file is complete or does not exist.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

FILE: Final = "truths.json"
"""Beside the `written=` directories. Spark would silently skip a name that begins with _ or ."""
FORM: Final = 1
"""The version of the file format."""

BACKEND_OUTAGE: Final = "backend_outage"
AGENT_OUTAGE: Final = "agent_outage"
BROKER_KILLED: Final = "broker_killed"
BROKER_RESTARTED: Final = "broker_restarted"
HELEN_RESTARTED: Final = "helen_restarted"
LOST_SEGMENT: Final = "lost_segment"
REWIND: Final = "rewind"
CLOCK_STEPPED: Final = "clock_stepped"
SLOW_RELEASE: Final = "slow_release"
FAILING_RELEASE: Final = "failing_release"
FILLING_DISK: Final = "filling_disk"
FLAPPING_CHECK: Final = "flapping_check"
CRITICAL_CHECK: Final = "critical_check"
CRITICAL_IN_DOWNTIME: Final = "critical_in_downtime"
SILENT_CHECK: Final = "silent_check"
AGENT_CUT_OFF: Final = "agent_cut_off"
QUIET_SERVICE: Final = "quiet_service"
DEPLOY: Final = "deploy"
CLIENT_REPLACED: Final = "client_replaced"
CLIENT_CHANGED: Final = "client_changed"


class Counts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many of each truth are planted."""

    backend_outages: int = 2
    """The only backend of a service is down: the service is down."""
    agent_outages: int = 2
    broker_kills: int = 1
    """Killed, and started again after some minutes: down."""
    broker_restarts: int = 1
    """Clean restarts."""
    helen_restarts: int = 1
    lost_segments: int = 1
    """A broker crashed, and its last segment is lost: a hole, unobserved."""
    rewinds: int = 1
    """An old disk was restored: a boot begins below the last seq."""
    clock_steps: int = 1
    slow_releases: int = 1
    """A method's run times triple."""
    failing_releases: int = 1
    filling_disks: int = 1
    flapping_checks: int = 1
    critical_checks: int = 2
    """Hard critical for some time."""
    criticals_in_downtime: int = 1
    silent_checks: int = 1
    """Not answered for some time: unobserved."""
    agents_cut_off: int = 1
    """For hours; their results arrive later, some recorded by two Helens."""
    quiet_services: int = 1
    deploys: int = 2
    """A node leaves cleanly and joins again."""
    replaced_clients: int = 1
    changed_clients: int = 1

    @property
    def agents(self) -> int:
        """How many agents have a truth; each has at most one."""
        checks = self.filling_disks + self.flapping_checks + self.critical_checks + self.criticals_in_downtime
        return self.agent_outages + checks + self.silent_checks + self.agents_cut_off


class Truth(msgspec.Struct, frozen=True):
    kind: str
    subject_kind: str
    """broker, client, service, agent, check, helen or method."""
    subject: str
    """As in the tables: a check's is `agent/check`."""
    from_us: int
    to_us: int
    facts: dict[str, Any] = {}
    """More facts, depending on the kind."""


class BootFacts(msgspec.Struct, frozen=True):
    """One boot of a source, as in the segments."""

    boot: int
    first_us: int
    """Of its first and last written event."""
    last_us: int
    first_seq: int
    last_seq: int
    written_seq: int
    """The last seq in a segment: less than last_seq if the last segment was lost."""


class SourceFacts(msgspec.Struct, frozen=True):
    source: str
    role: str
    """broker or helen."""
    boots: list[BootFacts]


class Truths(msgspec.Struct, frozen=True, kw_only=True):
    form: int
    events: int
    """Written events; `asked` is the requested number."""
    asked: int
    days: int
    seed: int
    from_us: int
    to_us: int
    segments: int
    kinds: dict[str, int]
    """Written events by kind."""
    sources: list[SourceFacts]
    agents: int
    checks: int
    truths: list[Truth]


def write(truths: Truths, folder: Path) -> None:
    text = msgspec.json.format(msgspec.json.encode(truths), indent=1)
    partial = folder / f"{FILE}.new"
    partial.write_bytes(text + b"\n")
    partial.replace(folder / FILE)


def read(folder: Path) -> Truths:
    return msgspec.json.decode((folder / FILE).read_bytes(), type=Truths)
