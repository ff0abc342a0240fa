"""The store that brokers share, in memory: for tests and the simulated world.

Lives here: `FakeDatabase`, the database, and `FakePostgresStore`, one broker's store on it. Never here: a connection,
or a wait. Invariants: it answers as PostgreSQL does; a broker whose epoch ended changes nothing any more; what was
committed is committed once, whatever answer got lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.kernel.errors import StoreError
from scale0.storage.interface import (
    CHECK_WRITES,
    MAX_SLOT,
    SLOT_BITS,
    TASK_WRITES,
    OpenedStore,
    SharedStoreInfo,
    StoreFailed,
    StoreFenced,
    StoreRefused,
    check_writes,
    hit_failpoint,
)
from scale0.storage.memory.store import DEFAULT_FREE_BYTES, MemorySnapshot, MemoryStore
from scale0.storage.rows import Answer, Query, ReadDocument, ReadDocuments, ReadJournal, Write, is_claim
from scale0.storage.task_queries import StoreHeartbeat, StoreHeartbeatResult
from scale0.storage.task_rows import PutTask
from simulator.fake_postgres.tasks import SharedTasks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OPENING_LEASE_US: Final = 10_000_000
"""How long a broker that has just opened the store may take until its first Beat."""

UNREACHABLE: Final = "the database cannot be reached"


class StoreUnreachable(StoreError):
    """Of the simulated world alone: the database cannot be reached now. PostgreSQL's store waits; a world that has no
    time to wait in does the same again later."""


class Member:
    """A broker, as the database knows it."""

    __slots__ = ("alive_until_us", "commits", "counter", "epoch", "own", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.epoch = 0
        self.alive_until_us: int | None = None
        """None: it is dead, or has given up."""
        self.commits = 0
        self.counter = 0
        """Of its last task."""
        self.own = MemoryStore()
        """What is not shared."""


class FakeDatabase:
    """The database: what all brokers of a group see. `clock_us` is its own clock, and no broker's."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self.clock_us = clock_us
        self.tasks = SharedTasks(clock_us)
        self.members: dict[str, Member] = {}

    def join(self, identity: str) -> Member:
        """A new life of a broker: what its predecessor held is nobody's."""
        member = self.members.get(identity)
        if member is None:
            if len(self.members) > MAX_SLOT:
                raise StoreRefused(f"{MAX_SLOT + 1} brokers have used this database; start with another")
            member = self.members[identity] = Member(len(self.members))
        else:
            member.own = member.own.crash()
        self.end(identity)
        member.alive_until_us = self.clock_us() + OPENING_LEASE_US
        return member

    def lease_left_us(self, identity: str) -> int:
        """How long PostgreSQL's store would wait before it lets another process have this identity."""
        member = self.members.get(identity)
        if member is None or member.alive_until_us is None:
            return 0
        return max(0, member.alive_until_us - self.clock_us())

    def is_alive(self, life: tuple[str, int]) -> bool:
        """This epoch of this broker has not ended."""
        return self.members[life[0]].epoch == life[1]

    def end(self, identity: str) -> None:
        """End a broker's epoch."""
        member = self.members[identity]
        member.epoch += 1
        member.alive_until_us = None
        self.tasks.let_go(identity)

    def beat(self, identity: str, lease_us: int, judges: bool) -> StoreHeartbeatResult:
        """Who is alive, by the clock."""
        now, me = self.clock_us(), self.members[identity]
        late = me.alive_until_us is None or me.alive_until_us < now
        me.alive_until_us = now + lease_us
        died, alive = [], []
        for name, member in sorted(self.members.items()):
            if name == identity or member.alive_until_us is None:
                continue
            if member.alive_until_us < now and judges and not late:
                self.end(name)
                died.append(name)
            else:
                alive.append(name)
        return StoreHeartbeatResult(len(self.tasks), tuple(died), tuple(alive))


