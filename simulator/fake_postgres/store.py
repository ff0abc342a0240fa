"""A model of the shared store in memory, for tests and the simulator: the database, and one broker's store on it.

It answers as PostgreSQL does. A broker whose epoch has ended changes nothing any more, and a commit whose answer was
lost is applied once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

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
from scale0.storage.task_rows import PutTask, TaskUsage
from simulator.fake_postgres.tasks import Epoch, SharedTasks

OPENING_LEASE_US: Final = 10_000_000
"""How long a broker that has just opened the store may take until its first heartbeat."""

UNREACHABLE: Final = "the database cannot be reached"


class StoreUnreachable(StoreError):
    """Only in the simulator: the database is unreachable. The PostgreSQL store waits; the simulator calls again."""


class Member:
    """A broker, in the database."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.epoch = 0
        self.alive_until_us: int | None = None
        """None: it is dead, or has stopped."""
        self.commits = 0
        self.counter = 0
        """The counter of its last task."""
        self.own = MemoryStore()
        """The rows that are not shared."""


class FakeDatabase:
    """The database of a group. `clock_us` is its own clock, not a broker's."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self.clock_us = clock_us
        self.tasks = SharedTasks(clock_us)
        self.members: dict[str, Member] = {}

    def join(self, identity: str) -> Member:
        """Start a new epoch of a broker: nobody holds the tasks of its predecessor."""
        member = self.members.get(identity)
        if member is None:
            if len(self.members) > MAX_SLOT:
                raise StoreRefused(f"{MAX_SLOT + 1} brokers have used this database, the maximum; use another database")
            member = self.members[identity] = Member(len(self.members))
        else:
            member.own = member.own.crash()
        self.end(identity)
        member.alive_until_us = self.clock_us() + OPENING_LEASE_US
        return member

    def lease_left_us(self, identity: str) -> int:
        """How long the PostgreSQL store would wait before another process gets this identity."""
        member = self.members.get(identity)
        if member is None or member.alive_until_us is None:
            return 0
        return max(0, member.alive_until_us - self.clock_us())

    def is_alive(self, epoch: Epoch) -> bool:
        return self.members[epoch.identity].epoch == epoch.number

    def end(self, identity: str) -> None:
        """End a broker's epoch."""
        member = self.members[identity]
        member.epoch += 1
        member.alive_until_us = None
        self.tasks.release_all(identity)

    def heartbeat(self, identity: str, query: StoreHeartbeat) -> StoreHeartbeatResult:
        now, me = self.clock_us(), self.members[identity]
        late = me.alive_until_us is None or me.alive_until_us < now
        me.alive_until_us = now + query.lease_us
        died, alive = [], []
        for name, member in sorted(self.members.items()):
            if name == identity or member.alive_until_us is None:
                continue
            if member.alive_until_us < now and query.declares_dead and not late:
                self.end(name)
                died.append(name)
            else:
                alive.append(name)
        usage = self.tasks.usage()
        sums = (sum(getattr(each, name) for each in usage) for name in ("tasks", "bytes", "delayed", "kept"))
        total = TaskUsage("", *sums)
        return StoreHeartbeatResult(usage, total, tuple(died), tuple(alive), now)


class FakePostgresStore:
    """One broker's store, for one epoch.

    While `unreachable` is set, every call raises StoreUnreachable and may be repeated. Opening does not wait for the
    lease of a predecessor that was killed: `FakeDatabase.lease_left_us` says how long PostgreSQL would wait.
    """

    def __init__(self, database: FakeDatabase, identity: str, failpoint: Callable[[str], None] | None = None) -> None:
        self.database = database
        self.identity = identity
        self.unreachable = False
        self._failpoint = failpoint
        self._lost = ""
        self._member = Member(0)
        self._epoch = 0
        self._commits = 0
        self._state = "new"

    def open(self) -> OpenedStore:
        if self._state != "new":
            raise StoreRefused("this store was opened before; create another")
        if self.unreachable:
            raise StoreRefused(UNREACHABLE)
        self._member = member = self.database.join(self.identity)
        self._epoch, self._commits = member.epoch, member.commits
        self._state = "open"
        return msgspec.structs.replace(
            member.own.open(),
            next_task_seq=member.counter + 1,
            usage=self.database.tasks.usage(),
            shared=SharedStoreInfo(member.slot, member.epoch),
        )

    def commit(self, writes: Sequence[Write]) -> None:
        if self._state != "open":
            raise StoreFailed("the store is not open, or an earlier commit failed")
        self._reach_database()
        self._fence()
        if self._member.commits == self._commits + 1:
            self._commits += 1  # it was applied, and its answer was lost
            return
        check_writes(writes, self._member.own.next_seq)
        if any(type(write) in CHECK_WRITES for write in writes):
            raise TypeError("a shared store has no tables for checks")
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
        # These are first, because only these can fail.
        task_writes: Any = [write for write in writes if type(write) in TASK_WRITES]
        self.database.tasks.apply(Epoch(self.identity, self._epoch), task_writes)
        member = self._member
        member.own.commit([write for write in writes if type(write) not in TASK_WRITES])
        member.commits += 1
        counters = (write.seq >> SLOT_BITS for write in task_writes if type(write) is PutTask)
        member.counter = max(member.counter, *counters, 0)

    def _reach_database(self) -> None:
        if self.unreachable:
            raise StoreUnreachable(UNREACHABLE)

    def _fence(self) -> None:
        if self._member.epoch != self._epoch:
            raise StoreFenced("other brokers declared this broker dead and took over its work")

    def read(self, query: Query) -> Answer:
        if self._state not in ("open", "failed"):
            raise StoreRefused("the store is not open")
        self._reach_database()
        if isinstance(query, ReadDocuments | ReadDocument | ReadJournal):
            return self._member.own.read(query)
        if isinstance(query, StoreHeartbeat):
            self._fence()
            return self.database.heartbeat(self.identity, query)
        if is_claim(query):
            self._fence()
        task_query: Any = query
        return self.database.tasks.answer(Epoch(self.identity, self._epoch), task_query, self.database.is_alive)

    def read_all(self, queries: Sequence[Query]) -> list[Answer]:
        return [self.read(query) for query in queries]

    def scan(self, query: Query) -> Answer:
        return self.read(query)

    def trim_journal(self, up_to_seq: int) -> None:
        if self._state != "open":
            raise StoreFailed("the store is not open, or an earlier commit failed")
        self._reach_database()
        self._fence()
        self._member.own.trim_journal(up_to_seq)

    def free_bytes(self) -> int:
        if self.unreachable:
            raise StoreRefused(UNREACHABLE)
        return DEFAULT_FREE_BYTES

    def lose_answer(self, away: bool = True) -> None:
        """The next commit is applied but its answer is lost; with `away` the database is unreachable afterwards."""
        self._lost = "away" if away else "answer"

    def close(self) -> None:
        """End the epoch, as a broker does that stops in order."""
        if self._state in ("open", "failed") and not self.unreachable and self._member.epoch == self._epoch:
            self.database.end(self.identity)
        self._state = "closed"

    def snapshot(self) -> MemorySnapshot:
        """All committed state: the rows of this broker, and the tasks of the group."""
        return msgspec.structs.replace(self._member.own.snapshot(), tasks=self.database.tasks.snapshot())

    def crash(self) -> FakePostgresStore:
        """The process died, and no broker knows it yet: a store for its successor. This one is closed."""
        self._state = "closed"
        return FakePostgresStore(self.database, self.identity)
