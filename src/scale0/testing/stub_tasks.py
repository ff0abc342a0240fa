"""Tasks without a broker, for `StubNetwork`: the methods of `Task` and `Submission`, over a queue in memory.

Invariants: params, results, retries and errors are those of a worker and a broker; the same tasks give the same results
in the same order. What differs: a task runs when it is submitted, or (`tasks="on demand"`) when the test calls
`run_tasks`; `delay`, `at` and `backoff` take no time; `result` raises `NoAnswer` at once for a task that has not ended.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

import msgspec

from scale0.client import results
from scale0.client.argument_checks import check_service
from scale0.client.handler import Handler
from scale0.client.results import TaskStatus
from scale0.client.task_context import RunningTask, current_task
from scale0.client.task_options import TaskOptions
from scale0.client.task_outcome import Failure, Outcome, error_object, perform_task, perform_task_async
from scale0.client.task_steps import check_task_id
from scale0.errors import KeyConflict, NoAnswer, NoSuchTask, TaskIdTaken
from scale0.kernel import codes
from scale0.storage.task_rows import CANCELLED, FAILED, FINISHED, QUEUED, RUNNING, SCHEDULED, STATUS_NAMES
from scale0.tasks.client.futures import SubmissionTemplate, TaskFault, TaskFuture
from scale0.tasks.jsonrpc import messages
from scale0.tasks.jsonrpc.arguments import DEFAULT_MAX_ATTEMPTS, DEFAULT_PRIORITY, DEFAULT_TIMEOUT_SECONDS
from scale0.tasks.node.assigned_tasks import AssignedTask

NODE: Final = "stub"

Result = TypeVar("Result")


class StubTaskFault(msgspec.Struct):
    """An error object, as a worker sends it."""

    code: int
    message: str
    data: msgspec.Raw = msgspec.Raw()
    retry: bool = False


class StubEntry:
    """One task in the queue."""

    __slots__ = ("attempt", "attempts", "dependencies", "future", "info", "options", "options_sent", "params", "status")

    def __init__(self, future: TaskFuture, params: bytes, options: TaskOptions, dependencies: list[StubEntry]) -> None:
        self.future = future
        self.params = params
        self.options = options
        self.options_sent = options.wire()
        self.dependencies = dependencies
        self.status = SCHEDULED if dependencies else QUEUED
        self.attempt = 0
        self.attempts: list[dict[str, Any]] = []
        self.info: dict[str, Any] = {}

    @property
    def service(self) -> str:
        return self.future.service


def _check_same(first: StubEntry, service: str, params: bytes) -> None:
    """Raises KeyConflict if the first task of a key has another service or other params."""
    differs = ["method"] if first.service != service else []
    if messages.canonical(first.params) != messages.canonical(params):
        differs.append("params")
    if differs:
        error = messages.key_conflict(first.options.key or "", first.future.id, differs)
        raise KeyConflict(error.code, error.message, service, "", msgspec.json.decode(error.data))


class StubQueue:
    """The tasks of one `StubNetwork`."""

    def __init__(
        self, handler_of: Callable[[str], Handler | None], fault_of: Callable[[str, float], Any], at_once: bool
    ) -> None:
        """`handler_of` finds the handler of a service; `fault_of` gives the (code, message) that a test has set."""
        self._handler_of = handler_of
        self._fault_of = fault_of
        self.at_once = at_once
        self.entries: dict[str, StubEntry] = {}
        self._keys: dict[str, StubEntry] = {}

    def submit(self, service: str, params: bytes, options: TaskOptions) -> StubEntry:
        """Add a task, and run what can run unless tasks run on demand."""
        check_service(service)
        known = self._keys.get(options.key) if options.key is not None else None
        if known is not None:
            _check_same(known, service, params)
            return known
        id_ = options.id or f"stub.{len(self.entries) + 1:012x}"
        dependencies = options.wire().get("after", ())
        unknown = [other for other in dependencies if other not in self.entries]
        if id_ in self.entries or unknown:
            why = f"after: unknown task {unknown[0]}" if unknown else f"the task id {id_} is in use"
            raise TaskIdTaken(messages.BAD_TASK, why, service, id_)
        future = TaskFuture(id_, SubmissionTemplate(service, b"", b"", True, False), None, b"")
        entry = self.entries[id_] = StubEntry(future, params, options, [self.entries[other] for other in dependencies])
        if options.key is not None:
            self._keys[options.key] = entry
        if self.at_once:
            self.run()
        return entry

    def run(self, limit: int | None = None) -> int:
        """Run at most `limit` tasks that can run, in order; return how many ran."""
        count = 0
        while limit is None or count < limit:
            entry = self._next()
            if entry is None:
                break
            count += 1
            self._attempt(entry)
        return count

    def cancel(self, entry: StubEntry) -> None:
        if entry.status < FINISHED:
            self._end(entry, CANCELLED, b"", TaskFault(messages.CANCELLED_ERROR, "cancelled by its client"))

    def _next(self) -> StubEntry | None:
        """The next task: the highest priority, then the oldest."""
        for entry in self.entries.values():
            if entry.status == SCHEDULED:
                self._check_dependencies(entry)
        waiting = [
            other for other in self.entries.values() if other.status == QUEUED and self._handler_of(other.service)
        ]
        return min(waiting, key=lambda other: -other.options_sent.get("priority", DEFAULT_PRIORITY), default=None)

    def _check_dependencies(self, entry: StubEntry) -> None:
        failed = [other for other in entry.dependencies if other.status > FINISHED]
        if failed:
            message = f"the task {failed[0].future.id}, which this one waits for, is {STATUS_NAMES[failed[0].status]}"
            self._end(entry, FAILED, b"", TaskFault(messages.AFTER_FAILED, message))
        elif all(other.status == FINISHED for other in entry.dependencies):
            entry.status = QUEUED

    def _attempt(self, entry: StubEntry) -> None:
        handler = self._handler_of(entry.service)
        if handler is None:
            return
        entry.attempt += 1
        entry.status = RUNNING
        timeout = entry.options_sent.get("timeout", DEFAULT_TIMEOUT_SECONDS)
        fault = self._fault_of(entry.service, timeout)
        if fault is not None:
            self._apply_fault(entry, *fault)
            return
        task = AssignedTask(entry.future.id, entry.attempt, entry.service, entry.params, timeout, NODE)
        outcome = run_handler(handler, task, lambda done, note: entry.info.update(progress=done, note=note))
        if entry.status != RUNNING:
            return  # its own handler cancelled it
        if not isinstance(outcome, Failure):
            self._end(entry, FINISHED, outcome, None)
            return
        error = msgspec.json.decode(error_object(handler, outcome), type=StubTaskFault)
        if error.retry and entry.attempt < entry.options_sent.get("max_attempts", DEFAULT_MAX_ATTEMPTS):
            entry.status = QUEUED
        else:
            self._end(entry, FAILED, b"", TaskFault(error.code, error.message, bytes(error.data)))

    def _apply_fault(self, entry: StubEntry, code: int, message: str) -> None:
        """A fault that the test has set: a dead worker or a lost attempt is retried, any other is final."""
        if code not in (codes.BACKEND_DIED, codes.NO_ANSWER):
            self._end(entry, FAILED, b"", TaskFault(code, message))
            return
        entry.attempts.append({"attempt": entry.attempt, "node": NODE, "state": "lost"})
        if entry.attempt < entry.options_sent.get("max_attempts", DEFAULT_MAX_ATTEMPTS):
            entry.status = QUEUED
            return
        data = msgspec.json.encode({"attempts": entry.attempts})
        message = f"all {entry.attempt} attempts ended without a result (the last one: lost)"
        self._end(entry, FAILED, b"", TaskFault(messages.ATTEMPTS_LOST, message, data))

    def _end(self, entry: StubEntry, status: int, value: bytes, fault: TaskFault | None) -> None:
        entry.status = entry.future.status = status
        entry.future.ended = True
        entry.future.value = value
        entry.future.fault = fault


def in_thread(work: Callable[[], Result]) -> Result:
    """Run `work` to its end in a thread of its own: the test may have a running loop, and context of its own."""
    found: list[Result] = []
    thread = threading.Thread(target=lambda: found.append(work()), name="scale0-stub")
    thread.start()
    thread.join()
    return found[0]


def run_handler(handler: Handler, task: AssignedTask, report: Callable[[float, str], Any]) -> Outcome:
    """Run a handler as a task."""

    def run() -> Outcome:
        current_task.set(RunningTask(task, lambda _job, done, note: report(done, note)))
        return asyncio.run(perform_task_async(handler, task)) if handler.is_async else perform_task(handler, task)

    return in_thread(run)


class StubTask:
    """A task of a `StubNetwork`, with the methods of `Task`."""

    __slots__ = ("_entry", "_queue")

    def __init__(self, queue: StubQueue, entry: StubEntry) -> None:
        self._queue = queue
        self._entry = entry

    @property
    def id(self) -> str:
        """The task's id."""
        return self._entry.future.id

    def result(self, timeout: float | None = None) -> Any:
        """The result; raises `TaskFailed`, `TaskCancelled`, or `NoAnswer` if the task has not run."""
        future = self._entry.future
        if not future.ended:
            raise NoAnswer(codes.NO_ANSWER, f"task {future.id} has not ended in time; it goes on", future.service)
        return results.value_of(future)

    def wait(self, timeout: float | None = None) -> bool:
        """True if the task has ended."""
        return self._entry.future.ended

    def done(self) -> bool:
        """True if the task has ended."""
        return self._entry.future.ended

    def error(self) -> Exception | None:
        """The error of a task that has ended without a result."""
        future = self._entry.future
        return results.error_from(future) if future.ended and future.status != FINISHED else None

    def status(self) -> TaskStatus:
        """The task's status; there is no clock, so all times are 0."""
        entry = self._entry
        ran, ended = entry.attempt > 0, entry.status >= FINISHED
        return TaskStatus(
            task_id=self.id,
            status=STATUS_NAMES[entry.status],
            code=entry.status,
            attempt=entry.attempt,
            node_id=NODE if ran else None,
            submitted=0.0,
            started=0.0 if ran else None,
            finished=0.0 if ended else None,
            info=dict(entry.info),
        )

    def progress(self) -> tuple[float | None, str]:
        """The handler's last progress and note."""
        return self.status().progress

    def cancel(self) -> bool:
        """Cancel the task."""
        self._queue.cancel(self._entry)
        return True

    def confirm(self, timeout: float | None = None) -> StubTask:
        """Return at once: the task is stored."""
        return self

    def __repr__(self) -> str:
        return f"<StubTask {self.id}>"


