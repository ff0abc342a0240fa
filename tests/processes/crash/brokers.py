"""Brokers that end badly: killed at a step of a commit, with a disk that fails, or traced by strace."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scale0.history.events.journal import JournalRow, read
from scale0.storage.rows import ReadJournal
from scale0.storage.sqlite.store import SqliteStore
from tests.fakes.broker_process import BrokerProcess
from tests.processes.crash import doomed


class CrashingBroker(BrokerProcess):
    """A broker that is run by a tool such as strace, or kills itself when it reaches a failpoint for the nth time."""

    def __init__(
        self, folder: Path, tool: Sequence[str] = (), dies_at: tuple[str, int] | None = None, **config: Any
    ) -> None:
        super().__init__(folder, config)
        self.prefix = list(tool)
        self.stop_seconds = 20.0  # strace slows it down
        if dies_at is not None:
            self.command = [sys.executable, doomed.__file__, str(self.file), *map(str, dies_at)]

    @property
    def pid(self) -> int:
        """Of the broker itself, not of its tool: the process that holds the data folder names itself there."""
        lock = self.data_dir / "lock"
        return int(lock.read_text()) if self.prefix and lock.exists() else super().pid


@contextlib.contextmanager
def crashing_broker(folder: Path, *args: Any, **config: Any) -> Iterator[CrashingBroker]:
    """A running broker; ended when the block ends."""
    broker = CrashingBroker(folder, *args, **config)
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


def journal(data: Path) -> list[dict[str, Any]]:
    """All events of a folder that nobody uses now; their numbers have no gap."""
    store = SqliteStore(data)
    opened = store.open()
    rows: Any = store.read(ReadJournal(0, 100_000))
    store.close()
    events = [event for row in rows if isinstance(row, JournalRow) for event in read(row.body)]
    assert [event["seq"] for event in events] == list(range(1, opened.next_seq))
    return events
