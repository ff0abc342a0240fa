"""The task queue: accepts, queues and ends tasks; every status change except a hand-out (see `leases`), with its write
and event. Invariants: a status changes together with its row; a task ends exactly once; only the newest attempt can end
it; all changes to a new task within one turn are one write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from scale0.broker.core.state import BrokerState
from scale0.history.events.tasks import TaskCompleted, TaskSubmitted
from scale0.kernel.clock import Now
from scale0.kernel.effects import Effects
from scale0.kernel.timers import LazyTimerWheel
from scale0.storage.interface import SLOT_BITS, SharedStoreInfo
from scale0.storage.task_rows import (
    ASSIGNED,
    FAILED,
    FINISHED,
    KEPT_ROW_BYTES,
    QUEUED,
    RUNNING,
    SCHEDULED,
    STATUS_NAMES,
    EndedTask,
    EndTask,
    OpenTask,
    ReleaseTask,
    checksum,
)
from scale0.tasks.core.attempts import attempt_ended, pause_before_next, remembered
from scale0.tasks.core.backlog_window import OwnBacklogWindow
from scale0.tasks.core.delayed_tasks import DelayedTasks
from scale0.tasks.core.method_queues import MethodQueues
from scale0.tasks.core.quotas import TaskQuotas
from scale0.tasks.core.retention import Retention
from scale0.tasks.core.shared_backlog_window import SharedBacklogWindow
from scale0.tasks.core.shared_delayed_tasks import SharedDelayedTasks
from scale0.tasks.core.stored_backlog import StoredBacklog
from scale0.tasks.core.task import MICRO, QueuedTask, digest_of, from_store, of_seconds, pack_kept
from scale0.tasks.jsonrpc.arguments import (
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_RESULT_SECONDS,
    DEFAULT_TIMEOUT_SECONDS,
    NewTaskOptions,
    StoredOptions,
)
from scale0.tasks.jsonrpc.messages import ATTEMPTS_LOST, DAMAGED, error_object

OWN_IDS: Final = "s0:"
"""Prefix of ids that a broker generates; clients may not use it."""
SERIES_BITS: Final = 64
"""Random bits that the ids of one start have in common: no other start uses them, also not one of a restored store."""
MAX_USUAL: Final = 1_000
"""Connections whose default options are cached in their stored form."""
UNLIMITED: Final = 2**62

OnEnd = Callable[[QueuedTask, int, bytes, Now, Effects], None]


class TaskQueue:
    def __init__(
        self,
        state: BrokerState,
        backlog: StoredBacklog,
        next_seq: int,
        shared: SharedStoreInfo | None,
        has_room: Callable[[str], bool],
        on_end: OnEnd,
    ) -> None:
        self._state = state
        self.quotas = TaskQuotas(state)
        self.backlog = backlog
        self._next = next_seq
        self._series, self._made = "", 0
        """Of the ids that this process made."""
        self.shared = shared
        self.method_queues = MethodQueues(self._limit)
        self.window = (
            SharedBacklogWindow(backlog, self.method_queues.ready, has_room, self._is_closed) if shared else None
        )
        """Set if brokers share the store."""
        self.method_queues.window = self.window or OwnBacklogWindow(backlog, self.method_queues.ready)
        self.schedule = (SharedDelayedTasks if shared else DelayedTasks)(state, backlog, self._release, next_seq)
        self._changed: dict[QueuedTask, None] = {}
        """Shared store only: the tasks that this turn changed. Each is written once, at the end of the turn."""
        self.timers: LazyTimerWheel[QueuedTask] = LazyTimerWheel()
        """Timeouts of attempts."""
        self.fresh: list[QueuedTask] = []
        """Tasks accepted in this turn."""
        self.dirty: dict[str, None] = {}
        """Methods that may have tasks to hand out."""
        self.retention = Retention(shared is not None)
        self._on_end = on_end
        self.total_submitted = self.total_finished = self.total_failed = 0
        self._usual: dict[int, tuple[StoredOptions, bytes]] = {}
        backlog.on_loaded = self._dirty

    @property
    def open(self) -> int:
        """Number of tasks that have not ended."""
        return self.quotas.total.tasks

    def is_expired(self, row: EndedTask, now: Now) -> bool:
        """True if the result of a task is no longer kept."""
        return row.expires_us <= self.retained_us(now)

    def retained_us(self, now: Now) -> int:
        """Returns the time up to which ended tasks have expired."""
        return self.retention.now_us(self.schedule.now_us(now), now)

    def _limit(self, method: str) -> int:
        policies = self._state.policies
        if not policies or method not in policies:
            return UNLIMITED
        limit = policies[method].concurrency
        return UNLIMITED if limit is None else limit

    def _is_closed(self, method: str) -> bool:
        """True while no task of the method is handed out."""
        return self._state.draining or self._state.full or self.at_limit(method)

    def is_limited(self, method: str) -> bool:
        return self._limit(method) != UNLIMITED

    def at_limit(self, method: str) -> bool:
        method_queue = self.method_queues.find(method)
        return method_queue is not None and method_queue.leased >= self._limit(method)

    def _dirty(self, method: str) -> None:
        self.dirty[method] = None

    def next_id(self) -> str:
        """Returns a unique id for a task whose client gives none. A store that was restored
        from an older copy does not know all ids that were given, so each start draws a series."""
        if not self._series:
            self._series = f"{OWN_IDS}{self._state.rng.getrandbits(SERIES_BITS):016x}"
        self._made += 1
        return f"{self._series}.{self._made:x}"

    def _number(self, wall_us: int) -> int:
        """Returns the seq of a new task. With several brokers, seqs follow the order of their clocks."""
        shared = self.shared
        if shared is None:
            self._next += 1
            return self._next - 1
        counter = max(self._next, wall_us)
        self._next = counter + 1
        return counter << SLOT_BITS | shared.slot

    def accept(
        self,
        id_: str,
        client: str,
        owner: str,
        method: str,
        params: bytes,
        options: NewTaskOptions,
        notify: int,
        waits: int,
        now: Now,
        effects: Effects,
    ) -> QueuedTask:
        wall_us = int(now.wall * MICRO)
        now_us = self.schedule.now_us(now)
        runnable_us = now_us if options.delay is None and options.at is None else due(options, now_us)
        status = QUEUED if not waits and runnable_us <= now_us else SCHEDULED
        usual = options.timeout is None and options.max_attempts is None and not options.backoff
        usual = usual and options.key is None and options.at is None
        if usual and options.result_ttl == DEFAULT_RESULT_SECONDS and not self._state.policies:
            kept, packed = self._usual.get(notify) or self._keep_usual(notify)
        else:
            kept = self._kept(method, params, options, notify)
            packed = pack_kept(kept)
        seq = self._number(wall_us)
        # fmt: off
        task = QueuedTask(
            seq, id_, client, method, params, options.priority, status,
            0, 0, "", wall_us, runnable_us, 0,  # no attempt, no node, not started
            waits, False, False, options.key, packed, b"", b"", owner, "", checksum(seq, params), len(params),
            kept, True,
        )
        # fmt: on
        self.fresh.append(task)
        effects.events.append(TaskSubmitted(id_, method, client, options.priority, self._state.group))
        self.quotas.opened(task)
        self.total_submitted += 1
        if status == QUEUED:
            self._wait(task, now, effects)
            return task
        self.schedule.submitted(task, now)
        if not waits:
            self.schedule.add(task, now)
        else:
            self.backlog.unload(task)
        return task

    def _kept(self, method: str, params: bytes, options: NewTaskOptions, notify: int) -> StoredOptions:
        timeout, attempts = options.timeout, options.max_attempts
        policies = self._state.policies
        if policies and method in policies:
            policy = policies[method]
            timeout = policy.timeout if timeout is None else timeout
            attempts = policy.max_attempts if attempts is None else attempts
        return StoredOptions(
            DEFAULT_TIMEOUT_SECONDS if timeout is None else timeout,
            DEFAULT_MAX_ATTEMPTS if attempts is None else attempts,
            options.backoff,
            options.result_ttl,
            notify,
            b"" if options.key is None else digest_of(params),
            options.at is not None,
        )

    def _keep_usual(self, notify: int) -> tuple[StoredOptions, bytes]:
        """Caches the stored options that nearly all tasks of one connection share."""
        if len(self._usual) >= MAX_USUAL:
            self._usual.clear()
        kept = StoredOptions(notify=notify)
        self._usual[notify] = usual = (kept, pack_kept(kept))
        return usual

    def _wait(self, task: QueuedTask, now: Now, effects: Effects) -> bool:
        """Queues a task; returns False if there is room neither in memory nor in the backlog."""
        where = self.method_queues.add(task)
        if where == "here":
            task.shelved = False
            self.backlog.tasks[task.id] = task
            self.dirty[task.method] = None
        elif where == "store":
            task.shelved = True
            self.backlog.unload(task)
        else:
            return False
        return True

    def _release(self, task: QueuedTask, now: Now, effects: Effects) -> bool:
        """Makes a due task runnable."""
        self.quotas.set_status(task, QUEUED)
        if not self._wait(task, now, effects):
            self.quotas.set_status(task, SCHEDULED)
            return False
        self.changed(task, effects)
        return True

    def changed(self, task: QueuedTask, effects: Effects) -> None:
        """Stores a task's changes."""
        self.backlog.touch(task.seq)
        if self.shared is not None:
            self._changed[task] = None
        elif not task.fresh:
            effects.write(task.change_write())

    def return_to_backlog(self, tasks: Iterable[QueuedTask], effects: Effects) -> None:
        """Returns tasks to the stored backlog because no backend here takes them."""
        for task in tasks:
            task.shelved = True
            self.changed(task, effects)
            self.backlog.unload(task)

    def hand_over(self, task: QueuedTask, effects: Effects) -> None:
        """Releases a lease whose node is connected to another broker."""
        self.backlog.unload(task)
        self.backlog.touch(task.seq)
        self._changed.pop(task, None)
        effects.write(task.change_write())
        effects.write(ReleaseTask(task.seq))

    def put_down(self, row: OpenTask, now: Now, effects: Effects) -> None:
        """Releases a task that was claimed by id from a shared store, unchanged."""
        if row.status in (ASSIGNED, RUNNING):
            self.backlog.touch(row.seq)  # a concurrent claim would not see the release
            effects.write(ReleaseTask(row.seq))
            return
        task = from_store(row)
        if row.status == QUEUED:
            self._wait(task, now, effects)
        self.changed(task, effects)

    def flush(self, effects: Effects) -> None:
        """Writes each task that this turn changed in a shared store once; after that, other brokers may claim it."""
        changed, self._changed = self._changed, {}
        for task in changed:
            if not task.fresh and not task.ended:
                effects.write(task.change_write())

    def runnable(self, task: QueuedTask, now: Now, effects: Effects) -> None:
        """Queues or schedules a task whose dependencies have finished."""
        left = max(0.0, self.schedule.left(task, now))
        if left or not task.kept.at:
            task.runnable_us = self.schedule.now_us(now) + of_seconds(left)
        if not left:
            self.quotas.set_status(task, QUEUED)
            if self._wait(task, now, effects):
                self.changed(task, effects)
                return
            self.quotas.set_status(task, SCHEDULED)
        self.changed(task, effects)
        self.schedule.add(task, now, as_submitted=True)

    def reopened(self, task: QueuedTask, now: Now, effects: Effects) -> None:
        """Counts an ended task as open and queues it again; the store has it in the backlog."""
        self.quotas.opened(task)
        self.backlog.touch(task.seq)
        method_queue = self.method_queues.find(task.method)
        if method_queue is not None and self.window is not None:
            self.window.there_is(method_queue, task.priority, False, effects)
        elif method_queue is not None:
            self.backlog.tasks[task.id] = task
            self.method_queues.put_back(task, now, effects)
            self.dirty[task.method] = None

    def settle(self, effects: Effects) -> None:
        """Writes the new tasks in their state at the end of the turn."""
        fresh, self.fresh = self.fresh, []
        for task in fresh:
            task.fresh = False
            self._changed.pop(task, None)
        # These come first: a write that changes or ends one of them in this turn must come after.
        effects.writes[:0] = [task.put_write() for task in fresh]
        for task in fresh:
            if task.status == SCHEDULED:
                task.params = b""  # they are read when it is due
            elif task.backend is not None:
                task.drop_params()

    def attempt_over(
        self,
        task: QueuedTask,
        state: str,
        code: int | None,
        error: bytes,
        counted: bool,
        now: Now,
        effects: Effects,
        after: float = 0.0,
    ) -> None:
        """Ends an attempt that did not complete its task: retries it after at least `after` seconds, or gives up.

        The caller has released the lease. `counted`: the attempt had started, so it counts and backoff applies."""
        task.history = remembered(task, state, error, of_seconds(now.wall))
        last = counted and task.starts >= task.kept.max_attempts
        if last and state == "failed":
            self.end(task, FAILED, error, code, now, effects)
            return
        effects.record(attempt_ended(task, state, code, now))
        if last:
            data = b'{"attempts":%b}' % task.history
            message = f"all {task.starts} attempts ended without a result (the last one: {state})"
            self.end(task, FAILED, error_object(ATTEMPTS_LOST, message, data), ATTEMPTS_LOST, now, effects)
            return
        task.node, task.node_owner, task.started_us = "", "", 0
        pause = max(pause_before_next(task, self._state.rng), after) if counted else 0.0
        task.runnable_us = self.schedule.now_us(now) + of_seconds(pause)
        if not pause and task.is_unloaded and self.window is not None:
            self._return_unloaded(task, self.window, now, effects)
        elif pause or task.is_unloaded:
            # Its params are read when it is due.
            self.quotas.set_status(task, SCHEDULED)
            self.changed(task, effects)
            self.schedule.add(task, now)
        else:
            task.status, task.shelved = QUEUED, False
            self.method_queues.put_back(task, now, effects)
            self.dirty[task.method] = None
            self.changed(task, effects)

    def _return_unloaded(self, task: QueuedTask, window: SharedBacklogWindow, now: Now, effects: Effects) -> None:
        """Returns a task to the shared backlog, from which a broker that has room for its params claims it."""
        task.status = QUEUED
        self.return_to_backlog((task,), effects)
        window.there_is(self.method_queues.need(task.method, now, effects), task.priority, False, effects)

    def fail(self, task: QueuedTask, code: int, error: bytes, now: Now, effects: Effects) -> None:
        """Ends a task with a final failure."""
        task.history = remembered(task, "failed", error, of_seconds(now.wall))
        self.end(task, FAILED, error, code, now, effects)

    def fail_damaged(self, task: QueuedTask, now: Now, effects: Effects) -> None:
        """Ends a task whose params are damaged in the store: it must not run."""
        message = f"the stored params of the task {task.id} are damaged: submit it again; see `scale0 store check`"
        self.fail(task, DAMAGED, error_object(DAMAGED, message), now, effects)

    def end(self, task: QueuedTask, status: int, body: bytes, code: int | None, now: Now, effects: Effects) -> None:
        """Ends a task. The caller has released the lease."""
        task.ended = True
        kept = KEPT_ROW_BYTES + len(body) + len(task.info) + len(task.history)
        self.quotas.ended(task, kept if status == FINISHED else kept + task.size)
        if task.fresh:
            # It is written as held, so that no other broker can claim it before it ends.
            task.status, task.shelved = QUEUED, False
        if task.bucket:
            self.timers.remove(task)
        self.backlog.tasks.pop(task.id, None)
        self.backlog.touch(task.seq)
        wall_us = int(now.wall * MICRO)
        begun = task.started or task.handed
        seconds = now.mono - begun if begun else 0.0
        ttl_us = int(task.kept.result_ttl * MICRO)
        self.retention.ended(ttl_us, effects)
        effects.writes.append(
            EndTask(
                status,
                task.attempt,
                task.starts,
                task.node,
                task.node_owner,
                task.started_us,
                wall_us,
                self.schedule.now_us(now) + ttl_us,
                body,
                task.info,
                task.history,
                task.seq,
                checksum(task.seq, body),
            )
        )
        effects.events.append(
            TaskCompleted(
                task.id, task.method, task.attempt, task.node, STATUS_NAMES[status], task.waited, seconds, code
            )
        )
        if status == FINISHED:
            self.total_finished += 1
        else:
            self.total_failed += 1
        self._on_end(task, status, body, now, effects)


def due(options: NewTaskOptions, wall_us: int) -> int:
    if options.delay is not None:
        return wall_us + of_seconds(options.delay)
    return max(wall_us, of_seconds(options.at or 0.0))
