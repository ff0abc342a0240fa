"""Tasks without a broker, for `StubNetwork`.

Lives here: the methods of `Task` and `Submission`, over a queue in memory. Never here: a disk,
a clock, or a wait. Invariants: params, results, retries and errors are those of a worker and a broker; the same tasks
give the same results in the same order.

What differs: a task runs when it is submitted, or (`tasks="on demand"`) when the test calls `run_tasks`; `delay`, `at`
and `backoff` cost no time; a task that has not ended will not while somebody looks, so `result` raises `NoAnswer`
at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from scale0.client import results
from scale0.client.argument_checks import check_service
from scale0.client.handler import Handler
from scale0.client.results import TaskStatus
from scale0.client.task_context import RunningTask, here
from scale0.client.task_options import TaskOptions
from scale0.client.task_outcome import Failure, Outcome, error_object, perform_task, perform_task_async
from scale0.errors import NoAnswer, NoSuchTask, TaskIdTaken
from scale0.kernel import codes
from scale0.kernel.names import is_identity
from scale0.storage.task_rows import CANCELLED, FAILED, FINISHED, QUEUED, RUNNING, SCHEDULED, STATUS_NAMES
from scale0.tasks.client.futures import SubmissionTemplate, TaskFault, TaskFuture
from scale0.tasks.jsonrpc import messages
from scale0.tasks.jsonrpc.arguments import DEFAULT_MAX_ATTEMPTS, DEFAULT_PRIORITY, DEFAULT_TIMEOUT_SECONDS
from scale0.tasks.node.assigned_tasks import AssignedTask

NODE: Final = "stub"


class StubTaskFault(msgspec.Struct):
    """An error object, as a worker sends it."""

    code: int
    message: str
    data: msgspec.Raw = msgspec.Raw()
    retry: bool = False


class StubEntry:
    """One task in the queue."""

    __slots__ = ("after", "attempt", "attempts", "info", "options", "params", "said", "status", "ticket")

    def __init__(self, ticket: TaskFuture, params: bytes, options: TaskOptions, after: list[StubEntry]) -> None:
        self.ticket = ticket
        self.params = params
        self.options = options
        self.said = options.wire()
        self.after = after
        self.status = SCHEDULED if after else QUEUED
        self.attempt = 0
        self.attempts: list[dict[str, Any]] = []
        self.info: dict[str, Any] = {}

    @property
    def service(self) -> str:
        """What it was submitted to."""
        return self.ticket.service


class StubQueue:
    """The tasks of one `StubNetwork`."""

    def __init__(
        self, offer: Callable[[str], Handler | None], fault: Callable[[str, float], Any], at_once: bool
    ) -> None:
        """`offer` finds who does a service next; `fault` says (code, message) of what a test told us to break."""
        self._offer = offer
        self._fault = fault
        self.at_once = at_once
        self.entries: dict[str, StubEntry] = {}
        self._keys: dict[str, StubEntry] = {}

    def submit(self, service: str, params: bytes, options: TaskOptions) -> StubEntry:
        """Take a task; run what can run, if that is what the network does."""
        check_service(service)
        known = self._keys.get(options.key) if options.key is not None else None
        if known is not None:
            return known
        id_ = options.id or f"stub.{len(self.entries) + 1:012x}"
        after = options.wire().get("after", ())
        unknown = [other for other in after if other not in self.entries]
        if id_ in self.entries or unknown:
            why = f"after: unknown task {unknown[0]}" if unknown else f"the task id {id_} is taken"
            raise TaskIdTaken(messages.BAD_TASK, why, service, id_)
        ticket = TaskFuture(id_, SubmissionTemplate(service, b"", b"", True, False), None, b"")
        entry = self.entries[id_] = StubEntry(ticket, params, options, [self.entries[other] for other in after])
        if options.key is not None:
            self._keys[options.key] = entry
        if self.at_once:
            self.run()
        return entry

    def run(self, most: int | None = None) -> int:
        """Run what can run, at most so many, in order; how many were run."""
        count = 0
        while most is None or count < most:
            entry = self._next()
            if entry is None:
                break
            count += 1
            self._attempt(entry)
        return count

    def cancel(self, entry: StubEntry) -> None:
        """Have it not run."""
        if entry.status < FINISHED:
            self._end(entry, CANCELLED, b"", TaskFault(messages.CANCELLED_ERROR, "cancelled by its client"))

    def _next(self) -> StubEntry | None:
        """The first that can run: the highest priority, then the oldest."""
        for entry in self.entries.values():
            if entry.status == SCHEDULED:
                self._look_after(entry)
        waiting = [one for one in self.entries.values() if one.status == QUEUED and self._offer(one.service)]
        return min(waiting, key=lambda one: -one.said.get("priority", DEFAULT_PRIORITY), default=None)

    def _look_after(self, entry: StubEntry) -> None:
        failed = [one for one in entry.after if one.status > FINISHED]
        if failed:
            message = f"the task {failed[0].ticket.id}, which this one waits for, is {STATUS_NAMES[failed[0].status]}"
            self._end(entry, FAILED, b"", TaskFault(messages.AFTER_FAILED, message))
        elif all(one.status == FINISHED for one in entry.after):
            entry.status = QUEUED

    def _attempt(self, entry: StubEntry) -> None:
        offer = self._offer(entry.service)
        if offer is None:
            return
        entry.attempt += 1
        entry.status = RUNNING
        timeout = entry.said.get("timeout", DEFAULT_TIMEOUT_SECONDS)
        told = self._fault(entry.service, timeout)
        if told is not None:
            self._lose(entry, *told)
            return
        job = AssignedTask(entry.ticket.id, entry.attempt, entry.service, entry.params, timeout, NODE)
        outcome = performed(offer, job, lambda done, note: entry.info.update(progress=done, note=note))
        if entry.status != RUNNING:
            return  # its own handler cancelled it
        if not isinstance(outcome, Failure):
            self._end(entry, FINISHED, outcome, None)
            return
        fault = msgspec.json.decode(error_object(offer, outcome), type=StubTaskFault)
        if fault.retry and entry.attempt < entry.said.get("max_attempts", DEFAULT_MAX_ATTEMPTS):
            entry.status = QUEUED
        else:
            self._end(entry, FAILED, b"", TaskFault(fault.code, fault.message, bytes(fault.data)))

    def _lose(self, entry: StubEntry, code: int, message: str) -> None:
        """The test told us to break it: a dead worker or a lost attempt is tried again, anything else is final."""
        if code not in (codes.BACKEND_DIED, codes.NO_ANSWER):
            self._end(entry, FAILED, b"", TaskFault(code, message))
            return
        entry.attempts.append({"attempt": entry.attempt, "node": NODE, "state": "lost"})
        if entry.attempt < entry.said.get("max_attempts", DEFAULT_MAX_ATTEMPTS):
            entry.status = QUEUED
            return
        data = msgspec.json.encode({"attempts": entry.attempts})
        message = f"all {entry.attempt} attempts ended without a result (the last one: lost)"
        self._end(entry, FAILED, b"", TaskFault(messages.ATTEMPTS_LOST, message, data))

    def _end(self, entry: StubEntry, status: int, value: bytes, trouble: TaskFault | None) -> None:
        entry.status = entry.ticket.status = status
        entry.ticket.ended = True
        entry.ticket.value = value
        entry.ticket.fault = trouble


def performed(offer: Handler, job: AssignedTask, tell: Callable[[float, str], Any]) -> Outcome:
    """Run a handler as a task, in a thread of its own: nothing of the test's own thread is seen by it."""
    found: list[Outcome] = []

    def run() -> None:
        here.set(RunningTask(job, lambda _job, done, note: tell(done, note)))
        found.append(asyncio.run(perform_task_async(offer, job)) if offer.is_async else perform_task(offer, job))

    thread = threading.Thread(target=run, name="scale0-stub-task")
    thread.start()
    thread.join()
    return found[0]


