"""Durable tasks: `Task` and `Submission` for threads, `AsyncTask` and `AsyncSubmission` for coroutines of one loop.

Tasks that are submitted in one turn of a loop leave as one message.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from scale0.client import results
from scale0.client.core import TaskOperation
from scale0.client.results import TaskStatus
from scale0.client.task_options import TaskOptions
from scale0.client.task_steps import (
    DEFAULT_IN_FLIGHT,
    Errors,
    SubmissionSteps,
    TaskHandle,
    What,
    check_task_id,
    outcome_of,
)
from scale0.tasks.client.futures import TaskFuture

if TYPE_CHECKING:
    from scale0.client.async_client import AsyncClient
    from scale0.client.client import Client


class Task:
    """One task. Every method may be called from any thread, any number of times.

    The broker keeps a task that nobody holds: `Client.task_of(id)` finds it again.
    """

    __slots__ = ("_client", "_handle")

    def __init__(self, client: Client, future: TaskFuture) -> None:
        self._client = client
        self._handle = TaskHandle(client._core, future)

    @property
    def id(self) -> str:
        """The task's id: with it, and the client's identity, any process finds the task again."""
        return self._handle.future.id

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the task's result; raises `TaskFailed`, `TaskCancelled`, or `NoAnswer` after `timeout` seconds."""
        return self._client._run(self._handle.result(timeout))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the task has ended, with a result or not; False after `timeout` seconds."""
        return self._client._run(self._handle.wait(timeout))

    def done(self) -> bool:
        """True if the task has ended, with a result or not. Waits only if the broker must be asked."""
        if not self._handle.future.ended:
            self._client._core.socket.pump()
        return self._client._run(self._handle.is_done())

    def error(self) -> Exception | None:
        """The error of a task that has ended without a result."""
        return self._handle.error()

    def status(self) -> TaskStatus:
        """The task's current status at the broker."""
        return self._client._run(self._handle.status())

    def progress(self) -> tuple[float | None, str]:
        """The handler's last progress (0 to 1; None if it reported none) and note."""
        return self.status().progress

    def cancel(self) -> bool:
        """Cancel the task, running or not; True if it will not finish."""
        return self._client._run(self._handle.cancel())

    def confirm(self, timeout: float | None = None) -> Task:
        """Wait until a task that was submitted with `wait=False` is on disk; raises as `submit` does."""
        self._client._run(self._handle.confirm(timeout))
        return self

    def __repr__(self) -> str:
        return f"<Task {self.id}>"


class Submission:
    """Options for tasks, and the ways to submit tasks with them. It never changes, and may be used many times."""

    __slots__ = ("_client", "_steps", "options")

    def __init__(self, client: Client, options: TaskOptions) -> None:
        self._client = client
        self._steps = SubmissionSteps(client._core, options)
        self.options = options

    def submit(self, service: str, /, *args: Any, **kwargs: Any) -> Task:
        """Submit one task; it is on disk when this returns, unless the options say `wait=False`."""
        return Task(self._client, self._client._run(self._steps.submit(service, args, kwargs)))

    def submit_many(self, service: str, items: Iterable[Any], *, star: bool = False) -> list[Task]:
        """Submit a task for each item (one argument; with `star`, a sequence of them), in order, in few messages.

        All are on disk when this returns. If some were rejected, `NotAllSubmitted` says which, and holds the others.
        """
        futures = self._client._run(self._steps.submit_many(service, items, star))
        tasks = [Task(self._client, future) for future in futures]
        if self.options.wait:
            results.check_all_accepted(tasks, futures)
        return tasks

    def map(
        self,
        service: str,
        items: Iterable[Any],
        *,
        in_flight: int = DEFAULT_IN_FLIGHT,
        star: bool = False,
        errors: Errors = "raise",
        what: What = "results",
    ) -> Iterator[Any]:
        """Submit a task for each item, at most `in_flight` at once, and yield the results in the order of their ends.

        The first failure is raised, or with `errors="yield"` each is yielded in place of a result. With `what="tasks"`
        the ended tasks themselves are yielded. Submitted tasks go on, even if the iteration stops.
        """
        return self._map(self._steps.map(service, items, in_flight, star), errors, what)

    def task_of(self, id_: str) -> Task:
        """A task that was submitted before."""
        check_task_id(id_)
        core = self._client._core
        found: list[TaskFuture] = []
        self._client._act_on_tasks(lambda _: found.append(core.tasks.future_of(id_)))
        return Task(self._client, found[0])

    def _map(
        self, steps: Generator[TaskOperation | TaskFuture, None, None], errors: Errors, what: What
    ) -> Iterator[Any]:
        with contextlib.closing(steps):
            for step in steps:
                if isinstance(step, TaskOperation):
                    self._client._wait(step)
                else:
                    yield Task(self._client, step) if what == "tasks" else outcome_of(step, errors)


