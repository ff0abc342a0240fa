"""The store that the brokers of a group share: a schema in PostgreSQL.

Lives here: `PostgresStore`, one broker's store for one of its lives. Never here: a statement about what is stored, or a
decision about it. Invariants: a commit that returned is durable; whether a commit whose answer was lost happened is
read from the database, never assumed; a broker whose epoch ended changes nothing any more.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg

from scale0.history.events.journal import JournalRow
from scale0.storage.data_dir import acquire_lock, make_directory
from scale0.storage.interface import (
    CHECK_WRITES,
    SLOT_BITS,
    OpenedStore,
    SharedStoreInfo,
    StoreFailed,
    StoreFenced,
    StoreRefused,
    check_writes,
    hit_failpoint,
)
from scale0.storage.postgres.broker_rows import TRIM, answer_own, read_own
from scale0.storage.postgres.brokers import (
    FENCED,
    BrokerEpoch,
    Predecessor,
    Tail,
    beat,
    count_open,
    give_up,
    is_done,
    join,
)
from scale0.storage.postgres.connection import PostgresConnection, check_url, describe_error
from scale0.storage.postgres.schema import migrate
from scale0.storage.postgres.task_lookup import find_new
from scale0.storage.postgres.task_queries import ClaimAll, answer_tasks, take_tasks
from scale0.storage.postgres.tasks import TaskCommit
from scale0.storage.rows import Answer, Query, ReadDocument, ReadDocuments, ReadJournal, Write, is_claim
from scale0.storage.task_queries import ClaimTasks, ListTasks, LookUpSubmission, StoreHeartbeat, SubmissionLookup
from scale0.storage.task_rows import EndTask, PutTask

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    Connection = psycopg.Connection[Any]

T = TypeVar("T")

POLL_SECONDS: Final = 0.1
"""How often a successor looks whether its predecessor's time is over."""

_NOT_OPEN: Final = "the store is not open"
_BROKEN: Final = "the store is not open, or an earlier commit failed"

_FENCE: Final = """
    UPDATE brokers SET commits = %(number)s, counter = greatest(counter, %(counter)s), opened = opened + %(opened)s,
        ended = ended + %(ended)s, next_seq = coalesce(%(next_seq)s, next_seq),
        last_time_us = coalesce(%(time_us)s, last_time_us), last_boot_us = coalesce(%(boot)s, last_boot_us)
    WHERE slot = %(slot)s AND epoch = %(epoch)s AND commits = %(number)s - 1"""
_FENCE_ASK: Final = (
    "UPDATE brokers SET asks = %(number)s WHERE slot = %(slot)s AND epoch = %(epoch)s AND asks = %(number)s - 1"
)