class StubTask:
    """The methods of `Task`."""

    __slots__ = ("_entry", "_queue")

    def __init__(self, queue: StubQueue, entry: StubEntry) -> None:
        self._queue = queue
        self._entry = entry

    @property
    def id(self) -> str:
        """Its id."""
        return self._entry.ticket.id

    def result(self, timeout: float | None = None) -> Any:
        """What it returned; raises `TaskFailed`, `TaskCancelled`, or `NoAnswer` if it has not run."""
        ticket = self._entry.ticket
        if not ticket.ended:
            raise NoAnswer(codes.NO_ANSWER, f"task {ticket.id} has not ended in time; it goes on", ticket.service)
        return results.value_of(ticket)

    def wait(self, timeout: float | None = None) -> bool:
        """True if it has ended."""
        return self._entry.ticket.ended

    def done(self) -> bool:
        """True if it has ended."""
        return self._entry.ticket.ended

    def error(self) -> Exception | None:
        """Why it has no result, if it has ended without one."""
        ticket = self._entry.ticket
        return results.error_from(ticket) if ticket.ended and ticket.status != FINISHED else None

    def status(self) -> TaskStatus:
        """As a broker would tell it; there is no clock, so all times are 0."""
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
        """What its handler said last."""
        return self.status().progress

    def cancel(self) -> bool:
        """Have it not run."""
        self._queue.cancel(self._entry)
        return True

    def confirm(self, timeout: float | None = None) -> StubTask:
        """It is taken already."""
        return self

    def __repr__(self) -> str:
        return f"<StubTask {self.id}>"


class StubSubmission:
    """The methods of `Submission`."""

    __slots__ = ("_queue", "options")

    def __init__(self, queue: StubQueue, options: TaskOptions) -> None:
        self._queue = queue
        self.options = options

    def submit(self, service: str, /, *args: Any, **kwargs: Any) -> StubTask:
        """One task."""
        check_service(service)
        return self._take(service, results.params_of(service, args, kwargs))

    def submit_many(self, service: str, items: Iterable[Any], *, star: bool = False) -> list[StubTask]:
        """A task for each item."""
        self.options.check_many()
        [*chunks] = results.chunks(service, items, star, 1)
        return [self._take(service, params) for [params] in chunks]

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
        """A task for each item, and what they return. `in_flight` means nothing here."""
        self.options.check_many()
        for [params] in results.chunks(service, items, star, 1):
            task = self._take(service, params)
            error = task.error()
            yield task if what == "tasks" else error if error is not None and errors == "yield" else task.result()

    def task_of(self, id_: str) -> StubTask:
        """A task that was submitted before."""
        if not is_identity(id_):
            raise ValueError(f"{id_!r} is no task id")
        entry = self._queue.entries.get(id_)
        if entry is None:
            raise NoSuchTask(messages.BAD_TASK, f"unknown task {id_}", "", id_)
        return StubTask(self._queue, entry)

    def _take(self, service: str, params: bytes) -> StubTask:
        return StubTask(self._queue, self._queue.submit(service, params, self.options))
