"""A `StubNetwork` for code that takes an `AsyncClient`: each method runs when it is awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable
from typing import TYPE_CHECKING, Any, Literal

from scale0.client.results import TaskStatus
from scale0.client.task_options import TaskOptions
from scale0.testing.stub_tasks import StubSubmission, StubTask

if TYPE_CHECKING:
    from scale0.testing.stub import StubNetwork


class AsyncStub:
    """The methods of `AsyncClient`, run by a `StubNetwork` when they are awaited."""

    def __init__(self, network: StubNetwork) -> None:
        self._network = network

    @property
    def identity(self) -> str | None:
        return self._network.identity

    async def call(
        self, service: str, *args: Any, timeout: float | None = None, retry: bool | None = None, **kwargs: Any
    ) -> Any:
        return self._network.call(service, *args, timeout=timeout, retry=retry, **kwargs)

    async def request(
        self, service: str, *bodies: bytes, timeout: float | None = None, retry: bool | None = None
    ) -> list[bytes]:
        return self._network.request(service, *bodies, timeout=timeout, retry=retry)

    async def stream(
        self, service: str, *args: Any, timeout: float | None = None, retry: bool | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        for part in self._network.stream(service, *args, timeout=timeout, retry=retry, **kwargs):
            yield part

    async def map(self, service: str, items: Iterable[Any], **how: Any) -> AsyncIterator[Any]:
        for result in self._network.map(service, items, **how):
            yield result

    @property
    def task_client(self) -> str:
        return self._network.task_client

    async def submit(self, service: str, /, *args: Any, **kwargs: Any) -> AsyncStubTask:
        return await self.task().submit(service, *args, **kwargs)

    async def submit_many(self, service: str, items: Iterable[Any], *, star: bool = False) -> list[AsyncStubTask]:
        return await self.task().submit_many(service, items, star=star)

    def task(self, **options: Any) -> AsyncStubSubmission:
        return AsyncStubSubmission(self._network.task(**options))

    def task_of(self, id_: str) -> AsyncStubTask:
        return self.task().task_of(id_)

    async def services(self) -> list[dict[str, Any]]:
        return self._network.services()

    async def clients(self) -> list[dict[str, Any]]:
        return self._network.clients()

    async def brokers(self) -> list[dict[str, Any]]:
        return self._network.brokers()

    async def ping(self, timeout: float | None = None) -> dict[str, Any]:
        return self._network.ping(timeout)

    async def close(self) -> None:
        self._network.close()

    async def __aenter__(self) -> AsyncStub:
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        await self.close()
        return False


class AsyncStubTask:
    """The methods of `AsyncTask`, run by a `StubTask`."""

    __slots__ = ("_task",)

    def __init__(self, task: StubTask) -> None:
        self._task = task

    @property
    def id(self) -> str:
        return self._task.id

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result().__await__()

    async def result(self, timeout: float | None = None) -> Any:
        return self._task.result(timeout)

    async def wait(self, timeout: float | None = None) -> bool:
        return self._task.wait(timeout)

    async def done(self) -> bool:
        return self._task.done()

    def error(self) -> Exception | None:
        return self._task.error()

    async def status(self) -> TaskStatus:
        return self._task.status()

    async def progress(self) -> tuple[float | None, str]:
        return self._task.progress()

    async def cancel(self) -> bool:
        return self._task.cancel()

    async def confirm(self, timeout: float | None = None) -> AsyncStubTask:
        return self


class AsyncStubSubmission:
    """The methods of `AsyncSubmission`, run by a `StubSubmission`."""

    __slots__ = ("_stub",)

    def __init__(self, stub: StubSubmission) -> None:
        self._stub = stub

    @property
    def options(self) -> TaskOptions:
        return self._stub.options

    async def submit(self, service: str, /, *args: Any, **kwargs: Any) -> AsyncStubTask:
        return AsyncStubTask(self._stub.submit(service, *args, **kwargs))

    async def submit_many(self, service: str, items: Iterable[Any], *, star: bool = False) -> list[AsyncStubTask]:
        return [AsyncStubTask(task) for task in self._stub.submit_many(service, items, star=star)]

    async def map(self, service: str, items: Iterable[Any], **how: Any) -> AsyncIterator[Any]:
        for one in self._stub.map(service, items, **how):
            yield AsyncStubTask(one) if isinstance(one, StubTask) else one

    def task_of(self, id_: str) -> AsyncStubTask:
        return AsyncStubTask(self._stub.task_of(id_))