class PostgresStore:
    """One broker at the database. Commits, reads and looks have a connection each, and each any thread."""

    def __init__(self, url: str, identity: str, data_dir: Path, failpoint: Callable[[str], None] | None = None) -> None:
        self._url = url
        self._identity = identity
        self._folder = data_dir
        self._failpoint = failpoint
        self._lock: int | None = None
        self._closing = threading.Event()
        self._writer = PostgresConnection(url, self._closing, own_plans=True)
        self._reader = PostgresConnection(url, self._closing, own_plans=True)
        self._looker = PostgresConnection(url, self._closing, own_plans=False)
        self._taking = threading.Lock()
        self._life = BrokerEpoch(0, 0)
        self._commits = self._asks = self._next_seq = 0
        self._state = "new"

    # ---- open and close

    def open(self) -> OpenedStore:
        if self._state != "new":
            raise StoreRefused("this store was opened before")
        check_url(self._url)
        make_directory(self._folder)
        self._lock = acquire_lock(self._folder)
        try:
            connection = self._writer.connect()
            migrate(connection)
            self._life, tail = self._join(connection)
            opened = self._opened(connection, tail)
        except psycopg.Error as error:
            self.close()
            raise StoreRefused(
                f"cannot use the database: {describe_error(error, self._url)}; check that it runs, that `store` names"
                " it, and that its user may create a schema there"
            ) from None
        except BaseException:
            self.close()
            raise
        self._commits, self._asks, self._next_seq = tail.commits, tail.asks, tail.next_seq
        self._state = "open"
        return opened

    def _join(self, connection: Connection) -> tuple[BrokerEpoch, Tail]:
        """Begin; a predecessor that was killed is waited for, one that lives is not."""
        first: Predecessor | None = None
        while True:
            found = join(connection, self._identity)
            if not isinstance(found, Predecessor):
                return found
            first = first or found
            if (found.epoch, found.alive_until_us) != (first.epoch, first.alive_until_us):
                raise StoreRefused(
                    f"another process uses the database as {self._identity}; stop it, or choose another identity"
                )
            time.sleep(min(POLL_SECONDS, max(found.left_us, 1_000) / 1e6))

    def _opened(self, connection: Connection, tail: Tail) -> OpenedStore:
        return OpenedStore(
            **read_own(connection, self._life.slot),
            next_seq=tail.next_seq,
            last_time_us=tail.last_time_us,
            last_boot_us=tail.last_boot_us,
            boots=tail.boots,
            next_task_seq=tail.counter + 1,
            open_tasks=count_open(connection),
            shared=SharedStoreInfo(self._life.slot, self._life.epoch),
        )

    def close(self) -> None:
        """Give it up at once, so that a successor need not wait; if the database is away, its time runs out there."""
        opened, self._state = self._state in ("open", "failed"), "closed"
        self._closing.set()
        if opened and not self._writer.away:
            try:
                give_up(self._writer.connect(), self._life)
            except psycopg.Error:
                pass
        for line in (self._looker, self._reader, self._writer):
            line.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def free_bytes(self) -> int:
        away = self._writer.away or self._reader.away
        if away:
            raise StoreRefused(f"the database is away: {away}")
        try:
            room = os.statvfs(self._folder)
        except OSError as error:
            raise StoreRefused(f"cannot look at the data folder {self._folder}: {error.strerror}") from error
        return room.f_bavail * room.f_frsize

    # ---- commits

    def commit(self, writes: Sequence[Write]) -> None:
        if self._state == "fenced":
            raise StoreFenced(FENCED)
        if self._state != "open":
            raise StoreFailed(_BROKEN)
        next_seq = check_writes(writes, self._next_seq)
        if any(type(write) in CHECK_WRITES for write in writes):
            raise TypeError("a shared store keeps nothing for a Helen")
        place = self._place(writes, next_seq)
        self._work(self._writer, lambda connection: self._try_commit(connection, writes, place))
        self._commits += 1
        self._next_seq = next_seq
        hit_failpoint(self._failpoint, "after_commit")

    def _place(self, writes: Sequence[Write], next_seq: int) -> dict[str, Any]:
        """What the broker's own row is told by a commit."""
        counter = opened = ended = 0
        row: JournalRow | None = None
        for write in writes:
            kind = type(write)
            if kind is PutTask:
                opened += 1
                counter = max(counter, write.seq >> SLOT_BITS)  # type: ignore[union-attr]
            elif kind is EndTask:
                ended += 1
            elif isinstance(write, JournalRow):
                row = write
        return {
            "number": self._commits + 1,
            "slot": self._life.slot,
            "epoch": self._life.epoch,
            "counter": counter,
            "opened": opened,
            "ended": ended,
            "next_seq": None if row is None else next_seq,
            "time_us": None if row is None else row.time_us,
            "boot": None if row is None else row.boot,
        }

    def _try_commit(self, connection: Connection, writes: Sequence[Write], place: dict[str, Any]) -> None:
        """One try, which finds out whether an earlier one was done."""
        hit_failpoint(self._failpoint, "before_begin")
        commit = TaskCommit(connection, self._life)
        fence = connection.cursor()
        try:
            with connection.pipeline():
                connection.execute("BEGIN")
                fence.execute(_FENCE, place)
                commit.send(writes)
        except psycopg.Error:
            if connection.closed or fence.rowcount != 0:
                raise
        if fence.rowcount != 1:
            connection.rollback()
            if is_done(connection, self._life, commit=place["number"]):
                return
            raise StoreFailed("the database cannot say what this broker committed: please report this")
        reopened = commit.check()
        if reopened:
            commit.count_opened(reopened)
        hit_failpoint(self._failpoint, "after_writes")
        hit_failpoint(self._failpoint, "before_commit")
        connection.execute("COMMIT")

    def _work(self, line: PostgresConnection, work: Callable[[Connection], T]) -> T:
        """Work that changes something: what goes wrong in it is the end of this store."""
        try:
            return line.run(work)
        except StoreFenced:
            self._state = "fenced"
            raise
        except StoreRefused as error:  # it was closed meanwhile
            self._fail()
            raise StoreFailed(str(error)) from error
        except (psycopg.Error, OverflowError, UnicodeError) as error:
            self._fail()
            raise StoreFailed(
                f"cannot commit to the database: {describe_error(error, self._url)}; look there, then start again"
            ) from None
        except BaseException:
            self._fail()
            raise

    def _fail(self) -> None:
        if self._state == "open":
            self._state = "failed"

    def trim_journal(self, up_to_seq: int) -> None:
        if self._state != "open":
            raise StoreFailed(_BROKEN)
        self._work(self._writer, lambda connection: connection.execute(TRIM, (self._life.slot, up_to_seq, up_to_seq)))

    # ---- asks

    def read(self, ask: Query) -> Answer:
        return self._answer(self._reader, ask)

    def scan(self, ask: Query) -> Answer:
        return self._answer(self._looker, ask)

    def read_all(self, asks: Sequence[Query]) -> list[Answer]:
        """Submissions are looked up together: they are most of what is asked; and what is claimed is taken together."""
        new = [(place, ask) for place, ask in enumerate(asks) if isinstance(ask, LookUpSubmission)]
        found: dict[int, Answer] = {}
        if len(new) > 1:
            answers = self._find_new([ask for _, ask in new], self._reader)
            found = {place: answer for (place, _), answer in zip(new, answers, strict=True)}
        found.update(self._claim_all(asks))
        return [found[place] if place in found else self.read(ask) for place, ask in enumerate(asks)]

    def _claim_all(self, asks: Sequence[Query]) -> dict[int, Answer]:
        """By place: each take is a commit, and thousands of tasks may be cancelled, or nodes come, in one turn."""
        claims = {place: ask for place, ask in enumerate(asks) if isinstance(ask, ClaimTasks)}
        if len(claims) < 2:
            return {}
        if self._state not in ("open", "failed", "fenced"):
            raise StoreRefused(_NOT_OPEN)
        answers: Any = self._take(ClaimAll(tuple(claims.values())))
        return dict(zip(claims, answers, strict=True))

    def _answer(self, line: PostgresConnection, ask: Query) -> Answer:
        if self._state not in ("open", "failed", "fenced"):
            raise StoreRefused(_NOT_OPEN)
        if isinstance(ask, LookUpSubmission):
            (found,) = self._find_new([ask], line)
            return found
        if isinstance(ask, StoreHeartbeat) or is_claim(ask):
            return self._take(ask)
        return self._only_read(line, lambda connection: self._try_read(connection, ask))

    def _only_read(self, line: PostgresConnection, work: Callable[[Connection], T]) -> T:
        try:
            return line.run(work)
        except psycopg.Error as error:
            raise StoreRefused(f"cannot read the database: {describe_error(error, self._url)}") from None

    def _try_read(self, connection: Connection, ask: Any) -> Answer:
        match ask:
            case ReadDocuments() | ReadDocument() | ReadJournal():
                return answer_own(connection, self._life.slot, ask)
            case ListTasks():
                with connection.transaction():
                    # Its statements are about one moment.
                    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    return answer_tasks(connection, ask)
            case _:
                return answer_tasks(connection, ask)

    def _find_new(self, asks: list[LookUpSubmission], line: PostgresConnection) -> list[SubmissionLookup]:
        if self._state not in ("open", "failed", "fenced"):
            raise StoreRefused(_NOT_OPEN)
        if all(ask.reserve is None for ask in asks):
            return self._only_read(line, lambda connection: find_new(connection, self._life, asks))

        def work(connection: Connection) -> list[SubmissionLookup]:
            # To reserve again what was reserved by a try whose answer got lost changes nothing.
            found = find_new(connection, self._life, asks, begin=True)
            connection.execute("COMMIT")
            return found

        return self._work(line, work)

    def _take(self, ask: Any) -> Answer:
        """Take something, once: its answer is in hand before it is committed."""
        with self._taking:
            number = self._asks + 1
            hand: list[Answer] = []

            def work(connection: Connection) -> Answer:
                if hand and is_done(connection, self._life, ask=number):
                    return hand[0]
                hand.clear()
                hand.append(self._try_take(connection, ask, number))
                connection.execute("COMMIT")
                return hand[0]

            answer = self._work(self._reader, work)
            self._asks = number
            return answer

    def _try_take(self, connection: Connection, ask: Any, number: int) -> Answer:
        """Within a transaction that is left open: COMMIT is said when the answer has arrived."""
        place = {"number": number, "slot": self._life.slot, "epoch": self._life.epoch}
        fence = connection.cursor()
        with connection.pipeline():
            connection.execute("BEGIN")
            if isinstance(ask, StoreHeartbeat):
                answer: Answer = beat(connection, fence, self._life, number, ask)
            else:
                fence.execute(_FENCE_ASK, place)
                answer = take_tasks(connection, self._life.slot, self._identity, ask)
        if fence.rowcount != 1:
            connection.rollback()
            is_done(connection, self._life, ask=number)
            raise StoreFailed("the database is ahead of this broker: please report this")
        return answer