class FakePostgresStore:
    """One broker's store, for one life of it.

    The world may set `unreachable`: then every call raises StoreAway, and may be made again. `lose_answer` has the next
    commit done and its answer lost. A predecessor that was killed is followed at once: a world that wants to wait as
    PostgreSQL does asks `FakeDatabase.lease_left_us`.
    """

    def __init__(self, database: FakeDatabase, identity: str, failpoint: Callable[[str], None] | None = None) -> None:
        self.database = database
        self.identity = identity
        self.unreachable = False
        self._failpoint = failpoint
        self._lost = ""
        self._free_bytes = DEFAULT_FREE_BYTES
        self._member = Member(0)
        self._epoch = 0
        self._commits = 0
        self._state = "new"

    def open(self) -> OpenedStore:
        if self._state != "new":
            raise StoreRefused("this store was opened before: make another")
        if self.unreachable:
            raise StoreRefused(UNREACHABLE)
        self._member = member = self.database.join(self.identity)
        self._epoch, self._commits = member.epoch, member.commits
        self._state = "open"
        return msgspec.structs.replace(
            member.own.open(),
            next_task_seq=member.counter + 1,
            open_tasks=len(self.database.tasks),
            shared=SharedStoreInfo(member.slot, member.epoch),
        )

    def commit(self, writes: Sequence[Write]) -> None:
        if self._state != "open":
            raise StoreFailed("the store is not open, or an earlier commit failed")
        self._reach_database()
        self._fence()
        if self._member.commits == self._commits + 1:
            self._commits += 1  # it was done when its answer got lost
            return
        check_writes(writes, self._member.own.next_seq)
        if any(type(write) in CHECK_WRITES for write in writes):
            raise TypeError("a shared store keeps nothing for a Helen")
        try:
            self._apply(writes)
        except BaseException:
            self._state = "failed"
            raise
        lost, self._lost = self._lost, ""
        if lost:
            self.unreachable = lost == "away"
            return self.commit(writes)
        self._commits += 1
        hit_failpoint(self._failpoint, "after_commit")
        return None

    def _apply(self, writes: Sequence[Write]) -> None:
        for name in ("before_begin", "after_writes", "before_commit"):
            hit_failpoint(self._failpoint, name)
        # First of all, because only these can fail.
        about_tasks: Any = [write for write in writes if type(write) in TASK_WRITES]
        self.database.tasks.apply((self.identity, self._epoch), about_tasks)
        member = self._member
        member.own.commit([write for write in writes if type(write) not in TASK_WRITES])
        member.commits += 1
        counters = (write.seq >> SLOT_BITS for write in about_tasks if type(write) is PutTask)
        member.counter = max(member.counter, *counters, 0)

    def _reach_database(self) -> None:
        if self.unreachable:
            raise StoreUnreachable(UNREACHABLE)

    def _fence(self) -> None:
        if self._member.epoch != self._epoch:
            raise StoreFenced("other brokers took this one for dead, and went on without it")

    def read(self, ask: Query) -> Answer:
        if self._state not in ("open", "failed"):
            raise StoreRefused("the store is not open")
        self._reach_database()
        match ask:
            case ReadDocuments() | ReadDocument() | ReadJournal():
                return self._member.own.read(ask)
            case StoreHeartbeat(lease_us, judges):
                self._fence()
                return self.database.beat(self.identity, lease_us, judges)
            case _:
                if is_claim(ask):
                    self._fence()
                about_tasks: Any = ask
                return self.database.tasks.answer((self.identity, self._epoch), about_tasks, self.database.is_alive)

    def read_all(self, asks: Sequence[Query]) -> list[Answer]:
        return [self.read(ask) for ask in asks]

    def scan(self, ask: Query) -> Answer:
        return self.read(ask)

    def trim_journal(self, up_to_seq: int) -> None:
        if self._state != "open":
            raise StoreFailed("the store is not open, or an earlier commit failed")
        self._reach_database()
        self._fence()
        self._member.own.trim_journal(up_to_seq)

    def free_bytes(self) -> int:
        if self.unreachable:
            raise StoreRefused(UNREACHABLE)
        return self._free_bytes

    def fill(self, free_bytes: int) -> None:
        """Let the disk that is not there have this much room."""
        self._free_bytes = free_bytes

    def lose_answer(self, away: bool = True) -> None:
        """The next commit is applied but its answer is lost; with `away` the database is unreachable afterwards."""
        self._lost = "away" if away else "answer"

    def close(self) -> None:
        """Give it up at once, as a broker does that ends in order."""
        if self._state in ("open", "failed") and not self.unreachable and self._member.epoch == self._epoch:
            self.database.end(self.identity)
        self._state = "closed"

    def snapshot(self) -> MemorySnapshot:
        """All that is committed now: what is this broker's own, and the tasks of all."""
        return msgspec.structs.replace(self._member.own.snapshot(), tasks=self.database.tasks.snapshot())

    def crash(self) -> FakePostgresStore:
        """The process died, and nobody knows it yet: a store for the next one. This one ends."""
        self._state = "closed"
        return FakePostgresStore(self.database, self.identity)
