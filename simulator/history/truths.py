"""What was planted in a synthetic history, for tests, demos and benchmarks to find again.

Lives here: `Truth`, `Counts` (how many of each), and `truths.json`. Never here: how one is planted. Invariants: times
are whole microseconds, UTC; an interval is [from_us, to_us); the file is complete, or not there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

FILE: Final = "truths.json"
"""Beside the `written=` folders. Spark would skip a name that begins with _ or . silently, so this has none."""
FORM: Final = 1
"""The version of the file's form."""

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
    """A backend that alone offers its service is out: the service is down."""
    agent_outages: int = 2
    broker_kills: int = 1
    """Killed, and started again after some minutes: down."""
    broker_restarts: int = 1
    """In order."""
    helen_restarts: int = 1
    lost_segments: int = 1
    """A broker crashed, and its last segment is gone: a hole, unobserved."""
    rewinds: int = 1
    """An old disk came back: a boot that begins below the last seq."""
    clock_steps: int = 1
    slow_releases: int = 1
    """A method's run times are three times as long from then on."""
    failing_releases: int = 1
    filling_disks: int = 1
    flapping_checks: int = 1
    critical_checks: int = 2
    """Hard critical for some time."""
    criticals_in_downtime: int = 1
    silent_checks: int = 1
    """Not answered for some time: unobserved."""
    agents_cut_off: int = 1
    """For hours; their results come later, some of them recorded by two Helens."""
    quiet_services: int = 1
    deploys: int = 2
    """A node leaves in order and joins again."""
    replaced_clients: int = 1
    changed_clients: int = 1

    @property
    def agents(self) -> int:
        """How many agents have a truth; each has one at most, so that it is clear whose fault is whose."""
        checks = self.filling_disks + self.flapping_checks + self.critical_checks + self.criticals_in_downtime
        return self.agent_outages + checks + self.silent_checks + self.agents_cut_off


class Truth(msgspec.Struct, frozen=True):
    """Something that is known to have happened."""

    kind: str
    subject_kind: str
    """broker, client, service, agent, check, helen or method."""
    subject: str
    """As the tables name it: a check's is `agent/check`."""
    from_us: int
    to_us: int
    facts: dict[str, Any] = {}
    """What else is known of this kind."""


class BootFacts(msgspec.Struct, frozen=True):
    """One boot of a source, as it stands in the segments."""

    boot: int
    first_us: int
    """Of its first and last written event."""
    last_us: int
    first_seq: int
    last_seq: int
    written_seq: int
    """The last one that a segment holds: less than last_seq where the last segment was lost."""


class SourceFacts(msgspec.Struct, frozen=True):
    """One source."""

    source: str
    role: str
    """broker or helen."""
    boots: list[BootFacts]


class Truths(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a history."""

    form: int
    events: int
    """Written ones; `asked` is what was asked for."""
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
    """As `truths.json`."""
    text = msgspec.json.format(msgspec.json.encode(truths), indent=1)
    draft = folder / f"{FILE}.new"
    draft.write_bytes(text + b"\n")
    draft.replace(folder / FILE)


def read(folder: Path) -> Truths:
    """What `write` wrote there."""
    return msgspec.json.decode((folder / FILE).read_bytes(), type=Truths)
