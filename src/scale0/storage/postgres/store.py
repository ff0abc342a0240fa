"""The store that the brokers of a group share: one broker's connection to a schema in PostgreSQL.

A commit that returned is durable. Whether a commit whose answer was lost was applied is read from the database, never
assumed. A broker whose epoch has ended changes nothing any more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg

from scale0.history.events.journal import JournalRow
from scale0.storage.data_dir import DirectoryLock, free_bytes, make_directory
from scale0.storage.interface import (
    CHECK_WRITES,
    SLOT_BITS,
    Handlers,
    OpenedStore,
    SharedStoreInfo,
    StoreFailed,
    StoreFenced,
    StoreRefused,
    StoreUnavailable,
    check_writes,
    dispatch,
    hit_failpoint,
)
from scale0.storage.postgres import brokers
from scale0.storage.postgres.broker_rows import OWN_ANSWERS, TRIM, StoreSession, read_own
from scale0.storage.postgres.connection import SCAN_SECONDS, PostgresConnection, check_url, describe_error, is_transient
from scale0.storage.postgres.schema import migrate
from scale0.storage.postgres.task_lookup import look_up_submissions
from scale0.storage.postgres.task_queries import TASK_ANSWERS, TASK_CLAIMS, ClaimAll
from scale0.storage.postgres.tasks import TaskCommit
from scale0.storage.rows import Answer, Query, Write, is_claim
from scale0.storage.task_queries import ClaimTasks, LookUpSubmission, StoreHeartbeat, SubmissionLookup
from scale0.storage.task_rows import PutTask

if TYPE_CHECKING:
    from pathlib import Path

    Connection = psycopg.Connection[Any]

T = TypeVar("T")

POLL_SECONDS: Final = 0.1
"""How often a successor checks whether the lease of its predecessor has expired."""

_NOT_OPEN: Final = "the store is not open"
_FAILED: Final = "the store is not open, or an earlier commit failed"

_FENCE: Final = """
    UPDATE brokers SET commits = %(number)s, counter = greatest(counter, %(counter)s),
        next_seq = coalesce(%(next_seq)s, next_seq),
        last_time_us = coalesce(%(time_us)s, last_time_us), last_boot_us = coalesce(%(boot)s, last_boot_us)
    WHERE slot = %(slot)s AND epoch = %(epoch)s AND commits = %(number)s - 1"""
_FENCE_CLAIM: Final = (
    "UPDATE brokers SET asks = %(number)s WHERE slot = %(slot)s AND epoch = %(epoch)s AND asks = %(number)s - 1"
)


class PostgresStore:
    """The store of one broker. Commits, reads and scans have a connection each, on any thread."""

    def __init__(self, url: str, identity: str, data_dir: Path, failpoint: Callable[[str], None] | None = None) -> None:
        self._url = url
        self._identity = identity
        self._data_dir = data_dir
        self._failpoint = failpoint
        self._lock: DirectoryLock | None = None
        self._closing = threading.Event()
        self._writer = PostgresConnection(url, self._closing, index_only=True)
        self._reader = PostgresConnection(url, self._closing, index_only=True)
        self._scanner = PostgresConnection(url, self._closing, index_only=False, answer_seconds=SCAN_SECONDS)
        self._claiming = threading.Lock()
        self._epoch = brokers.BrokerEpoch(0, 0)
        self._commits = self._claims = self._next_seq = 0
        self._state = "new"

    # ---- open and close

    def open(self) -> OpenedStore:
        if self._state != "new":
            raise StoreRefused("this store was opened before")
        check_url(self._url)
        make_directory(self._data_dir)
        self._lock = DirectoryLock(self._data_dir)
        try:
            self._writer.once(migrate, may_be_slow=True)
            self._epoch, row = self._join()
            self._writer.once(brokers.drop_unused, may_be_slow=True)
            opened = self._writer.once(lambda connection: self._opened(connection, row), may_be_slow=True)
        except psycopg.Error as error:
            self.close()
            kind = StoreUnavailable if is_transient(error) else StoreRefused
            raise kind(
                f"cannot use the database: {describe_error(error, self._url)}; check that it runs, that `store` names"
                " it, and that its user may create a schema there"
            ) from None
        except BaseException:
            self.close()
            raise
        self._commits, self._claims, self._next_seq = row.commits, row.asks, row.next_seq
        self._state = "open"
        return opened

    def _join(self) -> tuple[brokers.BrokerEpoch, brokers.BrokerRow]:
        """Start an epoch. Wait for the lease of a predecessor that was killed, but not for one that renews it."""
        first: brokers.Predecessor | None = None
        while True:
            joined = self._writer.once(lambda used: brokers.join(used, self._identity), may_be_slow=True)
            if not isinstance(joined, brokers.Predecessor):
                return joined
            first = first or joined
            if (joined.epoch, joined.alive_until_us) != (first.epoch, first.alive_until_us):
                raise StoreRefused(
                    f"another process uses the database as {self._identity}; stop it, or choose another identity"
                )
            time.sleep(min(POLL_SECONDS, max(joined.left_us, 1_000) / 1e6))

    def _opened(self, connection: Connection, row: brokers.BrokerRow) -> OpenedStore:
        return OpenedStore(
            **read_own(connection, self._epoch.slot),
            next_seq=row.next_seq,
            last_time_us=row.last_time_us,
            last_boot_us=row.last_boot_us,
            boots=row.boots,
            next_task_seq=row.counter + 1,
            usage=brokers.read_usage(connection),
            shared=SharedStoreInfo(self._epoch.slot, self._epoch.epoch),
        )

    def close(self) -> None:
        """End the epoch, so that a successor need not wait; if the database is silent, the lease expires there."""
        opened, self._state = self._state in ("open", "failed"), "closed"
        self._closing.set()
        if opened and not self._writer.unreachable:
            try:
                self._writer.once(lambda connection: brokers.end_epoch(connection, self._epoch))
            except psycopg.Error:
                pass
        for connection in (self._scanner, self._reader, self._writer):
            connection.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def free_bytes(self) -> int:
        """Called twice a second, so it also notices a database that does not answer."""
        for connection in (self._writer, self._reader, self._scanner):
            connection.check()
        reason = self._writer.unreachable or self._reader.unreachable
        if reason:
            raise StoreUnavailable(f"the database is unreachable: {reason}")
        return free_bytes(self._data_dir)

    # ---- commits

    def commit(self, writes: Sequence[Write]) -> None:
        if self._state == "fenced":
            raise StoreFenced(brokers.FENCED)
        if self._state != "open":
            raise StoreFailed(_FAILED)
        next_seq = check_writes(writes, self._next_seq)
        if any(type(write) in CHECK_WRITES for write in writes):
            raise TypeError("a shared store has no tables for checks")
        values = self._fence_values(writes, next_seq)
        self._change(self._writer, lambda connection: self._try_commit(connection, writes, values))
        self._commits += 1
        self._next_seq = next_seq
        hit_failpoint(self._failpoint, "after_commit")

    def _fence_values(self, writes: Sequence[Write], next_seq: int) -> dict[str, Any]:
        """What a commit writes to the row of its broker."""
        counter = 0
        row: JournalRow | None = None
        for write in writes:
            if type(write) is PutTask:
                counter = max(counter, write.seq >> SLOT_BITS)
            elif isinstance(write, JournalRow):
                row = write
        return {
            "number": self._commits + 1,
            "slot": self._epoch.slot,
            "epoch": self._epoch.epoch,
            "counter": counter,
            "next_seq": None if row is None else next_seq,
            "time_us": None if row is None else row.time_us,
            "boot": None if row is None else row.boot,
        }

    def _try_commit(self, connection: Connection, writes: Sequence[Write], values: dict[str, Any]) -> None:
        """One attempt, which finds out whether an earlier one was committed."""
        hit_failpoint(self._failpoint, "before_begin")
        commit = TaskCommit(connection, self._epoch)
        fence = connection.cursor()
        try:
            with connection.pipeline():
                connection.execute("BEGIN")
                fence.execute(_FENCE, values)
                commit.send(writes)
        except psycopg.Error:
            if connection.closed or fence.rowcount != 0:
                raise
        if fence.rowcount != 1:
            connection.rollback()
            if brokers.was_committed(connection, self._epoch, commit=values["number"]):
                return
            raise StoreFailed("the database has another state than this broker committed. Please report this.")
        commit.check()
        hit_failpoint(self._failpoint, "after_writes")
        hit_failpoint(self._failpoint, "before_commit")
        connection.execute("COMMIT")

    def _change(self, connection: PostgresConnection, work: Callable[[Connection], T]) -> T:
        """Work that changes something: an error in it fails the store."""
        try:
            return connection.run(work)
        except StoreFenced:
            self._state = "fenced"
            raise
        except StoreRefused as error:  # the store was closed in the meantime
            self._fail()
            raise StoreFailed(str(error)) from error
        except (psycopg.Error, OverflowError, UnicodeError) as error:
            self._fail()
            raise StoreFailed(
                f"cannot commit to the database: {describe_error(error, self._url)}; check the database, then restart"
            ) from None
        except BaseException:
            self._fail()
            raise

    def _fail(self) -> None:
        if self._state == "open":
            self._state = "failed"

    def trim_journal(self, up_to_seq: int) -> None:
        if self._state != "open":
            raise StoreFailed(_FAILED)
        values = {"broker": self._epoch.slot, "up_to": up_to_seq}
        self._change(self._writer, lambda connection: connection.execute(TRIM, values))

    # ---- queries

    def read(self, query: Query) -> Answer:
        return self._answer(self._reader, query)

    def scan(self, query: Query) -> Answer:
        return self._answer(self._scanner, query)

    def read_all(self, queries: Sequence[Query]) -> list[Answer]:
        """Look up all submissions together, and claim all tasks together, to save round trips and commits."""
        self._check_open()
        answers: dict[int, Answer] = {}
        lookups = {number: query for number, query in enumerate(queries) if isinstance(query, LookUpSubmission)}
        if len(lookups) > 1:
            answers.update(zip(lookups, self._look_up(list(lookups.values()), self._reader), strict=True))
        claims = {number: query for number, query in enumerate(queries) if isinstance(query, ClaimTasks)}
        if len(claims) > 1:
            claimed: Any = self._claim(ClaimAll(tuple(claims.values())))
            answers.update(zip(claims, claimed, strict=True))
        return [answers[number] if number in answers else self.read(query) for number, query in enumerate(queries)]

    def _check_open(self) -> None:
        if self._state not in ("open", "failed", "fenced"):
            raise StoreRefused(_NOT_OPEN)

    def _session(self, connection: Connection) -> StoreSession:
        return StoreSession(connection, self._epoch.slot, self._identity)

    def _answer(self, connection: PostgresConnection, query: Query) -> Answer:
        self._check_open()
        if isinstance(query, LookUpSubmission):
            return self._look_up([query], connection)[0]
        if isinstance(query, StoreHeartbeat) or is_claim(query):
            return self._claim(query)
        answer: Answer = self._only_read(connection, lambda used: dispatch(_ANSWERS, self._session(used), query))
        return answer

    def _only_read(self, connection: PostgresConnection, work: Callable[[Connection], T]) -> T:
        try:
            return connection.run(work)
        except psycopg.Error as error:
            raise StoreRefused(f"cannot read the database: {describe_error(error, self._url)}") from None

    def _look_up(self, queries: list[LookUpSubmission], connection: PostgresConnection) -> list[SubmissionLookup]:
        if all(query.reserve is None for query in queries):
            return self._only_read(connection, lambda used: look_up_submissions(used, self._epoch, queries))

        def work(used: Connection) -> list[SubmissionLookup]:
            # To repeat the reservations of an attempt whose answer was lost changes nothing.
            answers = look_up_submissions(used, self._epoch, queries, begin=True)
            used.execute("COMMIT")
            return answers

        return self._change(connection, work)

    def _claim(self, query: Any) -> Answer:
        """Claim something once: its answer has arrived before it is committed."""
        with self._claiming:
            number = self._claims + 1
            answers: list[Answer] = []

            def work(connection: Connection) -> Answer:
                if answers and brokers.was_committed(connection, self._epoch, claim=number):
                    return answers[0]
                answers[:] = [self._try_claim(connection, query, number)]
                connection.execute("COMMIT")
                return answers[0]

            answer = self._change(self._reader, work)
            self._claims = number
            return answer

    def _try_claim(self, connection: Connection, query: Any, number: int) -> Answer:
        """Within a transaction that is left open: COMMIT follows when the answer has arrived."""
        fence = connection.cursor()
        with connection.pipeline():
            connection.execute("BEGIN")
            if isinstance(query, StoreHeartbeat):
                answer: Answer = brokers.heartbeat(connection, fence, self._epoch, number, query)
            else:
                values = {"number": number, "slot": self._epoch.slot, "epoch": self._epoch.epoch}
                fence.execute(_FENCE_CLAIM, values)
                answer = dispatch(TASK_CLAIMS, self._session(connection), query)
        if fence.rowcount != 1:
            connection.rollback()
            brokers.was_committed(connection, self._epoch, claim=number)
            raise StoreFailed("the database is ahead of this broker. Please report this.")
        return answer


_ANSWERS: Final[Handlers] = {**OWN_ANSWERS, **TASK_ANSWERS}
