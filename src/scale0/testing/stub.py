"""A network without a network, for your own tests.

    from scale0.testing import StubNetwork

    def test_the_page_shows_a_thumbnail():
        with StubNetwork(worker) as net:            # your own scale0.Worker, with its services
            assert page(net, "cat.png") == "..."    # your own code, which takes a Client
            assert net.calls[0].service == "thumbs.make"

            net.fail("thumbs.make", 502)            # its worker dies
            assert page(net, "cat.png") == "no picture today"

Tasks run when they are submitted, or, with `StubNetwork(worker, tasks="on demand")`, when the test calls `run_tasks()`:

            task = net.submit("thumbs.make", "cat.png")
            assert task.result() == "..."

Code that takes an AsyncClient gets `net.asynchronous`: the same network, with awaitable methods.

Handlers run in process, without sockets, clocks or threads that outlive a call. Arguments and results go through the
same JSON and the same conversions as on the wire; errors are the same classes with the same codes; the same calls give
the same answers. What differs: handlers of `mode="process"` run in process, too; a generator runs to its end before its
first part is returned; nothing waits, so `slow` lets a call fail that would exceed its timeout, and takes no time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from scale0.client import payload
from scale0.client.argument_checks import check_request, check_timeout
from scale0.client.core import DEFAULT_TIMEOUT, CallReply
from scale0.client.handler import Answer, Handler, perform, perform_async
from scale0.client.task_options import TaskOptions
from scale0.errors import error_of
from scale0.kernel import codes
from scale0.kernel.errors import Refusal
from scale0.kernel.names import is_reserved
from scale0.testing.stub_async import AsyncStub
from scale0.testing.stub_tasks import StubQueue, StubSubmission, StubTask, in_thread
from scale0.transport.core.backend_session import RequestReceived

if TYPE_CHECKING:
    from scale0.client.worker import Worker

BROKER: Final = "stub"
REQUEST_ID: Final = "1"


class StubCall(NamedTuple):
    """One call as it arrived: arguments after encoding and decoding."""

    service: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    bodies: tuple[bytes, ...]
    """The encoded bodies; for raw calls `args` holds them too."""
    timeout: float
    retry: bool


class StubAnswer:
    """A finished call: what `Client.start` returns, with its answer."""

    __slots__ = ("_reply",)

    def __init__(self, reply: CallReply) -> None:
        self._reply = reply

    @property
    def service(self) -> str:
        """The service that was called."""
        return self._reply.service

    @property
    def done(self) -> bool:
        """Always true."""
        return self._reply.done

    def result(self) -> Any:
        """The answer; raises `CallError`."""
        return self._reply.value()

    def parts(self) -> Iterator[Any]:
        """The parts of a streamed answer; the last one is the handler's return value, if any."""
        return self._reply.stream()


def recorded(service: str, bodies: Sequence[bytes], timeout: float, retry: bool, raw: bool) -> StubCall:
    """A raw body may hold anything, so it is not decoded."""
    args: Sequence[Any] = bodies
    kwargs: dict[str, Any] = {}
    if not raw:
        with contextlib.suppress(Refusal):  # nested too deep: the handler's answer says so
            args, kwargs = payload.decode_arguments(bodies[0])
    return StubCall(service, tuple(args), kwargs, tuple(bodies), timeout, retry)


class StubFault(NamedTuple):
    """How a service fails, and how often."""

    code: int
    message: str
    times: int | None


