"""A network without a network, for your own tests.

    from scale0.testing.stub import StubNetwork

    def test_the_page_shows_a_thumbnail():
        with StubNetwork(worker) as net:            # your own scale0.Worker, with its services
            assert page(net, "cat.png") == "..."    # your own code, which takes a Client
            assert net.calls[0].service == "thumbs.make"

            net.fail("thumbs.make", 502)            # its worker dies
            assert page(net, "cat.png") == "no picture today"

Tasks run when they are submitted, or, with `StubNetwork(worker, tasks="on demand")`, when the test says `run_tasks()`:

            task = net.submit("thumbs.make", "cat.png")
            assert task.result() == "..."

Code that takes an AsyncClient gets `net.asynchronous`: the same network, with awaitable methods.

Lives here: `StubNetwork`, which has the methods of `Client` and runs handlers in process. Never here: a socket, a
thread that outlives a call, or a clock. Invariants: arguments and results go through the same JSON and the same
conversions as on the wire; errors are the same classes with the same codes; the same calls give the same answers.

What differs: handlers of `mode="process"` run here too; a generator is run to its end before its first part is seen;
nothing waits, so `slow` makes a call fail that would outlast its timeout, and costs no time otherwise.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from scale0.client import payload
from scale0.client.argument_checks import check_request, check_timeout
from scale0.client.handler import Answer, Handler, perform, perform_async
from scale0.client.task_options import TaskOptions
from scale0.errors import error_of
from scale0.kernel import codes
from scale0.kernel.names import is_reserved
from scale0.testing.stub_async import AsyncStub
from scale0.testing.stub_calls import StubAnswer, StubCall, recorded
from scale0.testing.stub_tasks import StubQueue, StubSubmission, StubTask
from scale0.transport.core.backend_session import RequestReceived

if TYPE_CHECKING:
    from scale0.client.worker import Worker

DEFAULT_TIMEOUT: Final = 30.0
"""As a Client's."""
BROKER: Final = "stub"
REQUEST_ID: Final = "1"


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
        """Every call so far, the reserved services' left out."""
        self.identity: str | None = "stub-client"
        self._workers: list[Worker] = []
        self._faults: dict[str, StubFault] = {}
        self._delays: dict[str, float] = {}
        self._turn: dict[str, int] = {}
        self._timeout = check_timeout(timeout)
        self._retry = retry
        self._closed = False
        self._queue = StubQueue(self._offer_of, self._break, tasks == "at once")
        for worker in workers:
            self.add(worker)

    # What a test tells the network.

    def add(self, worker: Worker) -> None:
        """Let a worker join, with all the services that it has now or gets later."""
        if worker not in self._workers:
            self._workers.append(worker)

    def remove(self, worker: Worker) -> None:
        """Let a worker leave."""
        self._workers.remove(worker)

    def fail(self, service: str, code: int, message: str = "", times: int | None = None) -> None:
        """Let calls of a service fail with `code`, always or `times` times. The handler does not run."""
        if not 400 <= code <= 599:
            raise ValueError(f"an error's code is 400 to 599, not {code}")
        self._faults[service] = StubFault(code, message or codes.MEANINGS.get(code, "it fails"), times)

    def slow(self, service: str, seconds: float) -> None:
        """Let a service take so long: a call with a shorter timeout gets 504, after its handler has run."""
        self._delays[service] = seconds

    def heal(self, service: str | None = None) -> None:
        """Take back `fail` and `slow`, of one service or of all."""
        for told in (self._faults, self._delays):
            for name in [service] if service is not None else list(told):
                told.pop(name, None)

    def calls_of(self, service: str) -> list[StubCall]:
        """The calls of one service so far."""
        return [call for call in self.calls if call.service == service]

    @property
    def tasks(self) -> list[StubTask]:
        """Every task so far."""
        return [StubTask(self._queue, entry) for entry in self._queue.entries.values()]

    def run_tasks(self, most: int | None = None) -> int:
        """Run the tasks that can run, at most so many; how many were run."""
        return self._queue.run(most)

    @property
    def asynchronous(self) -> AsyncStub:
        """The same network, for code that takes an AsyncClient."""
        return AsyncStub(self)

    # What a Client has.

    def call(
        self, service: str, *args: Any, timeout: float | None = None, retry: bool | None = None, **kwargs: Any
    ) -> Any:
        """Have `service` done with these arguments, and return what it returns."""
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
        return self._ask(service, (payload.encode_arguments(args, kwargs),), timeout, retry, raw=False)

    def request(
        self, service: str, *bodies: bytes, timeout: float | None = None, retry: bool | None = None
    ) -> list[bytes]:
        """Raw frames out, raw frames back."""
        frames: list[bytes] = self._ask(service, bodies, timeout, retry, raw=True).result()
        return frames

    def start_request(
        self, service: str, *bodies: bytes, timeout: float | None = None, retry: bool | None = None
    ) -> StubAnswer:
        """Like `request`; the frames are in `result()`, or part by part in `parts()`."""
        return self._ask(service, bodies, timeout, retry, raw=True)

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
        """Call `service` with each item, and yield the results in order. `in_flight` means nothing here."""
        for item in items:
            body = item if raw else payload.encode_arguments((item,), {})
            yield self._ask(service, (body,), timeout, retry, raw).result()

    @property
    def task_client(self) -> str:
        """Whom tasks belong to."""
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
        """Every service that a worker offers, as a broker would list it."""
        return [
            {
                "service": name,
                "backends": len(self._backends(name)),
                "slots": sum(total_slots(worker) for worker in self._backends(name)),
                "busy": 0,
                "waiting": 0,
                "where": [BROKER],
            }
            for name in sorted({name for worker in self._workers for name in worker.handlers})
        ]

    def clients(self) -> list[dict[str, Any]]:
        """The workers, as far as a stub knows them."""
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
        """The one broker that there seems to be."""
        return [{"broker": self.ping()["broker"], "group": "", "state": "active"}]

    def ping(self, timeout: float | None = None) -> dict[str, Any]:
        """A sign of life."""
        return {"broker": BROKER, "owner": BROKER, "boot": "0", "state": "active", "time": 0.0, "config_version": 1}

    def close(self) -> None:
        """Leave; later calls are refused, as a closed Client does."""
        self._closed = True

    def __enter__(self) -> StubNetwork:
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        self.close()
        return False

    # How a call is done.

    def _ask(
        self, service: str, bodies: Sequence[bytes], timeout: float | None, retry: bool | None, raw: bool
    ) -> StubAnswer:
        if self._closed:
            raise RuntimeError("this client is closed")
        check_request(service, bodies)
        wait = self._timeout if timeout is None else check_timeout(timeout)
        if is_reserved(service):
            return self._answered(service, raw, (), self._discover(service))
        self.calls.append(recorded(service, bodies, wait, self._retry if retry is None else retry, raw))
        parts: list[Sequence[bytes]] = []
        answer = self._fault(service) or self._run(RequestReceived(REQUEST_ID, service, bodies, wait), parts)
        if answer[0] != "error" and self._delays.get(service, 0.0) > wait:
            answer = ("error", REQUEST_ID, (codes.NO_ANSWER, f"{service} did not answer in time"))
        return self._answered(service, raw, parts, answer)

    def _answered(self, service: str, raw: bool, parts: Sequence[Sequence[bytes]], answer: Answer) -> StubAnswer:
        how, _, what = answer
        done = StubAnswer(service, raw, parts, () if how == "error" else what)
        if how == "error":
            done._error = error_of(what[0], what[1], service)
        return done

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

    def _offer_of(self, service: str) -> Handler | None:
        """Who does a task of this service."""
        backends = self._backends(service)
        return backends[0].handlers[service] if backends else None

    def _break(self, service: str, timeout: float) -> tuple[int, str] | None:
        """What a test told us to do to a task of this service."""
        fault = self._fault(service)
        if fault is not None:
            code, message = fault[2]
            return code, message
        if self._delays.get(service, 0.0) > timeout:
            return codes.NO_ANSWER, f"{service} did not answer in time"
        return None

    def _run(self, work: RequestReceived, parts: list[Sequence[bytes]]) -> Answer:
        backends = self._backends(work.service)
        if not backends:
            return "error", work.id, (codes.NO_SUCH_SERVICE, f"nobody offers {work.service}")
        # The one that was asked longest ago, as a broker would choose.
        turn = self._turn.get(work.service, 0)
        self._turn[work.service] = turn + 1
        offer = backends[turn % len(backends)].handlers[work.service]
        if offer.is_async:
            return await_here(offer, work, parts)
        return perform(offer, work, lambda _id, bodies: parts.append(bodies))

    def _backends(self, service: str) -> list[Worker]:
        return [worker for worker in self._workers if service in worker.handlers]

    def _discover(self, service: str) -> Answer:
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
                message = f"{service} is reserved, and there is no such thing"
                return "error", REQUEST_ID, (codes.NO_SUCH_SERVICE, message)
        return "reply", REQUEST_ID, (payload.encode(found),)


def total_slots(worker: Worker) -> int:
    """What a worker takes at once."""
    return sum(offer.slots for offer in worker.handlers.values())


def await_here(offer: Handler, work: RequestReceived, parts: list[Sequence[bytes]]) -> Answer:
    """Run a coroutine to its end, in a loop of its own; a test may have a loop already, so in a thread of its own."""
    found: list[Answer] = []

    def run() -> None:
        found.append(asyncio.run(perform_async(offer, work, lambda _id, bodies: parts.append(bodies))))

    thread = threading.Thread(target=run, name="scale0-stub")
    thread.start()
    thread.join()
    return found[0]
