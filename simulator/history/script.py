"""The script of a synthetic history: what will happen to whom, and when, before a single event is made.

Lives here: the nouns of it, as frozen data. Never here: chance, or an event. Invariant: every truth that is planted
stands here, and everything else that is made follows from the plan and the script alone.
"""

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
    """One life of a source: it records within [start_us, end_us)."""

    start_us: int
    end_us: int
    is_stopped: bool = False
    """It ends in order."""
    lost_from_us: int = 0
    """What it recorded from here on is in a segment that was lost. 0: nothing was."""
    back: int = 0
    """By how many events its disk is older than what was recorded already."""


class ClockStep(NamedTuple):
    """A wall clock that stands within [from_us, to_us): it stepped back, and was set right."""

    source: int
    from_us: int
    to_us: int


class Gap(NamedTuple):
    """A client is not there within [from_us, to_us)."""

    from_us: int
    to_us: int
    is_left: bool
    """It left in order; otherwise it was lost."""


class Backend(NamedTuple):
    """One backend of a broker, and when it is not there."""

    name: str
    broker: int
    services: tuple[str, ...]
    slots: int
    gaps: tuple[Gap, ...] = ()
    replaced_us: int = 0
    changed_us: int = 0
    """When the same identity came again; when it offered more slots. 0: never."""

    @property
    def is_node(self) -> bool:
        """It works on tasks."""
        return self.name.startswith("node-")


class Release(NamedTuple):
    """Another version of a method is in use within [from_us, to_us)."""

    method: int
    from_us: int
    to_us: int
    run_factor: float = 1.0
    failed_share: float = 0.0


class Episode(NamedTuple):
    """The results of a check from number `first` to before number `end` are special."""

    pair: int
    first: int
    end: int
    what: str
    """critical, flapping or silent."""


class Downtime(NamedTuple):
    """Planned."""

    ref: str
    agent: int
    check: str
    from_us: int
    to_us: int


class Absence(NamedTuple):
    """An agent is lost at from_us and joins again at to_us; one that was only cut off has checked all the time."""

    agent: int
    from_us: int
    to_us: int
    is_cut_off: bool


class Filling(NamedTuple):
    """A disk whose `used` grows by a line."""

    pair: int
    at_start: float
    per_us: float


class Schedule(NamedTuple):
    """When each check of each agent ends. Pairs are numbered agent by agent, check by check."""

    checks: int
    """Of each agent."""
    phase_us: Array
    """When the first result of each pair is due."""
    interval_us: Array

    def at_us(self, pair: Array, number: Array) -> Array:
        """The end of a result: due time, and a little more that depends on both alone."""
        late = (number * _JITTER_K + pair * _JITTER_KEY) % _JITTER_US
        due: Array = self.phase_us[pair] + number * self.interval_us[pair] + late
        return due

    def one_us(self, pair: int, number: int) -> int:
        """The same of one."""
        return int(self.at_us(np.array([pair]), np.array([number]))[0])

    def number_after(self, pair: int, us: int) -> int:
        """The first result that is due at or after an instant."""
        return max(0, -int((self.phase_us[pair] - us) // self.interval_us[pair]))


class Script(NamedTuple):
    """Everything that was decided."""

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
    """Those of sources get their exact numbers when all is written."""

    def agent_name(self, agent: int) -> str:
        """As it is known everywhere."""
        return f"agent-{agent + 1:04d}"

    def helen_of(self, agent: int) -> int:
        """The source that has this agent, until it is cut off from her."""
        return self.plan.brokers + agent % self.plan.helens

    def other_helen(self, agent: int) -> int:
        """The one that takes it afterwards."""
        return self.plan.brokers + (agent + 1) % self.plan.helens


class Lives:
    """When the sources record, for many instants at once."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, boots: tuple[tuple[Boot, ...], ...]) -> None:
        self._starts = [np.array([boot.start_us for boot in lives], np.int64) for lives in boots]
        self._ends = [np.array([boot.end_us for boot in lives], np.int64) for lives in boots]

    def boot_of(self, source: int, time: Array) -> Array:
        """The number of the boot that an instant belongs to, or that ended before it."""
        found: Array = np.searchsorted(self._starts[source], time, "right") - 1
        return found

    def is_up(self, source: Array, time: Array) -> Array:
        """True where the source records."""
        up = np.zeros(time.shape, bool)
        for each in range(len(self._starts)):
            which = np.flatnonzero(source == each)
            boot = self.boot_of(each, time[which])
            up[which] = (boot >= 0) & (time[which] < self._ends[each][np.maximum(boot, 0)])
        return up

    def delayed(self, source: Array, time: Array, wait_us: Array) -> Array:
        """The time itself where the source records; else `wait_us` after its next start (which may never come)."""
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