class AsyncTask:
    """One task. `await task` gives its result."""

    __slots__ = ("_client", "_handle")

    def __init__(self, client: AsyncClient, future: TaskFuture) -> None:
        self._client = client
        self._handle = TaskHandle(client._core, future)

    @property
    def id(self) -> str:
        """The task's id: with it, and the client's identity, any process finds the task again."""
        return self._handle.future.id

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result().__await__()

    async def result(self, timeout: float | None = None) -> Any:
        """Wait for the task's result; raises `TaskFailed`, `TaskCancelled`, or `NoAnswer` after `timeout` seconds."""
        return await self._client._run(self._handle.result(timeout))

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until the task has ended, with a result or not; False after `timeout` seconds."""
        return await self._client._run(self._handle.wait(timeout))

    async def done(self) -> bool:
        """True if the task has ended, with a result or not. Waits only if the broker must be asked."""
        return await self._client._run(self._handle.is_done())

    def error(self) -> Exception | None:
        """The error of a task that has ended without a result."""
        return self._handle.error()

    async def status(self) -> TaskStatus:
        """The task's current status at the broker."""
        return await self._client._run(self._handle.status())

    async def progress(self) -> tuple[float | None, str]:
        """The handler's last progress (0 to 1; None if it reported none) and note."""
        return (await self.status()).progress

    async def cancel(self) -> bool:
        """Cancel the task, running or not; True if it will not finish."""
        return await self._client._run(self._handle.cancel())

    async def confirm(self, timeout: float | None = None) -> AsyncTask:
        """Wait until a task that was submitted with `wait=False` is on disk; raises as `submit` does."""
        await self._client._run(self._handle.confirm(timeout))
        return self

    def __repr__(self) -> str:
        return f"<AsyncTask {self.id}>"


class AsyncSubmission:
    """Options for tasks, and the ways to submit tasks with them. It never changes, and may be used many times."""

    __slots__ = ("_client", "_steps", "options")

    def __init__(self, client: AsyncClient, options: TaskOptions) -> None:
        self._client = client
        self._steps = SubmissionSteps(client._core, options)
        self.options = options

    async def submit(self, service: str, /, *args: Any, **kwargs: Any) -> AsyncTask:
        """Submit one task; it is on disk when this returns, unless the options say `wait=False`."""
        return AsyncTask(self._client, await self._client._run(self._steps.submit(service, args, kwargs)))

    async def submit_many(self, service: str, items: Iterable[Any], *, star: bool = False) -> list[AsyncTask]:
        """Submit a task for each item (one argument; with `star`, a sequence of them), in order, in few messages.

        All are on disk when this returns. If some were rejected, `NotAllSubmitted` says which, and holds the others.
        """
        futures = await self._client._run(self._steps.submit_many(service, items, star))
        tasks = [AsyncTask(self._client, future) for future in futures]
        if self.options.wait:
            results.check_all_accepted(tasks, futures)
        return tasks

    def map(
        self,
        service: str,
        items: Iterable[Any],
        *,
        in_flight: int = DEFAULT_IN_FLIGHT,
        star: bool = False,
        errors: Errors = "raise",
        what: What = "results",
    ) -> AsyncIterator[Any]:
        """Submit a task for each item, and yield the results in the order of their ends: as `Submission.map`."""
        return self._map(self._steps.map(service, items, in_flight, star), errors, what)

    def task_of(self, id_: str) -> AsyncTask:
        """A task that was submitted before."""
        check_task_id(id_)
        return AsyncTask(self._client, self._client._core.tasks.future_of(id_))

    async def _map(
        self, steps: Generator[TaskOperation | TaskFuture, None, None], errors: Errors, what: What
    ) -> AsyncIterator[Any]:
        with contextlib.closing(steps):
            for step in steps:
                if isinstance(step, TaskOperation):
                    await self._client._wait(step)
                else:
                    yield AsyncTask(self._client, step) if what == "tasks" else outcome_of(step, errors)
