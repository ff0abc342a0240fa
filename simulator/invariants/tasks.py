"""Invariants of tasks: what clients receive, what workers are given, and what remains when all tasks have ended. It
forwards observations to `task_order` and `task_messages`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from scale0.kernel.clock import Now
from scale0.kernel.effects import Message
from scale0.storage.task_rows import FINISHED, QUEUED, SCHEDULED
from scale0.tasks.jsonrpc.messages import KEY_CONFLICT
from scale0.transport.core.sockets import ACTIVE, BACKEND
from simulator.invariants.task_memory import leaks, too_many
from simulator.invariants.task_messages import MessageChecks
from simulator.invariants.task_model import TaskModel
from simulator.invariants.task_order import OrderChecks
from simulator.network.broker import BrokerNode, Mail
from simulator.network.task_records import TaskRecord, TaskRecords
from simulator.plan import Plan
from simulator.promises import broken
from simulator.virtual_time import Agenda

STUCK_SECONDS: Final = 4.0
"""How long a task may wait while a worker has room for it: a few commits."""
ROOM_SECONDS: Final = 0.05
"""How long ago the last worker joined or changed: it had no room before."""
SLACK_SECONDS: Final = 0.25
SWEEP_SECONDS: Final = 1.0
MICRO: Final = 1_000_000
LOADED_SECONDS: Final = 0.01
"""A disk with longer commits is slow."""


class TaskChecks:
    def __init__(self, agenda: Agenda, records: TaskRecords, plan: Plan) -> None:
        self._agenda = agenda
        self._records = records
        self._plan = plan
        self._model = TaskModel(records)
        self.of_order = OrderChecks(agenda, self._model)
        self.of_messages = MessageChecks(self._model)
        self._receive: dict[str, float] = {}
        """When a message from each worker last arrived, on any connection."""
        self.nodes: set[str] = set()
        """The nodes that pull."""
        self._started = self._woke_at = self._slow_at = self._ready_at = 0.0
        self._patience = 0.0
        """How long this broker process waits for the nodes that held tasks before its start."""
        self.settled_at: float | None = None
        """Since when no fault excuses a failure."""
        self.submitted: dict[str, int] = {}
        self.completed: dict[str, int] = {}
        """How often the journal has each task."""

    # Observations of the broker.

    def began(self, node: BrokerNode, with_disk: bool) -> None:
        """Checks that the disk of a starting broker has everything that the previous process acknowledged."""
        self._started = self._agenda.now
        state = node.broker.state
        self._patience = 2 * state.liveness * state.interval
        if not with_disk:
            self._model.given = {}
            for record in self._records.by_nonce.values():
                record.void = True
        disk = node.disk.store.snapshot().tasks
        ids = {task.id for task in disk.open.values()} | {task.id for task in disk.ended.values()}
        for record in self._records.by_nonce.values():
            if record.accepted is not None and not record.void and record.id not in ids:
                raise broken("task-never-lost", f"{record.id} was acknowledged, and is not on the disk after a restart")
        self._model.rebuild(disk, self._agenda.now)

    def woke(self) -> None:
        """Records that the broker was suspended until now."""
        self._woke_at = self._agenda.now

    def before_turn(self, mail: Sequence[Mail]) -> None:
        for wire, frames in mail:
            name = wire.client.name
            self._receive[name] = self._agenda.now
            if len(frames) > 1 and frames[1] == b"READY":
                self._ready_at = self._agenda.now
            if name in self.nodes and b"node_task_request" in frames[-1]:
                self._note_names(frames[-1])

    def decided(self, node: BrokerNode, writes: Sequence[Any], now: Now) -> None:
        self.of_order.decided(node, writes, now)

    def sent(self, node: BrokerNode, name: str, messages: Sequence[Message]) -> None:
        self.of_messages.sent(node, name, messages)

    def event(self, event: dict[str, Any]) -> None:
        """Handles an event of the journal, which is read at the end."""
        if event["kind"] == "task.submitted":
            self.submitted[event["ref"]] = self.submitted.get(event["ref"], 0) + 1
        elif event["kind"] == "task.completed":
            self.completed[event["ref"]] = self.completed.get(event["ref"], 0) + 1

    # Observations of workers and clients.

    def given(self, worker: str, id_: str, attempt: int, nonce: int) -> None:
        if self._records.by_nonce[nonce].void:
            return
        before = self._model.given.setdefault((id_, attempt), worker)
        if before != worker:
            raise broken("task-one-lease", f"attempt {attempt} of {id_} was given to {before} and to {worker}")

    def in_flight(self, worker: str, count: int, room: int) -> None:
        """Checks how many tasks a worker holds."""
        if count > room:
            raise broken("task-room", f"{worker} has {count} tasks in hand, and room for {room}")

    def accepted(self, record: TaskRecord, id_: str) -> None:
        """A client received the report that its task is stored."""
        record.accepted, record.id = self._agenda.now, id_
        known = self._model.ids.get(id_)
        if record.void:
            return
        if known is None:
            raise broken("task-never-lost", f"{id_} was acknowledged, and nobody knows it")
        if known.client != record.client or (known.record is not record and known.key != record.key):
            raise broken("task-once", f"{record.client} was given {id_}, which is another's task")
        if known.record is not None and known.record is not record:
            raise broken("task-once", f"{record.client} was given {id_} for a submission with other params")

    def refused(self, record: TaskRecord, code: int, message: str) -> None:
        """A client received the report that its task will never run."""
        record.refused = code
        if code == KEY_CONFLICT:
            first = self._model.keys.get((record.client, record.key or ""))
            if not record.void and (first is None or first.record is record):
                raise broken("task-once", f"submission {record.nonce} was refused, and nobody else has its key")
            return
        gone = any(each.void for each in record.after)
        story = f"submission {record.nonce} was refused: {code} {message}"
        if self.settled_at is not None and record.asked > self.settled_at and not gone:
            raise broken("task-accepted-again", story)
        if self._plan.calm:
            raise broken("task-true-end", story)

    def unknown(self, record: TaskRecord) -> None:
        """A client received the report that the outcome is unknown."""
        record.unknown = True
        if self.settled_at is not None and record.asked > self.settled_at:
            raise broken("task-accepted-again", f"submission {record.nonce} was not acknowledged after healing")

    def notified(self, client: str, id_: str, status: int, body: bytes) -> None:
        """A client received the end of a task."""
        known = self._model.ids.get(id_)
        if known is None or known.void or known.record is None:
            return
        if known.client != client:
            raise broken("task-own-result", f"{client} was notified of {id_}, a task of {known.client}")
        stored = known.body
        if known.status != FINISHED:
            stored = b"%d" % msgspec.json.decode(known.body or b"{}").get("code", 0)
        if not known.ended or (known.status, stored) != (status, body):
            raise broken("task-one-result", f"{id_} was reported as {status} {body!r}, it is {known.status} {stored!r}")
        for record in self._records.by_client[client]:
            if record.id == id_ and not record.void:
                if record.notified is not None and record.notified != (status, body):
                    raise broken("task-one-result", f"{id_} was reported as {record.notified}, then {(status, body)}")
                record.notified = (status, body)

    def missing(self, client: str, id_: str) -> None:
        """A client received the report that there is no such task."""
        known = self._model.ids.get(id_)
        if known is not None and not known.void and known.record is not None and known.record.accepted is not None:
            raise broken("task-never-lost", f"{id_} was reported as unknown to {client}")

    def status_notified(self, client: str, status: dict[str, Any], before: tuple[int, int]) -> None:
        """A client received the status of a task, which is not older than `before`: what it knew when it asked, because
        answers to several questions may come in any order."""
        known = self._model.ids.get(status["task_id"])
        if known is None or known.void or known.record is None:
            return
        now = (status["attempt"], status["code"])
        back = now[0] < before[0] or (now[0] == before[0] and now[1] < before[1] and now[1] not in (SCHEDULED, QUEUED))
        if back or (before[1] >= FINISHED and now != before):
            raise broken("task-status-forward", f"{known.id} was reported as {before}, and then {now}")
        known.record.notified_status = max(now, known.record.notified_status)

    def cancel_confirmed(self, client: str, id_: str) -> None:
        """A client received the report that a task does not run any more."""
        known = self._model.ids.get(id_)
        if known is not None and not known.void and not known.ended:
            raise broken("task-true-end", f"{id_} was cancelled, and is {known.status}")

    def pushed_at(self, client: str) -> None:
        """A REQ socket received a message without a request."""
        raise broken("no-false-refusal", f"{client} takes answers only, and was sent something else")

    # Periodic and final checks.

    def sweep(self, node: BrokerNode) -> None:
        """Called once a second."""
        if node.disk.high > LOADED_SECONDS:
            self._slow_at = self._agenda.now
        if not node.up or node.asleep:
            self._woke_at = self._agenda.now
            return
        story = too_many(node)
        if story:
            raise broken("task-memory", story)
        self._moved(node)
        if node.broker.state.state == ACTIVE and not node.broker.state.draining:
            self._stuck(node)
        else:
            self._slow_at = self._agenda.now

    def at_the_end(self, node: BrokerNode) -> None:
        """Checks that every task has ended and that only its row and its events remain."""
        wall_us = node.now.wall * MICRO
        excused: set[str] = set()
        for known in sorted(self._model.tasks.values(), key=lambda each: each.seq):
            after = known.record.after if known.record is not None else ()
            # A task that was scheduled by a wrong clock waits for that time.
            late = known.status == SCHEDULED and not known.waits and known.runnable_us > wall_us
            if late or any(each.id in excused for each in after):
                excused.add(known.id)
            elif not known.ended and not known.void:
                story = f"{known.id} is {known.status}, attempt {known.attempt} with {known.node or 'nobody'}"
                raise broken("task-ends", f"{story}: {known.method}, waits for {known.waits}")
        self._truth(node)
        if not excused and not any(each.void for each in self._model.tasks.values()):
            story = leaks(node)
            if story:
                raise broken("task-no-leak", story)

    def _truth(self, node: BrokerNode) -> None:
        disk = node.disk.store.snapshot().tasks
        ended = {task.id for task in disk.ended.values()}
        for known in self._model.tasks.values():
            counts = (self.submitted.get(known.id, 0), self.completed.get(known.id, 0))
            if counts != (1, int(known.id in ended)):
                raise broken("task-journal", f"{known.id} was submitted {counts[0]} times, completed {counts[1]} times")
        for record in self._records.by_nonce.values():
            if record.void:
                continue
            if record.refused is not None and record.nonce in self._model.by_nonce:
                raise broken("task-true-end", f"submission {record.nonce} was refused with {record.refused}, and ran")
            if record.watched and record.accepted is not None and record.notified is None:
                found = self._model.ids.get(record.id or "")
                if found is not None and found.ended and not found.void:
                    raise broken(
                        "task-notified", f"{record.client} waits for {record.id}, and was never notified of its end"
                    )

    def _note_names(self, frame: bytes) -> None:
        known = self._model.ids.get(msgspec.json.decode(frame)["params"][-1])
        if known is not None and known.record is not None:
            known.record.named = True

    def _moved(self, node: BrokerNode) -> None:
        """Checks that no lost worker has a task."""
        now, state = self._agenda.now, node.broker.state
        # The wait is counted in intervals, which an administrator may raise meanwhile.
        self._patience = max(self._patience, 2 * state.liveness * state.interval)
        if now - max(self._started, self._woke_at) <= self._patience + SLACK_SECONDS + SWEEP_SECONDS:
            return
        for known in self._model.leases.values():
            member = node.broker.members.by_name.get((BACKEND, known.node))
            if member is None or member.backend is None or known.id not in member.backend.tasks:
                raise broken("task-moved", f"{known.id} is with {known.node}, which does not have it")
            limit = member.interval * (self._plan.liveness + 1) + SLACK_SECONDS
            silent = now - max(self._receive.get(known.node, now), self._woke_at)
            if silent > limit + SWEEP_SECONDS:
                raise broken("task-moved", f"{known.id} is with {known.node}, silent for {silent:.3f} s")

    def _stuck(self, node: BrokerNode) -> None:
        """Checks that no task waits while a worker has room."""
        since = self._agenda.now - STUCK_SECONDS
        if max(self._slow_at, self._started, self._woke_at) > since or self._ready_at > self._agenda.now - ROOM_SECONDS:
            return
        scheduler = node.broker.scheduler
        for method, waiting in self._model.queued.items():
            late = [known for known in waiting.values() if known.queued_at < since]
            if not late or not scheduler.has_room(method):
                continue
            policy = node.broker.state.policies.get(method)
            limit = policy.concurrency if policy is not None else None
            leased = sum(known.method == method for known in self._model.leases.values())
            if limit is None or leased < limit:
                story = f"{late[0].id} waits for {self._agenda.now - late[0].queued_at:.1f} s"
                raise broken("task-not-stuck", f"{story}, and a backend of {method} has room")
