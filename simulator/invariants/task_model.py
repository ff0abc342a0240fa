"""A simple model of a broker's tasks, derived from its writes. Invariant: after a restart it has exactly what the disk
has."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from scale0.storage.memory.tasks import TasksSnapshot
from scale0.storage.task_rows import ASSIGNED, QUEUED, RUNNING, SCHEDULED, EndedTask, OpenTask, PutTask, account_name
from simulator.network.task_records import TaskRecord, TaskRecords

LEASED: Final = (ASSIGNED, RUNNING)


class Nonce(msgspec.Struct):
    """The part of the params that identifies the submission."""

    nonce: int = 0


_nonce: Final = msgspec.json.Decoder(Nonce)


class Known:
    """One task according to the writes."""

    __slots__ = (
        *("account", "attempt", "batch", "body", "client", "code", "counted", "ended", "history", "id", "key"),
        *("leased_at", "method", "node", "over_at", "plain", "priority", "queued_at", "record", "runnable_us", "seq"),
        *("shelved", "starts", "status", "submitted_us", "waits"),
    )

    def __init__(self, row: PutTask | OpenTask | EndedTask, record: TaskRecord | None, at: float) -> None:
        self.seq = row.seq
        self.id = row.id
        self.client = row.client
        self.account = account_name(row.owner, row.client)
        self.key = row.key
        self.method = row.method
        self.priority = row.priority
        self.status = row.status
        self.attempt = row.attempt
        self.starts = row.starts
        self.node = row.node
        self.submitted_us = row.submitted_us
        self.record = record
        self.ended = isinstance(row, EndedTask)
        self.body = row.result if isinstance(row, EndedTask) else b""
        self.runnable_us = 0 if isinstance(row, EndedTask) else row.runnable_us
        self.shelved = not isinstance(row, EndedTask) and row.shelved
        self.waits = 0 if isinstance(row, EndedTask) else row.waits
        self.plain = row.status == QUEUED or (row.status == ASSIGNED and isinstance(row, PutTask))
        """True if it never waited for a time, for another task, or for a second hand-out."""
        self.queued_at = self.leased_at = at
        self.over_at = -1.0
        """When its last counted attempt ended without completing it; negative: never."""
        self.counted: set[int] = set()
        """Attempts whose start was reported to the broker."""
        self.batch = 0
        """The batch of writes in which it was queued."""

    @property
    def leased(self) -> bool:
        return not self.ended and self.status in LEASED

    @property
    def void(self) -> bool:
        """True if no guarantee applies to it."""
        return self.record is None or self.record.void


class TaskModel:
    """All tasks of one broker, across its processes."""

    def __init__(self, records: TaskRecords) -> None:
        self._records = records
        self.given: dict[tuple[str, int], str] = {}
        """The worker that received an attempt of a task."""
        self.rebuild(TasksSnapshot(), 0.0)

    def rebuild(self, disk: TasksSnapshot, at: float) -> None:
        """Replaces the model with the contents of the disk when a broker starts."""
        before: dict[int, Known] = getattr(self, "tasks", {})
        self.tasks: dict[int, Known] = {}
        self.ids: dict[str, Known] = {}
        self.keys: dict[tuple[str, str], Known] = {}
        self.by_nonce: dict[int, Known] = {}
        self.queued: dict[str, dict[int, Known]] = {}
        self.leases: dict[int, Known] = {}
        rows: list[OpenTask | EndedTask] = [*disk.open.values(), *disk.ended.values()]
        for row in sorted(rows, key=lambda each: each.seq):
            old = before.get(row.seq)
            record = old.record if old is not None and old.id == row.id else self._record_of(row)
            known = Known(row, record, at)
            if old is not None and old.id == row.id:
                known.over_at, known.counted = old.over_at, {each for each in old.counted if each <= row.attempt}
                known.plain = known.plain and old.plain
                if len(known.counted) > row.starts:
                    # A start is stored up to a second late, so a crash may lose it.
                    known.counted.discard(row.attempt)
            if row.status == QUEUED:
                known.shelved = True
            self._enter(known)

    def put(self, row: PutTask, at: float, batch: int) -> Known:
        known = Known(row, self._record_of(row), at)
        known.batch = batch
        self._enter(known)
        return known

    def place(self, known: Known, status: int) -> None:
        self.queued.get(known.method, {}).pop(known.seq, None)
        self.leases.pop(known.seq, None)
        known.status = status
        self._sort(known)

    def end(self, known: Known, status: int, body: bytes) -> None:
        known.ended, known.body = True, body
        self.place(known, status)

    def was_cancelled(self, known: Known) -> bool:
        """True if its client asked for that under any of its submissions."""
        own = self._records.by_client.get(known.client, ())
        return any(record.cancel_asked and record.id == known.id for record in own)

    def _enter(self, known: Known) -> None:
        self.tasks[known.seq] = self.ids[known.id] = known
        if known.key is not None:
            self.keys[known.client, known.key] = known
        if known.record is not None:
            self.by_nonce[known.record.nonce] = known
        self._sort(known)

    def _sort(self, known: Known) -> None:
        if known.ended or known.status == SCHEDULED:
            return
        if known.status == QUEUED:
            self.queued.setdefault(known.method, {})[known.seq] = known
        else:
            self.leases[known.seq] = known

    def _record_of(self, row: Any) -> TaskRecord | None:
        return self._records.by_nonce.get(_nonce.decode(row.params).nonce) if row.params else None
