"""A naive model of the queue, written from PROTOCOL 2.3 and 6 alone: plain lists, one task after the other.

Whatever happens to a task is either asked for by somebody, or its time has come; `Naive` raises AssertionError at what
it cannot explain, and at what should have happened and did not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

INTERVAL = 1.0
LIVENESS = 3
GRACE = 2 * LIVENESS * INTERVAL
LATE = 0.1
"""How much later than its time something may happen."""
DEAD_LATE = INTERVAL + 0.25
OPEN = ("scheduled", "queued", "assigned", "running")
LEASED = ("assigned", "running")
CODES = {"scheduled": 500, "queued": 1000, "assigned": 3000, "running": 5000}
CODES |= {"finished": 7000, "failed": 9000, "cancelled": 9500}


@dataclass(eq=False)
class Task:
    id: str
    client: str
    method: str
    priority: int
    order: int
    max_attempts: int
    backoff: float
    timeout: float
    notify: str
    """The connection that is told of its end; empty: none."""
    soonest: float
    latest: float
    """When it may, and when it must have become runnable."""
    waits: set[str]
    status: str = "scheduled"
    attempt: int = 0
    starts: int = 0
    node: str = ""
    native: bool = True
    start_reported: bool = False
    told: bool = False
    """A client heard that it runs, so that must survive."""
    clock: float | None = None
    """Since when its attempt is timed."""
    outcome: Any = None
    given_up: bool = False
    """Its attempts are used up: its end must follow."""

    @property
    def rank(self) -> tuple[int, int]:
        return (-self.priority, self.order)


@dataclass(eq=False)
class Worker:
    name: str
    native: bool
    methods: frozenset[str] = frozenset()
    slots: int = 0
    connection: str = ""
    up: bool = False
    silent: bool = False
    cut: bool = False
    spoke: float = 0.0
    hand: dict[str, int] = field(default_factory=dict)
    """What it believes to have."""
    seen: list[tuple[str, int]] = field(default_factory=list)
    """All that it ever had."""


class Naive:
    """All that is known of one broker's tasks."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self.workers: dict[str, Worker] = {}
        self.lost: set[tuple[str, int]] = set()
        """Attempts that must be lost in this turn, by what somebody did."""
        self.failed: set[tuple[str, int]] = set()
        self.ends: dict[str, tuple[str, Any]] = {}
        """Tasks that must end in this turn, and how."""
        self.restarted = -math.inf
        self.closed_until = 0.0
        """Until when nothing need be handed out: the disk was full."""
        self.notes: dict[str, str] = {}
        """Tasks whose end must be told, and on which connection."""
        self.changed: set[str] = set()
        """Tasks that became runnable in this turn."""

    # What is there.

    def leases(self, worker: Worker) -> list[Task]:
        return [task for task in self.tasks.values() if task.status in LEASED and task.node == worker.name]

    def open(self) -> list[Task]:
        return [task for task in self.tasks.values() if task.status in OPEN]

    def runnable(self, now: float) -> list[Task]:
        """Those that wait to be handed out, for certain."""
        return [task for task in self.tasks.values() if self.is_runnable(task, now, task.latest)]

    def is_runnable(self, task: Task, now: float, when: float) -> bool:
        return task.status == "queued" or (task.status == "scheduled" and not task.waits and when <= now)

    # What clients do.

    def submit(self, task: Task, key: str | None, now: float) -> None:
        """A new task was acknowledged."""
        assert task.id not in self.tasks, f"{task.id} was given twice"
        self.tasks[task.id] = task
        if key is not None:
            self.keys[task.client, key] = task.id
        bad = [id_ for id_ in task.waits if self.tasks[id_].status in ("failed", "cancelled")]
        task.waits = {id_ for id_ in task.waits if self.tasks[id_].status in OPEN}
        if bad:
            self.ends[task.id] = ("failed", -32091)
        elif not task.waits and task.soonest <= now:
            task.status = "queued"

    def cancel(self, task: Task) -> None:
        if task.status in OPEN:
            self.ends[task.id] = ("cancelled", -32092)

    # What workers do.

    def verdict(self, worker: Worker, id_: str, attempt: int, end: tuple[str, Any]) -> int:
        """What must be said to a result: 200, 404, 409; `end` is the end of the task that it would be."""
        task = self.tasks.get(id_)
        if task is None:
            return 404
        if task.attempt == attempt and task.node == worker.name:
            if task.status in LEASED and worker.up:
                return 200
            if (task.status, task.outcome) == end:
                return 200
        return 409

    def is_lease(self, worker: Worker, id_: str, attempt: int) -> bool:
        task = self.tasks.get(id_)
        return worker.up and any(each is task and each.attempt == attempt for each in self.leases(worker))

    def result(self, task: Task, outcome: Any) -> None:
        self._count(task)
        self.ends[task.id] = ("finished", outcome)

    def failure(self, task: Task, code: int, retry: bool) -> None:
        self._count(task)
        if retry and task.starts < task.max_attempts:
            self.failed.add((task.id, task.attempt))
        else:
            self.ends[task.id] = ("failed", code)

    def _count(self, task: Task) -> None:
        if task.native and not task.start_reported:
            task.starts += 1
            task.start_reported = True

    def begin(self, task: Task, now: float) -> None:
        """Its worker says that it runs."""
        if not task.start_reported:
            task.start_reported = True
            if task.native:
                task.starts += 1
                task.clock = now
            task.status = "running"

    def ready(self, worker: Worker, holds: Iterable[tuple[str, int]], now: float) -> None:
        """A worker is there, on a new connection, and has these in hand."""
        kept = set(holds)
        for task in self.leases(worker):
            if (task.id, task.attempt) not in kept:
                self.lost.add((task.id, task.attempt))
            elif not worker.up and (task.start_reported or not task.native):
                task.clock = now
        worker.up, worker.silent, worker.cut, worker.spoke = True, False, False, now

    def leave(self, worker: Worker) -> None:
        self.lost |= {(task.id, task.attempt) for task in self.leases(worker)}
        worker.up = False

    # What the broker does.

    def hand(self, worker: Worker, id_: str, attempt: int, now: float) -> Task:
        """A task was handed out."""
        task = self.tasks[id_]
        assert self.is_runnable(task, now, task.soonest), f"{id_} is {task.status}, and was handed out"
        assert attempt == task.attempt + 1, f"attempt {attempt} of {id_} follows {task.attempt}"
        assert worker.up, f"{worker.name} is not there, and got {id_}"
        assert task.method in worker.methods, f"{worker.name} got {id_}, and does not offer {task.method}"
        task.status, task.attempt, task.node = "assigned", attempt, worker.name
        task.native, task.start_reported, task.told, task.clock = worker.native, False, False, now
        if not worker.native:
            task.starts += 1
        else:
            assert len(self.leases(worker)) <= worker.slots, f"{worker.name} got more than its slots"
        worker.hand[id_] = attempt
        worker.seen.append((id_, attempt))
        return task

    def attempt_ended(self, id_: str, attempt: int, node: str, state: str, now: float) -> None:
        """An attempt came to nothing: is that so, and what follows?"""
        task, worker = self.tasks[id_], self.workers[node]
        if attempt == task.attempt + 1 and worker.cut and state == "lost":
            # It never left for a connection that is cut.
            assert self.is_runnable(task, now, task.soonest)
            task.attempt, task.status, task.soonest, task.latest = attempt, "queued", now, now
            return
        assert task.status in LEASED, (id_, attempt, node, state)
        assert (task.attempt, task.node) == (attempt, node), (id_, attempt, node, state)
        if state == "timeout":
            assert now >= (task.clock or math.inf) + task.timeout, f"{id_} timed out too early"
            self._count(task)
        elif state == "failed":
            self.failed.remove((id_, attempt))
        elif state == "cancelled":
            assert len(self.leases(worker)) > worker.slots, f"{id_} was taken back for nothing"
        else:
            assert state == "lost", state
            self._explain_loss(task, worker, now)
        self._over(task, state, now)

    def _explain_loss(self, task: Task, worker: Worker, now: float) -> None:
        if (task.id, task.attempt) in self.lost:
            self.lost.discard((task.id, task.attempt))
        elif worker.up:
            assert worker.silent, f"{task.id} was lost, and {worker.name} is well"
            assert now >= worker.spoke + LIVENESS * INTERVAL, f"{worker.name} died too early"
        else:
            assert now >= self.restarted + GRACE, f"{task.id} was not waited for"

    def _over(self, task: Task, state: str, now: float) -> None:
        counted = state in ("failed", "timeout") or (state == "lost" and (task.start_reported or not task.native))
        task.node, task.clock, task.start_reported = "", None, False
        if counted and task.starts >= task.max_attempts:
            task.given_up = True
            self.ends[task.id] = ("failed", -32090)
            return
        task.status, pause = "queued", 0.0
        if counted and task.backoff:
            pause = task.backoff * 2 ** (max(task.starts, 1) - 1)
            task.status = "scheduled"
        task.soonest, task.latest = now + pause - 1e-3, now + 1.5 * pause + (LATE if pause else 0.0)
        self.changed.add(task.id)

    def completed(self, id_: str, state: str, code: int | None, now: float) -> None:
        """A task has ended: is that so, and what follows?"""
        task = self.tasks[id_]
        assert task.status in OPEN, f"{id_} was {task.status}, and ended again"
        expected = self.ends.pop(id_, None)
        assert expected is not None, f"{id_} is {state} ({code}), and nobody asked for it"
        assert (state, code) == (expected[0], expected[1] if state != "finished" else None), (
            id_,
            state,
            code,
            expected,
        )
        task.status, task.outcome, task.clock = state, expected[1], None
        if task.notify:
            self.notes[id_] = task.notify
        for other in self.tasks.values():
            if id_ in other.waits:
                if state != "finished":
                    other.waits.clear()
                    if other.status in OPEN:
                        self.ends.setdefault(other.id, ("failed", -32091))
                    continue
                other.waits.discard(id_)
                if not other.waits:
                    other.soonest, other.latest = max(other.soonest, now), max(other.latest, now) + LATE
                    self.changed.add(other.id)

    def crash(self, now: float) -> None:
        """The broker died, and is back."""
        self.restarted = now
        for worker in self.workers.values():
            worker.up = worker.silent = worker.cut = False
        for task in self.tasks.values():
            task.notify, task.clock = "", None
        self.notes.clear()

    # What must be true.

    def check_order(self, handed: list[Task], before: Iterable[Task]) -> None:
        """Of one client, method and priority the oldest goes first, and no lower priority before a higher one."""
        for task in handed:
            for other in before:
                if other.method == task.method and other not in handed and other.status == "queued":
                    ours, theirs = (
                        (task.rank, other.rank) if task.client == other.client else (task.rank[:1], other.rank)
                    )
                    assert ours <= theirs, f"{task.id} was handed out before {other.id}"

    def check_turn(self, now: float, alive: Iterable[str]) -> None:
        """What had to happen has happened."""
        assert not self.lost, f"not taken back: {self.lost}"
        assert not self.failed, f"not tried again: {self.failed}"
        assert not self.ends, f"not ended: {self.ends}"
        assert not self.notes, f"not told: {self.notes}"
        self.changed.clear()
        names = set(alive)
        for worker in self.workers.values():
            if worker.up and worker.silent:
                if worker.name not in names:
                    assert now >= worker.spoke + LIVENESS * INTERVAL, f"{worker.name} died too early"
                    worker.up = False
                assert worker.name not in names or now <= worker.spoke + LIVENESS * INTERVAL + DEAD_LATE, worker.name
            elif worker.up:
                assert worker.name in names, f"{worker.name} was forgotten"
        for task in self.open():
            if task.status in LEASED:
                worker = self.workers[task.node]
                over = task.clock is not None and now > task.clock + task.timeout + LATE
                assert not over, f"{task.id} lasts too long"
                if not worker.up:
                    assert now <= self.restarted + GRACE + LATE, f"{task.id} is lost"
            elif self.is_runnable(task, now, task.latest):
                task.status = "queued"
        for worker in self.workers.values() if now >= self.closed_until else ():
            if worker.up and worker.native and not worker.silent and len(self.leases(worker)) < worker.slots:
                stuck = [task.id for task in self.runnable(now) if task.method in worker.methods]
                assert not stuck, f"{worker.name} is idle, and {stuck} wait"
