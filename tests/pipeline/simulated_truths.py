"""One simulated network, what happened in it as the simulation itself saw it, and its journal as segments.

What the onlooker notes comes from the broker's state and from the simulation, never from an event; segments are written
by the product's own writer, from a store that the product's own code filled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from scale0.history.events.journal import JournalRow
from scale0.history.segments.settings import ExporterSettings
from scale0.history.segments.writer import SegmentWriter
from scale0.storage.sqlite.store import SqliteStore
from scale0.storage.task_rows import STATUS_NAMES, EndedTask, OpenTask
from simulator.network.broker import BrokerNode, BrokerObserver
from simulator.network.faults import Faults
from simulator.network.process import EPOCH_WALL
from simulator.network.world import World
from simulator.plan import make_plan

FAULTS: Final = (
    *("broker_killed", "broker_killed_before_commit", "broker_killed_after_commit", "broker_loses_power"),
    *("backend_killed", "backend_leaves", "frontend_vanishes", "node_killed", "snap_seen"),
    *("task_burst", "task_clients_vanish"),
)
"""What dies, and comes back. No clock is wrong: what a wrong clock does to a table is another test's matter."""
UNSURE_SECONDS: Final = 0.05
"""A commit takes less. Who came so shortly before a kill may be on the disk or not."""
SEGMENT_EVENTS: Final = 400


@dataclass
class Stay:
    """A client at the broker, from joining to whatever ended it."""

    role: str
    identity: str
    since: float
    until: float | None = None
    with_broker: bool = False
    """It ended because the broker did."""


@dataclass
class Life:
    boot_us: int
    began: float
    ended: float | None = None


@dataclass
class Onlooker:
    """Looks at the broker after every turn; everything else goes to the checkers."""

    checkers: Any
    world: World
    lives: list[Life] = field(default_factory=list)
    stays: list[Stay] = field(default_factory=list)
    _there: dict[tuple[str, str], tuple[Any, Stay]] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.checkers, name)

    def began(self, node: BrokerNode, opened: Any, with_disk: bool) -> None:
        assert with_disk, "this plan has no disk to lose"
        now = self.world.agenda.now
        self.lives.append(Life(max(int(node.now.wall * 1_000_000), opened.last_boot_us + 1), now))
        self.checkers.began(node, opened, with_disk)

    def ended(self, node: BrokerNode) -> None:
        now = self.world.agenda.now
        self.lives[-1].ended = now
        for _, stay in self._there.values():
            stay.until, stay.with_broker = now, True
        self._there = {}
        self.checkers.ended(node)

    def after_turn(self, node: BrokerNode) -> None:
        now = self.world.agenda.now
        # Who comes over a new connection is somebody else: its work is requested again.
        joined = {key: member.connection for key, member in node.broker.members.by_name.items() if member.joined}
        for key, (connection, stay) in list(self._there.items()):
            if joined.get(key) is not connection:
                stay.until = now
                del self._there[key]
        for key, connection in joined.items():
            if key not in self._there:
                self._there[key] = connection, Stay(*key, now)
                self.stays.append(self._there[key][1])
        self.checkers.after_turn(node)


@dataclass(frozen=True)
class Truths:
    """What a simulated world knows of itself when its time is over."""

    world: World
    lives: Sequence[Life]
    """Those that stored something at two times: of the others nobody can know how long they were."""
    ends: Sequence[float]
    """When brokers died."""
    stays: Sequence[Stay]
    rows: Sequence[JournalRow]

    @property
    def kills(self) -> list[tuple[float, str]]:
        """When which backend was killed, by the world's diary."""
        found = (re.fullmatch(r" *([0-9.]+)  killed: (\S+)", line) for line in self.world.diary.lines())
        return [(float(match[1]), match[2]) for match in found if match]

    @property
    def tasks(self) -> dict[str, tuple[str, int, str, str]]:
        """By id: state, attempts, method and client of every task, as the broker's store has it."""
        kept = self.world.broker.disk.store.snapshot().tasks
        rows: list[OpenTask | EndedTask] = [*kept.open.values(), *kept.ended.values()]
        return {task.id: (STATUS_NAMES[task.status], task.attempt, task.method, task.client) for task in rows}

    def is_sure(self, at: float) -> bool:
        """False: the broker died just then, and what it knew may be lost."""
        return not any(0 <= end - at < UNSURE_SECONDS for end in self.ends)

    def outages(self) -> Iterator[tuple[float, float, float]]:
        """When the broker that died had begun, when it died, and when the next began."""
        for life, after in zip(self.lives, self.lives[1:], strict=False):
            assert life.ended is not None
            yield life.began, life.ended, after.began


def simulated(seed: int, minutes: float) -> Truths:
    """A whole network under faults, to its end; every promise of the simulation holds, or it raises."""
    world = World(make_plan(seed, minutes, FAULTS), keep_all=True)
    assert not world.plan.disk_may_be_lost
    onlooker = Onlooker(world.check, world)
    world.broker.observer = cast("BrokerObserver", onlooker)
    world.begin()
    Faults(world).begin()
    world.run()
    rows = world.broker.disk.store.snapshot().journal
    times: dict[int, set[int]] = {}
    for row in rows:
        times.setdefault(row.boot, set()).add(row.time_us)
    lives = [life for life in onlooker.lives if len(times.get(life.boot_us, ())) > 1]
    ends = [life.ended for life in onlooker.lives if life.ended is not None]
    return Truths(world, lives, ends, onlooker.stays, rows)


def write_segments(truths: Truths, data: Path, place: Path) -> int:
    """The journal in a store on disk, and its segments; how many there are."""
    store = SqliteStore(data)
    store.open()
    for row in truths.rows:
        store.commit([row])
    store.close()
    settings = ExporterSettings(
        source=truths.world.broker.name,
        data_dir=str(data),
        destination=str(place),
        seconds=60.0,
        events=SEGMENT_EVENTS,
        keep_days=0,
    )
    end = EPOCH_WALL + truths.world.plan.seconds
    writer = SegmentWriter(settings, wall=lambda: end)
    done = list(writer.export(everything=True))
    writer.close()
    assert done[-1].last_seq == truths.rows[-1].last_seq
    return len(done)


def wall_us(at: float) -> int:
    """A time of the world, by the calendar of its broker, in microseconds."""
    return round((EPOCH_WALL + at) * 1_000_000)
