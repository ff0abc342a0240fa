"""What `Task` and `AsyncTask`, `Submission` and `AsyncSubmission` share: everything but the wait.

Invariant: at most `window` tasks of one submission are unacknowledged at once, and at most `in_flight` tasks of one map
are outstanding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from scale0.client import results
from scale0.client.argument_checks import check_service
from scale0.client.core import ClientCore, Steps, TaskOperation
from scale0.client.results import TaskStatus
from scale0.client.task_options import TaskOptions
from scale0.errors import NoAnswer, task_error
from scale0.kernel import codes
from scale0.kernel.clock import Now
from scale0.kernel.names import is_identity
from scale0.storage.task_rows import FINISHED
from scale0.tasks.client import futures
from scale0.tasks.client.futures import FutureWait, SubmissionTemplate, TaskFuture

DEFAULT_IN_FLIGHT: Final = 1_000
MAX_TEMPLATES: Final = 1_000
"""Services whose encoded template one set of options keeps."""

Errors = Literal["raise", "yield"]
What = Literal["results", "tasks"]


class TaskHandle:
    """One task of a client."""

    __slots__ = ("_core", "_future")

    def __init__(self, core: ClientCore, future: TaskFuture) -> None:
        self._core = core
        self._future = future

    @property
    def future(self) -> TaskFuture:
        if self._future.original is not None:
            self._future = self._future.original
        return self._future

    def result(self, timeout: float | None) -> Steps[Any]:
        if not self.future.ended:
            yield from self._wait(timeout)
        future = self.future
        if not future.ended:
            raise NoAnswer(codes.NO_ANSWER, f"task {future.id} has not ended in time; it goes on", future.service)
        return results.value_of(future)

    def wait(self, timeout: float | None) -> Steps[bool]:
        if not self.future.ended:
            yield from self._wait(timeout)
        return self.future.ended

    def is_done(self) -> Steps[bool]:
        """Asks the broker only if it would not push the end of the task."""
        future = self.future
        if future.ended or self._core.tasks.is_pushed(future):
            return future.ended
        status = yield from self.status()
        return status.ended

    def error(self) -> Exception | None:
        future = self.future
        return results.error_from(future) if future.ended and future.status != FINISHED else None

    def status(self) -> Steps[TaskStatus]:
        answer = yield from self._query(futures.STATUS)
        return results.status_in(answer)

    def cancel(self) -> Steps[bool]:
        answer = yield from self._query(futures.CANCEL)
        return answer == b"true"

    def confirm(self, timeout: float | None) -> Steps[None]:
        receipt = self._future.receipt
        if receipt is not None and receipt.tag is not None:
            yield receipt.tag, timeout
        future = self.future
        if future.status == futures.NEW:
            raise NoAnswer(codes.NO_ANSWER, f"task {future.id} is not acknowledged yet", future.service)
        results.check_accepted(future)

    def _wait(self, timeout: float | None) -> Steps[None]:
        core, future = self._core, self.future
        operation = TaskOperation()
        wait = operation.state = FutureWait(operation)

        def begin(now: Now) -> None:
            core.tasks.add_wait(wait, (future,), now)
            if wait.ended:
                operation.receive()  # the end arrived before the wait, so there is no notification

        core.host._act_on_tasks(begin)
        try:
            yield operation, timeout
        finally:
            if not wait.ended:
                core.host._act_on_tasks(lambda _: core.tasks.remove_wait(wait, (future,)))
        if wait.fault is not None and not self.future.ended:
            raise task_error(wait.fault.code, wait.fault.message, future.service, future.id)

    def _query(self, kind: str) -> Steps[bytes]:
        core, future = self._core, self.future
        operation = TaskOperation()

        def begin(now: Now) -> None:
            operation.state = core.tasks.query(kind, future.id, core.timeout, operation, now)

        core.host._act_on_tasks(begin)
        yield operation, None
        return results.answer_to(operation.state, future)


class SubmissionSteps:
    """Options for tasks, and the ways to submit tasks with them."""

    __slots__ = ("_core", "_templates", "options")

    def __init__(self, core: ClientCore, options: TaskOptions) -> None:
        self._core = core
        self._templates: dict[str, SubmissionTemplate] = {}
        self.options = options

    def submit(self, service: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Steps[TaskFuture]:
        check_service(service)
        core, options = self._core, self.options
        operation = self._send(service, (results.params_of(service, args, kwargs),))
        if not options.wait:
            core.host._send_off(operation)
        if options.wait or core.tasks.unanswered > options.window:
            yield operation, None
        [future] = operation.futures
        if options.wait:
            results.check_accepted(future)
        return future

    def submit_many(self, service: str, items: Iterable[Any], star: bool) -> Steps[list[TaskFuture]]:
        self.options.check_many()
        window = self.options.window
        created: list[TaskFuture] = []
        under_way: deque[TaskOperation] = deque()
        try:
            for bodies in results.chunks(service, items, star, max(1, window // 2)):
                while under_way and sum(one.state.remaining for one in under_way) + len(bodies) > window:
                    yield under_way.popleft(), None
                operation = self._send(service, bodies)
                self._core.host._flush()
                under_way.append(operation)
                created += operation.futures
        except Exception as error:
            error.add_note(f"{len(created)} tasks were submitted before this")
            raise
        if self.options.wait:
            for operation in under_way:
                yield operation, None
        return created

    def map(
        self, service: str, items: Iterable[Any], in_flight: int, star: bool
    ) -> Generator[TaskOperation | TaskFuture, None, None]:
        """Submit a task for each item, and yield the futures that have ended, or the operation to wait for."""
        self.options.check_many()
        if in_flight < 1:
            raise ValueError(f"in_flight is at least 1, not {in_flight}")
        return self._map(service, items, in_flight, star)

    def _map(
        self, service: str, items: Iterable[Any], in_flight: int, star: bool
    ) -> Generator[TaskOperation | TaskFuture, None, None]:
        core = self._core
        operation = TaskOperation()
        wait = operation.state = FutureWait(operation)
        chunks = results.chunks(service, items, star, max(1, in_flight // 2))
        chunk: Sequence[bytes] = next(chunks, ())
        under_way = 0
        try:
            while under_way or chunk:
                while chunk and under_way + len(chunk) <= in_flight:
                    self._send(service, chunk, wait)
                    under_way += len(chunk)
                    chunk = next(chunks, ())
                if not wait.completed:
                    yield operation
                while wait.completed:
                    under_way -= 1
                    yield wait.completed.popleft()
                if wait.fault is not None:
                    raise task_error(wait.fault.code, wait.fault.message, service, "")
        finally:
            if under_way and not core.is_closed:
                core.host._act_on_tasks(lambda _: core.tasks.remove_wait(wait))

    def _send(self, service: str, bodies: Sequence[bytes], wait: FutureWait | None = None) -> TaskOperation:
        core = self._core
        template = self._templates.get(service)
        if template is None:
            if len(self._templates) >= MAX_TEMPLATES:
                self._templates.clear()
            template = self._templates[service] = core.tasks.template(service, self.options.wire())
        operation = TaskOperation()
        tag = None if wait is not None else operation

        def submit(now: Now) -> None:
            created = core.tasks.submit(template, bodies, core.timeout, tag, now, wait, self.options.id)
            operation.state, operation.futures = created

        core.host._act_on_tasks(submit)
        return operation


def check_task_id(id_: str) -> None:
    if not is_identity(id_):
        raise ValueError(f"{id_!r} is not a task id")


def outcome_of(future: TaskFuture, errors: Errors) -> Any:
    """The result of an ended task; a failure is raised or returned."""
    if future.status == FINISHED or errors == "raise":
        return results.value_of(future)
    return results.error_from(future)
