"""The script of a synthetic history: everything planted, before any event is generated."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from simulator.history.plan import Plan
from simulator.history.rows import Array
from simulator.history.truths import Truth

SECOND_US: Final = 1_000_000
_JITTER_US: Final = 1_000_003
_JITTER_K: Final = 2_654_435_761
_JITTER_KEY: Final = 40_503_977


class Boot(NamedTuple):
    """One boot of a source: it records within [start_us, end_us)."""

    start_us: int
    end_us: int
    is_stopped: bool = False
    """It stops cleanly."""
    lost_from_us: int = 0
    """Events from here on are in a lost segment. 0: none."""
    back: int = 0
    """By how many events its restored disk is older."""


class ClockStep(NamedTuple):
    """A wall clock that was set back, and corrected later: it is constant within [from_us, to_us)."""

    source: int
    from_us: int
    to_us: int


class Gap(NamedTuple):
    """A client is absent within [from_us, to_us)."""

    from_us: int
    to_us: int
    is_left: bool
    """It left cleanly; otherwise it was lost."""


class Backend(NamedTuple):
    """A backend of a broker."""

    name: str
    broker: int
    services: tuple[str, ...]
    slots: int
    gaps: tuple[Gap, ...] = ()
    replaced_us: int = 0
    changed_us: int = 0
    """When the same identity joined again; when it offered more slots. 0: never."""

    @property
    def is_node(self) -> bool:
        """It runs tasks."""
        return self.name.startswith("node-")


class Release(NamedTuple):
    """Another version of a method runs within [from_us, to_us)."""

    method: int
    from_us: int
    to_us: int
    run_factor: float = 1.0
    failed_share: float = 0.0


class Episode(NamedTuple):
    """Special results of a check, from number `first` to before number `end`."""

    pair: int
    first: int
    end: int
    what: str
    """critical, flapping or silent."""


class Downtime(NamedTuple):
    ref: str
    agent: int
    check: str
    from_us: int
    to_us: int


class Absence(NamedTuple):
    """An agent is lost at from_us and joins again at to_us; one that was only cut off kept checking."""

    agent: int
    from_us: int
    to_us: int
    is_cut_off: bool


class Filling(NamedTuple):
    """A disk whose `used` grows linearly."""

    pair: int
    at_start: float
    per_us: float


class Schedule(NamedTuple):
    """When each check of each agent ends. Pairs are numbered by agent, then by check."""

    checks: int
    """Checks per agent."""
    phase_us: Array
    """When the first result of each pair is due."""
    interval_us: Array

    def at_us(self, pair: Array, number: Array) -> Array:
        """The end of a result: its due time plus a deterministic jitter."""
        late = (number * _JITTER_K + pair * _JITTER_KEY) % _JITTER_US
        due: Array = self.phase_us[pair] + number * self.interval_us[pair] + late
        return due

    def one_us(self, pair: int, number: int) -> int:
        return int(self.at_us(np.array([pair]), np.array([number]))[0])

    def number_after(self, pair: int, us: int) -> int:
        """The first result that is due at or after an instant."""
        return max(0, -int((self.phase_us[pair] - us) // self.interval_us[pair]))


class Script(NamedTuple):
    plan: Plan
    boots: tuple[tuple[Boot, ...], ...]
    """By source."""
    steps: tuple[ClockStep, ...]
    backends: tuple[Backend, ...]
    releases: tuple[Release, ...]
    schedule: Schedule
    episodes: tuple[Episode, ...]
    downtimes: tuple[Downtime, ...]
    absences: tuple[Absence, ...]
    fillings: tuple[Filling, ...]
    truths: tuple[Truth, ...]
    """Those of sources get their exact numbers after writing."""

    def agent_name(self, agent: int) -> str:
        return f"agent-{agent + 1:04d}"

    def helen_of(self, agent: int) -> int:
        """The Helen of this agent, until it is cut off from her."""
        return self.plan.brokers + agent % self.plan.helens

    def other_helen(self, agent: int) -> int:
        """The Helen of this agent after it was cut off."""
        return self.plan.brokers + (agent + 1) % self.plan.helens


class SourceUptimes:
    """When sources record, vectorised."""

    def __init__(self, boots: tuple[tuple[Boot, ...], ...]) -> None:
        self._starts = [np.array([boot.start_us for boot in uptimes], np.int64) for uptimes in boots]
        self._ends = [np.array([boot.end_us for boot in uptimes], np.int64) for uptimes in boots]

    def boot_of(self, source: int, time: Array) -> Array:
        """The number of the boot at an instant, or of the last one before it."""
        found: Array = np.searchsorted(self._starts[source], time, "right") - 1
        return found

    def is_up(self, source: Array, time: Array) -> Array:
        up = np.zeros(time.shape, bool)
        for each in range(len(self._starts)):
            which = np.flatnonzero(source == each)
            boot = self.boot_of(each, time[which])
            up[which] = (boot >= 0) & (time[which] < self._ends[each][np.maximum(boot, 0)])
        return up

    def delayed(self, source: Array, time: Array, wait_us: Array) -> Array:
        """The time itself if the source records; otherwise `wait_us` after its next start (or NEVER_US)."""
        late = np.flatnonzero(~self.is_up(source, time))
        if not late.size:
            return time
        out = time.copy()
        for each in range(len(self._starts)):
            which = late[source[late] == each]
            boot = self.boot_of(each, time[which]) + 1
            starts = np.append(self._starts[each], NEVER_US)
            out[which] = np.minimum(starts[boot] + wait_us[which], NEVER_US)
        return out


NEVER_US: Final = 2**62
