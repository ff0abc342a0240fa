"""The tasks that a broker has assigned to a native backend: from TASKS to TASKSOK, over every reconnect (PROTOCOL 2.3).

Invariants: a result is kept until TASKSOK names it, whatever the code, and is not sent after that; each kept result is
sent on every new connection that leads to its owner, and to nobody else; a cancelled task reports nothing; no task
starts while more than `max_unconfirmed_bytes` of results are unconfirmed; every body is valid JSON.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from scale0.kernel.clock import Now
from scale0.tasks.node.messages import (
    RETURNED,
    AssignedEntry,
    FailedEntry,
    FinishedEntry,
    ProgressEntry,
    StartedEntry,
    TaskKey,
    chunks_of,
    decode_codes,
    decode_keys,
    decoded,
    read_tasks,
    to_json,
)

HANDLER_FAILED: Final = -32000
"""The code of an error that a handler raised; the other codes are in `tasks.jsonrpc.messages`."""
MAX_UNCONFIRMED_BYTES: Final = 64 * 1024 * 1024
"""Unconfirmed results beyond which no task starts."""
RESEND_SECONDS: Final = 30.0
"""A result that is unconfirmed for this long, at most twice as long, is sent again: the broker's disk may have been
full."""
DEFAULT_TIMEOUT_SECONDS: Final = 3_600.0
"""The timeout of an attempt for which the broker gave no valid one."""


CONFIRMED: Final = -1
"""In place of a round: the result was confirmed or dropped."""

WAITING: Final = 0
RUNNING: Final = 1
ENDED: Final = 2


class AssignedTask(msgspec.Struct, eq=False, gc=False):
    """One attempt of a task. `AssignedTasks` sets `state`; the executor reads `stop` and sets `deadline`."""

    id: str
    attempt: int
    method: str
    params: bytes
    """JSON as received; empty if there are none."""
    timeout: float
    owner: str
    """Who wants the result: a broker, or a group that shares a store."""
    state: int = WAITING
    stop: bool = False
    """The result is not wanted any more."""
    deadline: float = math.inf
    """When the attempt times out, by the monotonic clock; infinite before it starts."""


class TasksAssigned(msgspec.Struct, frozen=True):
    """Notification: tasks to run, in this order."""

    tasks: list[AssignedTask]


class TasksStopped(msgspec.Struct, frozen=True):
    """Notification: these running tasks should stop."""

    tasks: list[AssignedTask]


class CapacityAvailable(msgspec.Struct, frozen=True):
    """Notification: tasks may start again."""


class UnconfirmedResult(msgspec.Struct):
    """A result without TASKSOK."""

    entry: FinishedEntry | FailedEntry
    size: int
    owner: str
    round: int
    """The period of RESEND_SECONDS in which it was last sent, or is to be sent."""


class AssignedTasks:
    def __init__(self, max_unconfirmed_bytes: int = MAX_UNCONFIRMED_BYTES) -> None:
        self._max_unconfirmed_bytes = max_unconfirmed_bytes
        self._tasks: dict[TaskKey, AssignedTask] = {}
        self._unconfirmed: dict[TaskKey, UnconfirmedResult] = {}
        self._unconfirmed_bytes = 0
        """Of results for the current broker."""
        self._broker = ""
        """The current broker; empty if unknown: then every owner counts as current."""
        self._owners: set[str] = set()
        """Owners of tasks that came on this connection: their results go there, whatever the broker's name."""
        self._started: list[StartedEntry] = []
        self._returned: list[StartedEntry] = []
        self._progress: dict[TaskKey, ProgressEntry] = {}
        """The latest progress of each task, to be sent."""
        self._unsent: list[UnconfirmedResult] = []
        self._round = 0
        self._resend_at: float | None = None

    @property
    def is_full(self) -> bool:
        """True while so many results are unconfirmed that no task may start."""
        return self._unconfirmed_bytes > self._max_unconfirmed_bytes

    @property
    def unfinished(self) -> int:
        """Running tasks and unconfirmed results: what a stop should wait for."""
        return len(self._unconfirmed) + sum(task.state == RUNNING and not task.stop for task in self._tasks.values())

    # Commands of the broker.

    def receive_tasks(self, command: str, body: bytes, notifications: list[Any]) -> None:
        """Handle TASKS, TASKSOK or TASKSCANCEL."""
        match command:
            case "TASKS":
                self._assign(body, notifications)
            case "TASKSOK":
                self._confirm(decoded(decode_codes, body), notifications)
            case "TASKSCANCEL":
                self._cancel(decoded(decode_keys, body), notifications)
            case _:
                pass

    def _assign(self, body: bytes, notifications: list[Any]) -> None:
        new: list[AssignedTask] = []
        newest: dict[str, int] = {}
        for assigned in read_tasks(body):
            key = assigned.id, assigned.attempt
            if assigned.owner and assigned.owner not in self._owners:
                self._add_owner(assigned.owner)
            if key in self._tasks or key in self._unconfirmed:
                continue  # it was assigned twice
            task = self._tasks[key] = task_of(assigned)
            new.append(task)
            if assigned.attempt > 1:
                newest[assigned.id] = max(assigned.attempt, newest.get(assigned.id, 0))
        if newest:
            # Only the newest attempt can finish a task: stop older ones.
            self._cancel([key for key in self._tasks if key[1] < newest.get(key[0], 0)], notifications)
        if new:
            notifications.append(TasksAssigned(new))

    def _confirm(self, acknowledged: Sequence[tuple[str, int, int]], notifications: list[Any]) -> None:
        """Handle TASKSOK: with 200, 409 and 404 alike, the result is not needed any more."""
        was_full = self.is_full
        unconfirmed = self._unconfirmed
        for id_, attempt, _ in acknowledged:
            result = unconfirmed.get((id_, attempt))
            if result is not None and self._is_current(result.owner):
                del unconfirmed[id_, attempt]
                self._unconfirmed_bytes -= result.size
                result.round = CONFIRMED
            elif (id_, attempt) in self._tasks:
                self._cancel([(id_, attempt)], notifications)
        if was_full and not self.is_full:
            notifications.append(CapacityAvailable())

    def recall(self, body: bytes) -> None:
        """Handle a recall: return tasks that have not started; the others go on."""
        for key in decoded(decode_keys, body):
            task = self._tasks.get(key)
            if task is not None and task.state == WAITING:
                del self._tasks[key]
                task.state, task.stop = ENDED, True
                self._returned.append(StartedEntry(task.id, task.attempt, RETURNED))

    def _cancel(self, keys: Iterable[TaskKey], notifications: list[Any]) -> None:
        stopped: list[AssignedTask] = []
        for key in keys:
            task = self._tasks.pop(key, None)
            if task is None:
                continue
            task.stop = True
            self._progress.pop(key, None)
            if task.state == RUNNING:
                stopped.append(task)
            task.state = ENDED
        if stopped:
            notifications.append(TasksStopped(stopped))

    # Progress of the tasks.

    def start(self, tasks: Iterable[AssignedTask]) -> list[AssignedTask]:
        """Mark those of these tasks that are still wanted as running, and report them with the next messages."""
        started = [task for task in tasks if task.state == WAITING]
        for task in started:
            task.state = RUNNING
            if self._is_current(task.owner):
                self._started.append(StartedEntry(task.id, task.attempt))
        return started

    def progress(self, task: AssignedTask, done: float, note: str) -> None:
        if task.state == RUNNING and self._is_current(task.owner):
            self._progress[task.id, task.attempt] = ProgressEntry(task.id, task.attempt, "running", done, note)

    def finish(self, task: AssignedTask, result: bytes) -> None:
        if self._end(task):
            self._add_result(FinishedEntry(task.id, task.attempt, msgspec.Raw(result)), len(result), task.owner)

    def fail(self, task: AssignedTask, error: bytes) -> None:
        if self._end(task):
            self._add_result(FailedEntry(task.id, task.attempt, msgspec.Raw(error)), len(error), task.owner)

    def _end(self, task: AssignedTask) -> bool:
        """False if the result is not wanted."""
        if task.state == ENDED:
            return False
        task.state = ENDED
        del self._tasks[task.id, task.attempt]
        return True

    def _add_result(self, entry: FinishedEntry | FailedEntry, size: int, owner: str) -> None:
        result = self._unconfirmed[entry.id, entry.attempt] = UnconfirmedResult(entry, size, owner, self._round)
        if self._is_current(owner):
            self._unconfirmed_bytes += size
            self._unsent.append(result)
        else:
            self._limit_others()

    def _is_current(self, owner: str) -> bool:
        return not owner or not self._broker or owner == self._broker or owner in self._owners

    def _limit_others(self) -> None:
        """Drop the oldest results for other owners while they are too large."""
        others = {key: result for key, result in self._unconfirmed.items() if not self._is_current(result.owner)}
        size = sum(result.size for result in others.values())
        for key, result in others.items():
            if size <= self._max_unconfirmed_bytes:
                break
            size -= result.size
            del self._unconfirmed[key]
            result.round = CONFIRMED

    def set_broker(self, broker: str) -> None:
        """The connection now leads to this broker: results for others wait until they are connected again."""
        self._owners.clear()
        if broker != self._broker:
            self._returned = []  # else it may be the same connection, on which the broker keeps our leases
        self._broker = broker
        self._started, self._progress, self._unsent = [], {}, []
        self._unconfirmed_bytes = sum(
            result.size for result in self._unconfirmed.values() if self._is_current(result.owner)
        )
        self._limit_others()

    def _add_owner(self, owner: str) -> None:
        others = (
            []
            if self._is_current(owner)
            else [result for result in self._unconfirmed.values() if result.owner == owner]
        )
        self._owners.add(owner)
        self._unsent += others
        self._unconfirmed_bytes += sum(result.size for result in others)

    @property
    def is_idle(self) -> bool:
        return not any(self._is_current(task.owner) for task in self._tasks.values()) and not any(
            self._is_current(result.owner) for result in self._unconfirmed.values()
        )

    # Messages to the broker.

    def take_messages(self, now: Now) -> Iterator[tuple[str, bytes]]:
        """The commands and bodies to send now; results come before the tasks that start in their place."""
        if self._progress:
            progressed, self._progress = list(self._progress.values()), {}
            yield from (("TASKSTATUS", to_json(chunk)) for chunk in chunks_of(progressed, lambda _: 0))
        if self._unsent:
            unsent, self._unsent = [result for result in self._unsent if result.round != CONFIRMED], []
            for chunk in chunks_of(unsent, lambda result: result.size):
                yield "TASKSDONE", to_json([result.entry for result in chunk])
            if self._resend_at is None:
                self._resend_at = now.mono + RESEND_SECONDS
        if self._started:
            started, self._started = self._started, []
            yield from (("TASKSTATUS", to_json(chunk)) for chunk in chunks_of(started, lambda _: 0))
        if self._returned:
            returned, self._returned = self._returned, []
            yield from (("TASKSTATUS", to_json(chunk)) for chunk in chunks_of(returned, lambda _: 0))

    def connected(self) -> None:
        """A broker has accepted us: it may not know what was sent before."""
        self._unsent = [result for result in self._unconfirmed.values() if self._is_current(result.owner)]
        for result in self._unsent:
            result.round = self._round
        running = [task for task in self._tasks.values() if task.state == RUNNING and self._is_current(task.owner)]
        self._started = [StartedEntry(task.id, task.attempt) for task in running]

    def holds(self, room: int) -> list[TaskKey]:
        """The tasks for READY, in `room` bytes: running ones first, then results, then waiting ones.

        Waiting tasks that do not fit are dropped, and the broker assigns them again. The others are kept, though they
        may run elsewhere as well: they have started.
        """
        held: list[TaskKey] = []
        here = {key: task for key, task in self._tasks.items() if self._is_current(task.owner)}
        unconfirmed = [key for key, result in self._unconfirmed.items() if self._is_current(result.owner)]
        running = [key for key, task in here.items() if task.state == RUNNING]
        waiting = [key for key, task in here.items() if task.state == WAITING]
        for key in (*running, *unconfirmed, *waiting):
            room -= len(to_json(key)) + 1
            if room < 0:
                break
            held.append(key)
        for key in waiting[max(0, len(held) - len(running) - len(unconfirmed)) :]:
            task = self._tasks.pop(key)
            task.state, task.stop = ENDED, True
        return held

    def tick(self, now: Now) -> None:
        """Send unconfirmed results again."""
        if self._resend_at is None or now.mono < self._resend_at:
            return
        unsent = {id(result) for result in self._unsent}
        for result in self._unconfirmed.values():
            if result.round < self._round and id(result) not in unsent and self._is_current(result.owner):
                result.round = self._round
                self._unsent.append(result)
        self._round += 1
        self._resend_at = now.mono + RESEND_SECONDS if self._unconfirmed else None

    def deadline(self) -> float | None:
        return self._resend_at


def task_of(assigned: AssignedEntry) -> AssignedTask:
    """The params are copied: a task must not keep a whole message alive."""
    timeout = assigned.timeout
    if timeout is None or not 0 < timeout < math.inf:
        timeout = DEFAULT_TIMEOUT_SECONDS
    params = bytes(assigned.params)
    return AssignedTask(
        assigned.id,
        assigned.attempt,
        assigned.method,
        b"" if params == b"null" else params,
        timeout,
        assigned.owner or "",
    )
