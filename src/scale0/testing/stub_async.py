"""A `StubNetwork` for code that takes an `AsyncClient`.

Lives here: the methods of `AsyncClient`, `AsyncTask` and `AsyncSubmission`, done when they are awaited. Never here: an
answer of its own: all are the network's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable
from typing import TYPE_CHECKING, Any, Literal

from scale0.client.results import TaskStatus
from scale0.client.task_options import TaskOptions
from scale0.testing.stub_tasks import StubSubmission, StubTask

if TYPE_CHECKING:
    from scale0.testing.stub import StubNetwork


class AsyncStub:
    """The methods of `AsyncClient`, done by a `StubNetwork`: each is done when it is awaited."""

    def __init__(self, network: StubNetwork) -> None:
        self._network = network

    @property
    def identity(self) -> str | None:
        """As the network's."""
        return self._network.identity

    async def call(
        self, service: str, *args: Any, timeout: float | None = None, retry: bool | None = None, **kwargs: Any
    ) -> Any:
        """Have `service` done with these arguments, and return what it returns."""
        return self._network.call(service, *args, timeout=timeout, retry=retry, **kwargs)

    async def request(
        self, service: str, *bodies: bytes, timeout: float | None = None, retry: bool | None = None
    ) -> list[bytes]:
        """Raw frames out, raw frames back."""
        return self._network.request(service, *bodies, timeout=timeout, retry=retry)

    async def stream(
        self, service: str, *args: Any, timeout: float | None = None, retry: bool | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Like `call`, for a handler that yields."""
        for part in self._network.stream(service, *args, timeout=timeout, retry=retry, **kwargs):
            yield part

    async def map(self, service: str, items: Iterable[Any], **how: Any) -> AsyncIterator[Any]:
        """Call `service` with each item, and yield the results in order."""
        for result in self._network.map(service, items, **how):
            yield result

    @property
    def task_client(self) -> str:
        """As the network's."""
        return self._network.task_client

    async def submit(self, service: str, /, *args: Any, **kwargs: Any) -> AsyncStubTask:
        """Submit a task."""
        return await self.task().submit(service, *args, **kwargs)

    async def submit_many(self, service: str, items: Iterable[Any], *, star: bool = False) -> list[AsyncStubTask]:
        """Submit a task for each item."""
        return await self.task().submit_many(service, items, star=star)

    def task(self, **options: Any) -> AsyncStubSubmission:
        """Options for tasks."""
        return AsyncStubSubmission(self._network.task(**options))

    def task_of(self, id_: str) -> AsyncStubTask:
        """A task that was submitted before."""
        return self.task().task_of(id_)

    async def services(self) -> list[dict[str, Any]]:
        """Every service that a worker offers."""
        return self._network.services()

    async def clients(self) -> list[dict[str, Any]]:
        """The workers."""
        return self._network.clients()

    async def brokers(self) -> list[dict[str, Any]]:
        """The one broker that there seems to be."""
        return self._network.brokers()

    async def ping(self, timeout: float | None = None) -> dict[str, Any]:
        """A sign of life."""
        return self._network.ping(timeout)

    async def close(self) -> None:
        """Leave."""
        self._network.close()

    async def __aenter__(self) -> AsyncStub:
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        await self.close()
        return False


class AsyncStubTask:
    """The methods of `AsyncTask`, done by a `StubTask`."""

    __slots__ = ("_task",)

    def __init__(self, task: StubTask) -> None:
        self._task = task

    @property
    def id(self) -> str:
        """Its id."""
        return self._task.id

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result().__await__()

    async def result(self, timeout: float | None = None) -> Any:
        """As `StubTask`."""
        return self._task.result(timeout)

    async def wait(self, timeout: float | None = None) -> bool:
        """As `StubTask`."""
        return self._task.wait(timeout)

    async def done(self) -> bool:
        """As `StubTask`."""
        return self._task.done()

    def error(self) -> Exception | None:
        """As `StubTask`."""
        return self._task.error()

    async def status(self) -> TaskStatus:
        """As `StubTask`."""
        return self._task.status()

    async def progress(self) -> tuple[float | None, str]:
        """As `StubTask`."""
        return self._task.progress()

    async def cancel(self) -> bool:
        """As `StubTask`."""
        return self._task.cancel()

    async def confirm(self, timeout: float | None = None) -> AsyncStubTask:
        """As `StubTask`."""
        return self


class AsyncStubSubmission:
    """The methods of `AsyncSubmission`, done by a `StubSubmission`."""

    __slots__ = ("_stub",)

    def __init__(self, stub: StubSubmission) -> None:
        self._stub = stub

    @property
    def options(self) -> TaskOptions:
        """As they were given."""
        return self._stub.options

    async def submit(self, service: str, /, *args: Any, **kwargs: Any) -> AsyncStubTask:
        """One task."""
        return AsyncStubTask(self._stub.submit(service, *args, **kwargs))

    async def submit_many(self, service: str, items: Iterable[Any], *, star: bool = False) -> list[AsyncStubTask]:
        """A task for each item."""
        return [AsyncStubTask(task) for task in self._stub.submit_many(service, items, star=star)]

    async def map(self, service: str, items: Iterable[Any], **how: Any) -> AsyncIterator[Any]:
        """A task for each item, and what they return."""
        for one in self._stub.map(service, items, **how):
            yield AsyncStubTask(one) if isinstance(one, StubTask) else one

    def task_of(self, id_: str) -> AsyncStubTask:
        """A task that was submitted before."""
        return AsyncStubTask(self._stub.task_of(id_))