class StubNetwork:
    """Workers in process, called by the methods of `Client`."""

    def __init__(
        self,
        *workers: Worker,
        timeout: float = DEFAULT_TIMEOUT,
        retry: bool = False,
        tasks: Literal["at once", "on demand"] = "at once",
    ) -> None:
        self.calls: list[StubCall] = []
        """Every call so far, except those of reserved services."""
        self.identity: str | None = "stub-client"
        self._workers: list[Worker] = []
        self._faults: dict[str, StubFault] = {}
        self._delays: dict[str, float] = {}
        self._turns: dict[str, int] = {}
        self._timeout = check_timeout(timeout)
        self._retry = retry
        self._closed = False
        self._queue = StubQueue(self._handler_of, self._fault_of, tasks == "at once")
        for worker in workers:
            self.add(worker)

    # Control by the test.

    def add(self, worker: Worker) -> None:
        """Add a worker, with all services that it has now or gets later."""
        if worker not in self._workers:
            self._workers.append(worker)

    def remove(self, worker: Worker) -> None:
        """Remove a worker."""
        self._workers.remove(worker)

    def fail(self, service: str, code: int, message: str = "", times: int | None = None) -> None:
        """Let calls of a service fail with `code`, always or `times` times. The handler does not run."""
        if not 400 <= code <= 599:
            raise ValueError(f"an error's code is 400 to 599, not {code}")
        self._faults[service] = StubFault(code, message or codes.MEANINGS.get(code, "it fails"), times)

    def slow(self, service: str, seconds: float) -> None:
        """Let a service take this long: a call with a shorter timeout gets 504, after its handler has run."""
        self._delays[service] = seconds

    def heal(self, service: str | None = None) -> None:
        """Undo `fail` and `slow`, for one service or for all."""
        for settings in (self._faults, self._delays):
            for name in [service] if service is not None else list(settings):
                settings.pop(name, None)

    def calls_of(self, service: str) -> list[StubCall]:
        """The calls of one service so far."""
        return [call for call in self.calls if call.service == service]

    @property
    def tasks(self) -> list[StubTask]:
        """Every task so far."""
        return [StubTask(self._queue, entry) for entry in self._queue.entries.values()]

    def run_tasks(self, most: int | None = None) -> int:
        """Run at most `most` tasks that can run; return how many ran."""
        return self._queue.run(most)

    @property
    def asynchronous(self) -> AsyncStub:
        """The same network, for code that takes an AsyncClient."""
        return AsyncStub(self)

    # The methods of a Client.

    def call(
        self, service: str, *args: Any, timeout: float | None = None, retry: bool | None = None, **kwargs: Any
    ) -> Any:
        """Call `service` with these arguments, and return its result."""
        return self.start(service, *args, timeout=timeout, retry=retry, **kwargs).result()

    def stream(
        self, service: str, *args: Any, timeout: float | None = None, retry: bool | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        """Like `call`, for a handler that yields."""
        return self.start(service, *args, timeout=timeout, retry=retry, **kwargs).parts()

    def start(
        self, service: str, *args: Any, timeout: float | None = None, retry: bool | None = None, **kwargs: Any
    ) -> StubAnswer:
        """Like `call`; the answer is in `result()`."""
        return self._call(service, (payload.encode_arguments(args, kwargs),), timeout, retry, raw=False)

    def request(
        self, service: str, *bodies: bytes, timeout: float | None = None, retry: bool | None = None
    ) -> list[bytes]:
        """Send raw frames, and return raw frames."""
        frames: list[bytes] = self._call(service, bodies, timeout, retry, raw=True).result()
        return frames

    def start_request(
        self, service: str, *bodies: bytes, timeout: float | None = None, retry: bool | None = None
    ) -> StubAnswer:
        """Like `request`; the frames are in `result()`, or part by part in `parts()`."""
        return self._call(service, bodies, timeout, retry, raw=True)

    def map(
        self,
        service: str,
        items: Iterable[Any],
        *,
        in_flight: int = 1,
        timeout: float | None = None,
        retry: bool | None = None,
        raw: bool = False,
    ) -> Iterator[Any]:
        """Call `service` with each item, and yield the results in order. `in_flight` has no effect."""
        for item in items:
            body = item if raw else payload.encode_arguments((item,), {})
            yield self._call(service, (body,), timeout, retry, raw).result()

    @property
    def task_client(self) -> str:
        """The owner of the tasks."""
        return self.identity or BROKER

    def submit(self, service: str, /, *args: Any, **kwargs: Any) -> StubTask:
        """Submit a task."""
        return self.task().submit(service, *args, **kwargs)

    def submit_many(self, service: str, items: Iterable[Any], *, star: bool = False) -> list[StubTask]:
        """Submit a task for each item."""
        return self.task().submit_many(service, items, star=star)

    def task(self, **options: Any) -> StubSubmission:
        """Options for tasks."""
        if self._closed:
            raise RuntimeError("this client is closed")
        return StubSubmission(self._queue, TaskOptions(**options))

    def task_of(self, id_: str) -> StubTask:
        """A task that was submitted before."""
        return self.task().task_of(id_)

    def services(self) -> list[dict[str, Any]]:
        """Every service of the workers, in the form of a broker's list."""
        return [
            {
                "service": name,
                "backends": len(self._backends(name)),
                "slots": sum(worker.handlers[name].slots for worker in self._backends(name)),
                "busy": 0,
                "waiting": 0,
                "where": [BROKER],
            }
            for name in sorted({name for worker in self._workers for name in worker.handlers})
        ]

    def clients(self) -> list[dict[str, Any]]:
        """The workers, in the form of a broker's list."""
        return [
            {
                "identity": worker.identity or f"backend-{number}",
                "role": "backend",
                "services": sorted(worker.handlers),
                "slots": total_slots(worker),
                "busy": 0,
            }
            for number, worker in enumerate(self._workers, start=1)
        ]

    def brokers(self) -> list[dict[str, Any]]:
        """The stub itself, in the form of a broker's list."""
        return [{"broker": self.ping()["broker"], "group": "", "state": "active"}]

    def ping(self, timeout: float | None = None) -> dict[str, Any]:
        """The answer of a broker to a ping."""
        state = {"state": "active", "full": False, "outage_since": None}
        return {"broker": BROKER, "owner": BROKER, "boot": "0", "time": 0.0, "config_version": 1, **state}

    def close(self) -> None:
        """Close; later calls raise, as those of a closed Client."""
        self._closed = True

    def __enter__(self) -> StubNetwork:
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        self.close()
        return False

    # How a call runs.

    def _call(
        self, service: str, bodies: Sequence[bytes], timeout: float | None, retry: bool | None, raw: bool
    ) -> StubAnswer:
        if self._closed:
            raise RuntimeError("this client is closed")
        check_request(service, bodies)
        wait = self._timeout if timeout is None else check_timeout(timeout)
        if is_reserved(service):
            return self._answered(service, raw, (), self._run_reserved(service))
        self.calls.append(recorded(service, bodies, wait, self._retry if retry is None else retry, raw))
        parts: list[Sequence[bytes]] = []
        answer = self._fault(service) or self._run(RequestReceived(REQUEST_ID, service, bodies, wait), parts)
        if answer[0] != "error" and self._delays.get(service, 0.0) > wait:
            answer = ("error", REQUEST_ID, (codes.NO_ANSWER, f"{service} did not answer in time"))
        return self._answered(service, raw, parts, answer)

    def _answered(self, service: str, raw: bool, parts: Sequence[Sequence[bytes]], answer: Answer) -> StubAnswer:
        kind, _, content = answer
        reply = CallReply(service, raw)
        reply.done, reply.parts = True, deque(parts)
        if kind == "error":
            reply.error = error_of(content[0], content[1], service)
        else:
            reply.bodies = content
        return StubAnswer(reply)

    def _fault(self, service: str) -> Answer | None:
        fault = self._faults.get(service)
        if fault is None:
            return None
        if fault.times is not None:
            if fault.times <= 1:
                del self._faults[service]
            else:
                self._faults[service] = fault._replace(times=fault.times - 1)
        return "error", REQUEST_ID, (fault.code, fault.message)

    def _handler_of(self, service: str) -> Handler | None:
        backends = self._backends(service)
        return backends[0].handlers[service] if backends else None

    def _fault_of(self, service: str, timeout: float) -> tuple[int, str] | None:
        fault = self._fault(service)
        if fault is not None:
            code, message = fault[2]
            return code, message
        if self._delays.get(service, 0.0) > timeout:
            return codes.NO_ANSWER, f"{service} did not answer in time"
        return None

    def _run(self, request: RequestReceived, parts: list[Sequence[bytes]]) -> Answer:
        backends = self._backends(request.service)
        if not backends:
            return "error", request.id, (codes.NO_SUCH_SERVICE, f"no worker offers {request.service}")
        # Round-robin over the workers, as a broker would.
        turn = self._turns.get(request.service, 0)
        self._turns[request.service] = turn + 1
        handler = backends[turn % len(backends)].handlers[request.service]

        def put(_id: str, bodies: Sequence[bytes]) -> None:
            parts.append(bodies)

        if handler.is_async:
            return in_thread(lambda: asyncio.run(perform_async(handler, request, put)))
        return perform(handler, request, put)

    def _backends(self, service: str) -> list[Worker]:
        return [worker for worker in self._workers if service in worker.handlers]

    def _run_reserved(self, service: str) -> Answer:
        match service:
            case "scale0.services":
                found: Any = {"items": self.services(), "next": None}
            case "scale0.clients":
                found = {"items": self.clients(), "next": None}
            case "scale0.brokers":
                found = {"items": [{"broker": BROKER, "state": "active"}], "next": None}
            case "scale0.ping":
                found = self.ping()
            case _:
                message = f"{service} is a reserved name that this broker does not implement"
                return "error", REQUEST_ID, (codes.NO_SUCH_SERVICE, message)
        return "reply", REQUEST_ID, (payload.encode(found),)


def total_slots(worker: Worker) -> int:
    return sum(handler.slots for handler in worker.handlers.values())
