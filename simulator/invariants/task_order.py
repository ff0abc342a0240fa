"""Invariants of a broker's decisions about tasks: the order and number of hand-outs, and the stored ends, checked on
each batch of writes against `task_model`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from scale0.kernel.clock import Now
from scale0.storage.task_rows import (
    CANCELLED,
    FINISHED,
    QUEUED,
    SCHEDULED,
    ChangeTask,
    EndTask,
    LeaseTask,
    PutTask,
)
from scale0.tasks.jsonrpc.messages import AFTER_FAILED, ATTEMPTS_LOST, CANCELLED_ERROR
from scale0.transport.core.sockets import BACKEND
from simulator.invariants.task_model import LEASED, Known, TaskModel
from simulator.network.broker import BrokerNode
from simulator.network.task_records import TASK_ERROR
from simulator.promises import broken
from simulator.virtual_time import Agenda

ROUNDING_SECONDS: Final = 1e-3
MICRO: Final = 1_000_000
WATCHED: Final = (PutTask, LeaseTask, ChangeTask, EndTask)


class Error(msgspec.Struct):
    """The code of an error."""

    code: int


_error: Final = msgspec.json.Decoder(Error)
_result: Final = msgspec.json.Decoder(tuple[int, int, str])


class OrderChecks:
    def __init__(self, agenda: Agenda, model: TaskModel) -> None:
        self._agenda = agenda
        self._model = model
        self._batch = 0
        self._handed: list[Known] = []
        self.clock_changed_at = self.started_at = -1.0
        """When the broker's wall clock last jumped, and when the broker last started."""

    def decided(self, node: BrokerNode, writes: Sequence[Any], now: Now) -> None:
        """Checks what a broker will store next."""
        self._batch += 1
        self._handed = []
        tasks = self._model.tasks
        for write in writes:
            if type(write) not in WATCHED:
                continue
            if isinstance(write, PutTask):
                self._put(write, now)
                continue
            known = tasks.get(write.seq)
            if known is None:
                raise broken("task-never-lost", f"the task number {write.seq} is changed, and nobody knows it")
            if known.ended:
                raise broken("task-one-result", f"{known.id} has ended, and is changed again")
            if isinstance(write, EndTask):
                self._end(known, write)
            else:
                self._change(known, write, now)
        for known in self._handed:
            if known.plain and not known.void and not (known.record and known.record.named):
                self._in_turn(known)
            known.plain = False
        for method in {known.method for known in self._handed}:
            self._within_limit(node, method)
        for worker, method in dict.fromkeys((known.node, known.method) for known in self._handed):
            self._within_room(node, worker, method)

    def _put(self, write: PutTask, now: Now) -> None:
        model = self._model
        if write.id in model.ids:
            raise broken("task-once", f"the id {write.id} makes a second task")
        if write.key is not None and (write.client, write.key) in model.keys:
            raise broken("task-once", f"the key {write.key} of {write.client} makes a second task")
        known = model.put(write, self._agenda.now, self._batch)
        record = known.record
        if record is None:
            return
        known.plain = known.plain and "delay" not in record.options and not record.after
        least_us = write.submitted_us + int(record.options.get("delay", 0.0) * MICRO)
        early = (least_us - write.runnable_us) / MICRO
        if early > 1 / MICRO:
            raise broken("task-not-before", f"{write.id} may run {early:g} s too early")
        if known.leased:
            self._hand(known, now)

    def _change(self, known: Known, write: LeaseTask | ChangeTask, now: Now) -> None:
        if write.attempt < known.attempt:
            raise broken("task-newest-attempt", f"{known.id} goes back from attempt {known.attempt} to {write.attempt}")
        if write.starts == known.starts - 1 and known.leased and write.status not in LEASED:
            # A hand-out by JSON-RPC that counted as a start, and did not arrive.
            if (known.id, known.attempt) in self._model.given:
                raise broken("task-attempts", f"attempt {known.attempt} of {known.id} arrived, and does not count")
            known.counted.discard(known.attempt)
            known.starts -= 1
        self._count(known, write.starts, write.attempt)
        handed = write.attempt > known.attempt
        was_leased = known.leased
        known.attempt, known.node = write.attempt, write.node
        known.shelved = isinstance(write, ChangeTask) and write.shelved
        if isinstance(write, ChangeTask):
            known.runnable_us, known.waits = write.runnable_us, write.waits
        if was_leased and write.status not in LEASED:
            known.plain = False
            if known.attempt in known.counted:
                known.over_at = self._agenda.now
        early = known.runnable_us / MICRO - now.wall
        steady = known.record is not None and self.clock_changed_at < known.record.asked
        if steady and known.status == SCHEDULED and write.status != SCHEDULED and early > ROUNDING_SECONDS:
            raise broken("task-not-before", f"{known.id} is queued {early:g} s before its time")
        if write.status == QUEUED and known.status != QUEUED:
            known.queued_at, known.batch = self._agenda.now, self._batch
        if write.status != known.status:
            self._model.place(known, write.status)
        if handed:
            self._hand(known, now)

    def _count(self, known: Known, starts: int, attempt: int) -> None:
        if starts < known.starts:
            raise broken("task-attempts", f"{known.id}: {known.starts} starts were counted, and now {starts}")
        if known.record is not None and starts > known.record.max_attempts:
            raise broken("task-attempts", f"{known.id}: {starts} starts, of {known.record.max_attempts} at most")
        if starts > known.starts:
            known.counted.add(attempt)
        known.starts = starts

    def _hand(self, known: Known, now: Now) -> None:
        known.leased_at = self._agenda.now
        self._handed.append(known)
        record = known.record
        if known.void or record is None:
            return
        if len(known.counted - {known.attempt}) >= record.max_attempts:
            raise broken("task-attempts", f"{known.id} is handed out again after {len(known.counted)} starts")
        for before in record.after:
            first = self._model.ids.get(before.id or "")
            if first is not None and not (first.ended and first.status == FINISHED):
                raise broken("task-after", f"{known.id} is handed out before {before.id} has finished")
        self._rested(known)

    def _rested(self, known: Known) -> None:
        """Checks the backoff between two attempts and the delay before the first."""
        record, now = known.record, self._agenda.now
        if record is None:
            return
        backoff = record.options.get("backoff", 0.0)
        if backoff and known.over_at > 0.0 and self._is_steady(known.over_at) and known.attempt - 1 in known.counted:
            least = backoff * 2.0 ** (len(known.counted - {known.attempt}) - 1)
            rested = now - known.over_at
            if rested < least - ROUNDING_SECONDS:
                raise broken("task-not-before", f"{known.id} was tried again after {rested:.3f} s, not {least:g} s")
        delay = record.options.get("delay", 0.0)
        if delay and self._is_steady(record.asked) and now < record.asked + delay - ROUNDING_SECONDS:
            raise broken("task-not-before", f"{known.id} runs {record.asked + delay - now:.3f} s too early")

    def _is_steady(self, since: float) -> bool:
        """True if an interval that began then passes by one monotonic clock, or the wall clock did not jump in it."""
        return since > self.started_at or since > self.clock_changed_at

    def _in_turn(self, known: Known) -> None:
        """Checks that no older or more urgent task still waits."""
        for other in self._model.queued.get(known.method, {}).values():
            if not other.plain or other.void or other.attempt or other.batch >= self._batch:
                continue
            same = other.account == known.account
            if same and other.priority == known.priority and other.seq < known.seq:
                raise broken("task-order", f"{known.id} was handed out before {other.id}, which came first")
            if other.priority > known.priority and not other.shelved:
                raise broken("task-priority", f"{known.id} was handed out before {other.id}, which is more urgent")

    def _within_limit(self, node: BrokerNode, method: str) -> None:
        policy = node.broker.state.policies.get(method)
        limit = policy.concurrency if policy is not None else None
        if limit is None:
            return
        leases = [known.id for known in self._model.leases.values() if known.method == method]
        if len(leases) > limit:
            raise broken("task-concurrency", f"{len(leases)} tasks of {method} are handed out, and {limit} may be")

    def _within_room(self, node: BrokerNode, worker: str, method: str) -> None:
        """Checks that a backend had room for what was just handed out to it: in all, and of this service.

        A backend may have more than that if it reduced its slots, but then it gets nothing new. Slots that the broker
        lends to requests while the store does not confirm a lease do not count: the task comes nevertheless."""
        member = node.broker.members.by_name.get((BACKEND, worker))
        backend = member.backend if member is not None else None
        if backend is None or not backend.pushes:
            return
        held = [known.method for known in self._model.leases.values() if known.node == worker]
        own, in_advance = backend.offerings[method].slots, f"{backend.prefetch} in advance"
        if len(held) > backend.slots + backend.prefetch:
            raise broken("task-room", f"{worker} gets task {len(held)}, with {backend.slots} slots and {in_advance}")
        if (count := held.count(method)) > own + backend.prefetch:
            raise broken("task-room", f"{worker} gets task {count} of {method}, with {own} slots and {in_advance}")

    def _end(self, known: Known, write: EndTask) -> None:
        self._count(known, write.starts, write.attempt)
        was_leased, record = known.leased, known.record
        if write.attempt != known.attempt:
            story = f"{known.id} ended with attempt {write.attempt}, the newest is {known.attempt}"
            raise broken("task-newest-attempt", story)
        node = known.node
        self._model.end(known, write.status, write.result)
        if known.void or record is None:
            return
        if write.status == FINISHED:
            nonce, attempt, worker = _result.decode(write.result)
            if nonce != record.nonce:
                raise broken("task-own-result", f"{known.id} ended with the result of submission {nonce}")
            if not was_leased or (attempt, worker) != (known.attempt, node):
                story = f"{known.id}: a result of attempt {attempt} by {worker} was stored"
                raise broken("task-newest-attempt", f"{story}, and attempt {known.attempt} is with {node or 'nobody'}")
        else:
            self._failed(known, write, _error.decode(write.result).code)

    def _failed(self, known: Known, write: EndTask, code: int) -> None:
        record = known.record
        if record is None:
            return
        # The starts of first attempts may be reported in groups: one that never ran counts all the same.
        attempts = {1, *(attempt for attempt, _ in record.executions)}
        if write.status == CANCELLED:
            true = code == CANCELLED_ERROR and self._model.was_cancelled(known)
        elif code == TASK_ERROR:
            true = bool(record.ends)
        elif code == ATTEMPTS_LOST:
            begun = len(attempts) >= record.max_attempts or "timeout" in record.options
            true = begun and write.starts >= record.max_attempts
        elif code == AFTER_FAILED:
            befores = [self._model.ids.get(each.id or "") for each in record.after]
            true = any(each is None or (each.ended and each.status != FINISHED) for each in befores)
        else:
            true = False
        if not true:
            story = f"{known.id} ended with {write.status} {code}; executions: {record.executions}"
            raise broken("task-true-end", story)
