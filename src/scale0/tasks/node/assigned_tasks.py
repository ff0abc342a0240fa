"""A node's tasks in hand: from TASKS to TASKSOK, over every reconnect (PROTOCOL 2.3).

Lives here: what a native backend has been given, what of it runs, and results that no broker has taken yet. Never here:
the line, running a task, or how a body is read (`node_bodies`). Invariants: a result is kept until TASKSOK names it,
whatever code it carries, and is not said any more after that; whatever connection comes, each kept result is said on it
if it leads to the result's owner, and to nobody else; a task that was cancelled says nothing more; no task begins while
more than `max_kept_bytes` of results wait for their TASKSOK: work that cannot be handed in is not begun, and what was
begun is not lost. Every body that is made here is whole JSON, because every result that comes in is.
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
    decode_codes,
    decode_keys,
    decoded,
    parts_of,
    read_tasks,
    to_json,
)

HANDLER_FAILED: Final = -32000
"""The code of an error that a task's own function raised; the other codes are in `words`."""
MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
"""Results that wait for their TASKSOK; beyond it nothing new begins."""
AGAIN_SECONDS: Final = 30.0
"""A result that is not taken for so long, or at the most for twice as long, is said again: a broker's disk was full."""
USUAL_TIMEOUT_SECONDS: Final = 3_600.0
"""Of an attempt for which the broker named none, or none that can be."""


FORGOTTEN: Final = -1
"""In place of a round: it was taken, and is not said again."""

WAITING: Final = 0
RUNNING: Final = 1
ENDED: Final = 2


class AssignedTask(msgspec.Struct, eq=False, gc=False):
    """One attempt of a task, in hand. `state` is this file's; whoever runs it reads `stop` and sets `deadline`."""

    id: str
    attempt: int
    method: str
    params: bytes
    """JSON as it came; empty: none."""
    timeout: float
    owner: str
    """Who wants the result: a broker, or a group that shares a store."""
    state: int = WAITING
    stop: bool = False
    """Nobody wants its result any more."""
    deadline: float = math.inf
    """When its time is over, by the monotonic clock; infinite before it starts."""


class TasksAssigned(msgspec.Struct, frozen=True):
    """News: tasks to be run, in this order."""

    jobs: list[AssignedTask]


class TasksStopped(msgspec.Struct, frozen=True):
    """News: these had begun, and are to stop if they can."""

    jobs: list[AssignedTask]


class CapacityAvailable(msgspec.Struct, frozen=True):
    """News: tasks may begin again."""


class UnconfirmedResult(msgspec.Struct):
    """A result that waits for its TASKSOK."""

    said: FinishedEntry | FailedEntry
    size: int
    owner: str
    round: int
    """The stretch of AGAIN_SECONDS in which it was last said, or to be said."""


