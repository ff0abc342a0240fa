"""A shared store with one broker on it, for stories that are told about every store.

It reserves what is put, claims what is written, and puts back what was only meant to be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from scale0.storage.interface import OpenedStore
from scale0.storage.task_queries import (
    ClaimTasks,
    FindTasks,
    ListTasks,
    LookUpSubmission,
    ReadDependents,
    ReadQueue,
    TakeOrphans,
)
from scale0.storage.task_rows import SCHEDULED, ChangeTask, EndTask, LeaseTask, PutTask


class Memo:
    """What outlives a store object: numbers and names of tasks."""

    def __init__(self) -> None:
        self.next_seq = 1
        self.names: dict[int, str] = {}


class Alone:
    """One broker's shared store, as if it were its own."""

    def __init__(self, inner: Any, memo: Memo) -> None:
        self.inner = inner
        self._memo = memo

    def open(self) -> OpenedStore:
        opened = self.inner.open()
        page = self.inner.read(ListTasks(1))
        self._memo.next_seq = max(self._memo.next_seq, *(task.seq + 1 for task in page.tasks), 1)
        orphans = self.inner.read(TakeOrphans(0, 1_000))
        leased = tuple(sorted(orphans, key=lambda task: task.seq))
        whole: OpenedStore = msgspec.structs.replace(
            opened, leased=leased, next_task_seq=self._memo.next_seq, shared=None
        )
        return whole

    def commit(self, writes: Sequence[Any]) -> None:
        new = {write.seq for write in writes if isinstance(write, PutTask)}
        wanted = {write.seq for write in writes if isinstance(write, LeaseTask | ChangeTask | EndTask)} - new
        names = tuple(self._memo.names[seq] for seq in sorted(wanted) if seq in self._memo.names)
        if names:
            self.inner.read(ClaimTasks(names))
        for write in writes:
            if isinstance(write, PutTask):
                self.inner.read(LookUpSubmission(write.client, (write.id,), write.key, None, write.id))
        try:
            self.inner.commit(writes)
        finally:
            self._memo.names.update({write.seq: write.id for write in writes if isinstance(write, PutTask)})
        self._memo.next_seq = max(self._memo.next_seq, *(seq + 1 for seq in new), 1)

    def read(self, ask: Any) -> Any:
        return self._put_back(ask, self.inner.read)

    def scan(self, ask: Any) -> Any:
        return self._put_back(ask, self.inner.scan)

    def read_all(self, asks: Sequence[Any]) -> list[Any]:
        return [self.read(ask) for ask in asks]

    def _put_back(self, ask: Any, read: Any) -> Any:
        if not isinstance(ask, ReadQueue | ReadDependents):
            return read(ask)
        before = {task.id: task for task in self.inner.read(FindTasks(tuple(self._memo.names.values()))) if task}
        rows = [before[task.id] for task in read(ask)]
        names = ChangeTask.__struct_fields__
        taken = [row for row in rows if isinstance(ask, ReadQueue) or row.status == SCHEDULED]
        self.inner.commit([ChangeTask(**{name: getattr(row, name) for name in names}) for row in taken])
        return tuple(rows)

    def trim_journal(self, up_to_seq: int) -> None:
        self.inner.trim_journal(up_to_seq)

    def free_bytes(self) -> int:
        room: int = self.inner.free_bytes()
        return room

    def close(self) -> None:
        self.inner.close()
