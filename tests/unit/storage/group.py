"""The stores of several brokers on one database, whose clock a test moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

from scale0.storage.interface import SLOT_BITS, OpenedStore, Store
from scale0.storage.postgres.schema import migrate
from scale0.storage.postgres.store import PostgresStore
from scale0.storage.task_queries import LookUpSubmission
from scale0.storage.task_rows import OWN_IDS, PutTask
from simulator.fake_postgres.store import FakeDatabase, FakePostgresStore


class MemoryGroup:
    def __init__(self) -> None:
        self.now_us = 1_000_000_000
        self.database = FakeDatabase(lambda: self.now_us)

    def store(self, identity: str, failpoint: Any = None) -> Store:
        return FakePostgresStore(self.database, identity, failpoint)

    def pass_us(self, span_us: int) -> None:
        self.now_us += span_us

    def kill(self, store: Any) -> None:
        """Its process ends without a word."""
        store.crash()

    def close(self) -> None:
        """Nothing to close."""


_TEST_CLOCK = """
    CREATE TABLE scale0.test_clock (now_us bigint NOT NULL);
    INSERT INTO scale0.test_clock VALUES (1000000000);
    CREATE OR REPLACE FUNCTION scale0.clock_us() RETURNS bigint LANGUAGE sql VOLATILE
        AS 'SELECT now_us FROM scale0.test_clock'"""


class PostgresGroup:
    """Brokers on a database, whose clock stands still until it is moved."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self._made: list[PostgresStore] = []
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute("SET search_path = scale0")
        migrate(self._connection)
        self._connection.execute(_TEST_CLOCK)

    def store(self, identity: str, failpoint: Any = None) -> Store:
        made = PostgresStore(self.url, identity, self.folder / f"{identity}-{len(self._made)}", failpoint)
        self._made.append(made)
        return made

    def pass_us(self, span_us: int) -> None:
        self._connection.execute("UPDATE scale0.test_clock SET now_us = now_us + %s", (span_us,))

    def kill(self, store: Any) -> None:
        """Its process ends without a word; its successor may start at once, as in memory."""
        for line in (store._scanner, store._reader, store._writer):
            line.close()
        store._state = "closed"
        store.close()

    def holders(self) -> dict[int, int | None]:
        """By seq, the slot of who holds it."""
        return dict(self._connection.execute("SELECT seq, holder FROM scale0.open_tasks").fetchall())

    def close(self) -> None:
        for store in self._made:
            store.close()
        self._connection.close()


class GroupMember:
    def __init__(self, group: Any, identity: str) -> None:
        self.group = group
        self.identity = identity
        self.store: Any = group.store(identity)
        self.opened: OpenedStore = self.store.open()

    def seq(self, counter: int) -> int:
        assert self.opened.shared is not None
        return (counter << SLOT_BITS) | self.opened.shared.slot

    def commit(self, *writes: Any) -> None:
        """Store these; ids and keys of what is put are reserved first."""
        for write in writes:
            if isinstance(write, PutTask) and not write.id.startswith(OWN_IDS):
                found = self.store.read(
                    LookUpSubmission(write.client, (write.id,), write.key, None, write.id, write.owner)
                )
                assert not found.busy
        self.store.commit(list(writes))

    def read(self, ask: Any) -> Any:
        return self.store.read(ask)

    def crash(self) -> None:
        self.group.kill(self.store)

    def again(self) -> GroupMember:
        """Its next life."""
        return GroupMember(self.group, self.identity)