class AssignedTasks:
    """The tasks of one native backend."""

    def __init__(self, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_kept_bytes = max_kept_bytes
        self._jobs: dict[TaskKey, AssignedTask] = {}
        self._kept: dict[TaskKey, UnconfirmedResult] = {}
        self._kept_bytes = 0
        """Of those whose owner is here."""
        self._broker = ""
        """Whom the line leads to; empty: nobody knows, and it may be anybody's owner."""
        self._owners: set[str] = set()
        """Whose tasks came on this line: whatever the broker is called, their results go there."""
        self._started: list[StartedEntry] = []
        self._returned: list[StartedEntry] = []
        self._progressed: dict[TaskKey, ProgressEntry] = {}
        """The latest of each: it waits for a line."""
        self._unsaid: list[UnconfirmedResult] = []
        self._round = 0
        self._again_at: float | None = None

    @property
    def is_full(self) -> bool:
        """True while so many results wait for their TASKSOK that nothing new begins."""
        return self._kept_bytes > self._max_kept_bytes

    @property
    def unfinished(self) -> int:
        """Tasks that run, and results that nobody has taken yet: what a stop should wait for."""
        return len(self._kept) + sum(job.state == RUNNING and not job.stop for job in self._jobs.values())

    # What the broker says.

    def hear(self, command: str, body: bytes, news: list[Any]) -> None:
        """TASKS, TASKSOK or TASKSCANCEL."""
        match command:
            case "TASKS":
                self._take(body, news)
            case "TASKSOK":
                self._forget(decoded(decode_codes, body), news)
            case "TASKSCANCEL":
                self._cancel(decoded(decode_keys, body), news)
            case _:
                pass

    def _take(self, body: bytes, news: list[Any]) -> None:
        given: list[AssignedTask] = []
        newest: dict[str, int] = {}
        for handed in read_tasks(body):
            key = handed.id, handed.attempt
            if handed.owner and handed.owner not in self._owners:
                self._meet_owner(handed.owner)
            if key in self._jobs or key in self._kept:
                continue  # it was handed out twice; once is enough
            job = self._jobs[key] = job_of(handed)
            given.append(job)
            if handed.attempt > 1:
                newest[handed.id] = max(handed.attempt, newest.get(handed.id, 0))
        if newest:
            # Only the newest attempt can finish a task: an older one that we still have is for nothing.
            self._cancel([key for key in self._jobs if key[1] < newest.get(key[0], 0)], news)
        if given:
            news.append(TasksAssigned(given))

    def _forget(self, acknowledged: Sequence[tuple[str, int, int]], news: list[Any]) -> None:
        """200, 409, 404: in each case there is nothing more to say about it."""
        was_full = self.is_full
        kept = self._kept
        for id_, attempt, _ in acknowledged:
            entry = kept.get((id_, attempt))
            if entry is not None and self._is_here(entry.owner):
                del kept[id_, attempt]
                self._kept_bytes -= entry.size
                entry.round = FORGOTTEN
            elif (id_, attempt) in self._jobs:
                self._cancel([(id_, attempt)], news)
        if was_full and not self.is_full:
            news.append(CapacityAvailable())

    def give_back(self, body: bytes) -> None:
        """A recall: what has not begun never will, and the broker hears so; the rest goes on."""
        for key in decoded(decode_keys, body):
            job = self._jobs.get(key)
            if job is not None and job.state == WAITING:
                del self._jobs[key]
                job.state, job.stop = ENDED, True
                self._returned.append(StartedEntry(job.id, job.attempt, RETURNED))

    def _cancel(self, keys: Iterable[TaskKey], news: list[Any]) -> None:
        stopped: list[AssignedTask] = []
        for key in keys:
            job = self._jobs.pop(key, None)
            if job is None:
                continue
            job.stop = True
            self._progressed.pop(key, None)
            if job.state == RUNNING:
                stopped.append(job)
            job.state = ENDED
        if stopped:
            news.append(TasksStopped(stopped))

    # What is done about them.

    def begin(self, jobs: Iterable[AssignedTask]) -> list[AssignedTask]:
        """These start now: those that are still wanted, and that `say` announces."""
        begun = [job for job in jobs if job.state == WAITING]
        for job in begun:
            job.state = RUNNING
            if self._is_here(job.owner):
                self._started.append(StartedEntry(job.id, job.attempt))
        return begun

    def progress(self, job: AssignedTask, done: float, note: str) -> None:
        """It gets on."""
        if job.state == RUNNING and self._is_here(job.owner):
            self._progressed[job.id, job.attempt] = ProgressEntry(job.id, job.attempt, "running", done, note)

    def finish(self, job: AssignedTask, result: bytes) -> None:
        """It is done; `result` is one JSON value."""
        if self._end(job):
            self._keep(FinishedEntry(job.id, job.attempt, msgspec.Raw(result)), len(result), job.owner)

    def fail(self, job: AssignedTask, error: bytes) -> None:
        """It failed; `error` is an error object in JSON."""
        if self._end(job):
            self._keep(FailedEntry(job.id, job.attempt, msgspec.Raw(error)), len(error), job.owner)

    def _end(self, job: AssignedTask) -> bool:
        """False if nobody wants to hear of it."""
        if job.state == ENDED:
            return False
        job.state = ENDED
        del self._jobs[job.id, job.attempt]
        return True

    def _keep(self, said: FinishedEntry | FailedEntry, size: int, owner: str) -> None:
        entry = self._kept[said.id, said.attempt] = UnconfirmedResult(said, size, owner, self._round)
        if self._is_here(owner):
            self._kept_bytes += size
            self._unsaid.append(entry)
        else:
            self._bound_away()

    def _is_here(self, owner: str) -> bool:
        return not owner or not self._broker or owner == self._broker or owner in self._owners

    def _bound_away(self) -> None:
        """Results for brokers that are not here: the oldest go first, if they are too many."""
        away = {key: entry for key, entry in self._kept.items() if not self._is_here(entry.owner)}
        size = sum(entry.size for entry in away.values())
        for key, entry in away.items():
            if size <= self._max_kept_bytes:
                break
            size -= entry.size
            del self._kept[key]
            entry.round = FORGOTTEN

    def meet(self, broker: str) -> None:
        """The line leads to this broker from now on: others' results wait until they are met again."""
        self._owners.clear()
        self._broker = broker
        self._started, self._progressed, self._unsaid, self._returned = [], {}, [], []
        self._kept_bytes = sum(entry.size for entry in self._kept.values() if self._is_here(entry.owner))
        self._bound_away()

    def _meet_owner(self, owner: str) -> None:
        were_away = [] if self._is_here(owner) else [one for one in self._kept.values() if one.owner == owner]
        self._owners.add(owner)
        self._unsaid += were_away
        self._kept_bytes += sum(entry.size for entry in were_away)

    @property
    def is_idle(self) -> bool:
        """True while nothing of the broker that is here is in hand."""
        return not any(self._is_here(job.owner) for job in self._jobs.values()) and not any(
            self._is_here(entry.owner) for entry in self._kept.values()
        )

    # What is said to the broker.

    def say(self, now: Now) -> Iterator[tuple[str, bytes]]:
        """Commands and bodies, now that there is a line to say them on; results before what starts in their place."""
        if self._progressed:
            told, self._progressed = list(self._progressed.values()), {}
            yield from (("TASKSTATUS", to_json(part)) for part in parts_of(told, lambda _: 0))
        if self._unsaid:
            unsaid, self._unsaid = [entry for entry in self._unsaid if entry.round != FORGOTTEN], []
            for part in parts_of(unsaid, lambda entry: entry.size):
                yield "TASKSDONE", to_json([entry.said for entry in part])
            if self._again_at is None:
                self._again_at = now.mono + AGAIN_SECONDS
        if self._started:
            started, self._started = self._started, []
            yield from (("TASKSTATUS", to_json(part)) for part in parts_of(started, lambda _: 0))
        if self._returned:
            returned, self._returned = self._returned, []
            yield from (("TASKSTATUS", to_json(part)) for part in parts_of(returned, lambda _: 0))

    def come_up(self) -> None:
        """A broker has taken us in: it may know nothing of what was said before."""
        self._unsaid = [entry for entry in self._kept.values() if self._is_here(entry.owner)]
        for entry in self._unsaid:
            entry.round = self._round
        running = [job for job in self._jobs.values() if job.state == RUNNING and self._is_here(job.owner)]
        self._started = [StartedEntry(job.id, job.attempt) for job in running]

    def holds(self, room: int) -> list[TaskKey]:
        """What READY names, in so many bytes: what runs first, then what is finished, then what waits.

        What waits and finds no room is let go: the broker will give it to somebody else. The rest is not, though it may
        be done elsewhere as well: it has been begun.
        """
        held: list[TaskKey] = []
        here = {key: job for key, job in self._jobs.items() if self._is_here(job.owner)}
        kept = [key for key, entry in self._kept.items() if self._is_here(entry.owner)]
        running = [key for key, job in here.items() if job.state == RUNNING]
        waiting = [key for key, job in here.items() if job.state == WAITING]
        for key in (*running, *kept, *waiting):
            room -= len(to_json(key)) + 1
            if room < 0:
                break
            held.append(key)
        for key in waiting[max(0, len(held) - len(running) - len(kept)) :]:
            job = self._jobs.pop(key)
            job.state, job.stop = ENDED, True
        return held

    def tick(self, now: Now) -> None:
        """Say again what was said long ago and is not taken."""
        if self._again_at is None or now.mono < self._again_at:
            return
        unsaid = {id(entry) for entry in self._unsaid}
        for entry in self._kept.values():
            if entry.round < self._round and id(entry) not in unsaid and self._is_here(entry.owner):
                entry.round = self._round
                self._unsaid.append(entry)
        self._round += 1
        self._again_at = now.mono + AGAIN_SECONDS if self._kept else None

    def deadline(self) -> float | None:
        """When `tick` has something to do."""
        return self._again_at


def job_of(handed: AssignedEntry) -> AssignedTask:
    """A task in hand. The params are copied: a job must not keep a whole message alive."""
    timeout = handed.timeout
    if timeout is None or not 0 < timeout < math.inf:
        timeout = USUAL_TIMEOUT_SECONDS
    params = bytes(handed.params)
    return AssignedTask(
        handed.id,
        handed.attempt,
        handed.method,
        b"" if params == b"null" else params,
        timeout,
        handed.owner or "",
    )