class StubSubmission:
    """Options for tasks of a `StubNetwork`, with the methods of `Submission`."""

    __slots__ = ("_queue", "options")

    def __init__(self, queue: StubQueue, options: TaskOptions) -> None:
        self._queue = queue
        self.options = options

    def submit(self, service: str, /, *args: Any, **kwargs: Any) -> StubTask:
        """Submit one task."""
        check_service(service)
        return self._submit(service, results.params_of(service, args, kwargs))

    def submit_many(self, service: str, items: Iterable[Any], *, star: bool = False) -> list[StubTask]:
        """Submit a task for each item."""
        self.options.check_many()
        [*chunks] = results.chunks(service, items, star, 1)
        return [self._submit(service, params) for [params] in chunks]

    def map(
        self,
        service: str,
        items: Iterable[Any],
        *,
        in_flight: int = 1,
        star: bool = False,
        errors: str = "raise",
        what: str = "results",
    ) -> Iterator[Any]:
        """Submit a task for each item, and yield the results. `in_flight` has no effect."""
        self.options.check_many()
        for [params] in results.chunks(service, items, star, 1):
            task = self._submit(service, params)
            error = task.error()
            yield task if what == "tasks" else error if error is not None and errors == "yield" else task.result()

    def task_of(self, id_: str) -> StubTask:
        """A task that was submitted before."""
        check_task_id(id_)
        entry = self._queue.entries.get(id_)
        if entry is None:
            raise NoSuchTask(messages.BAD_TASK, f"unknown task {id_}", "", id_)
        return StubTask(self._queue, entry)

    def _submit(self, service: str, params: bytes) -> StubTask:
        return StubTask(self._queue, self._queue.submit(service, params, self.options))
