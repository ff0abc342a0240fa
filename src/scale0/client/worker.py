"""`Worker`: expose functions as services. Registration, start, drain and stop.

Invariant: heartbeats never wait for a handler.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import queue
import random
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from scale0.client.argument_checks import endpoints_of
from scale0.client.executor import Executor
from scale0.client.handler import Handler
from scale0.client.payload import Signature
from scale0.client.process_pool import IMPORTING, ProcessPool
from scale0.client.task_outcome import names_of
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.limits import Limits
from scale0.kernel.log_context import about
from scale0.kernel.names import is_reserved, is_service_name
from scale0.tasks.node.assigned_tasks import AssignedTasks, CapacityAvailable, TasksAssigned, TasksStopped
from scale0.transport.core.backend_session import BackendSession, OfferAccepted, RequestReceived
from scale0.transport.core.session import Connected, ConnectionLost, SessionEnded
from scale0.transport.edge.client_keys import keys_for
from scale0.transport.edge.client_socket import ClientSocket, SocketClosedError

log = logging.getLogger("scale0.worker")

DEFAULT_ENDPOINT: Final = "tcp://127.0.0.1:5701"
DRAIN_SECONDS: Final = 30.0
"""How long a stop waits for work in flight."""
OFFER_SECONDS: Final = 3.0
"""How long a stop waits for the broker to confirm that no more work will come."""
SIGNAL_SECONDS: Final = 0.5
"""How often `run` checks for a signal."""
POLL_SECONDS: Final = 0.01
"""How often a stop checks whether all work is done."""
COROUTINE_SLOTS: Final = 100
"""The default slots of a coroutine: waiting is cheap there."""
PREFETCH: Final = 4_000
"""The default limit of waiting tasks: enough for the quickest tasks to never wait for the broker."""
MAX_PREFETCH: Final = 10_000

Function = TypeVar("Function", bound=Callable[..., Any])
Mode = Literal["thread", "process"]


class Worker:
    """Functions that are exposed to a network as services.

    >>> worker = Worker("tcp://127.0.0.1:5701")
    >>> @worker.service("thumbs.make", slots=4)
    ... def make(url: str, width: int = 200) -> dict: ...
    >>> worker.run()  # doctest: +SKIP
    """

    def __init__(
        self,
        endpoint: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        identity: str | None = None,
        heartbeat_interval: float | None = None,
        prefetch: int = PREFETCH,
        key: str | Path | None = None,
        server_key: str | None = None,
    ) -> None:
        """A worker with one or several addresses of its network; `service` adds functions.

        `prefetch`: how many tasks may wait here beside the running ones. It is a limit: the broker assigns fewer to
        slow handlers. 0: none.
        `key`: a file with our own CURVE certificate; `server_key`: the broker's public key, or a file that holds it.
        """
        if not 0 <= prefetch <= MAX_PREFETCH:
            raise ValueError(f"prefetch is 0 to {MAX_PREFETCH}, not {prefetch}")
        self.prefetch = prefetch
        self.key, self.server_key = key, server_key
        self.endpoints = endpoints_of(endpoint, "tcp://host:5701")
        self.handlers: dict[str, Handler] = {}
        self._all_handlers: dict[str, Handler] = {}
        """Also removed handlers: their work may still be running, or on its way."""
        self._identity = identity
        self._heartbeat_interval = heartbeat_interval
        self._session: BackendSession | None = None
        self._tasks = AssignedTasks()
        self._socket: ClientSocket | None = None
        self._executor: Executor | None = None
        self._processes: ProcessPool | None = None
        self._up = threading.Event()
        self._ended = threading.Event()
        self._stopping = threading.Event()
        self._offer_accepted = threading.Event()
        # Not an Event: a signal handler may interrupt the very thread that waits, which a queue allows.
        self._stop_requests: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.error: str | None = None
        """Why it ended by itself, if it did: another worker has our identity, or a thread failed."""

    @property
    def identity(self) -> str | None:
        """The worker's identity on the network, once the broker has assigned it."""
        return self._session.connection.identity if self._session else self._identity

    def service(
        self,
        name: str | None = None,
        *,
        slots: int | None = None,
        mode: Mode = "thread",
        raw: bool = False,
        retry_on: Sequence[type[BaseException]] | None = None,
        give_up_on: Sequence[type[BaseException]] = (),
    ) -> Callable[[Function], Function]:
        """Expose a function as the service `name`, for calls and tasks.

        Plain functions run in threads or processes, coroutines in an event loop. The values of a generator are
        streamed; those of a task become a list. With `raw`, the function gets the frames of the request as bytes, and
        returns bytes; for a task it gets one frame, the params in JSON, and returns one JSON value. `slots`: how many
        run at once.

        A task that raises is retried, up to its `max_attempts`: after any exception, or only after those in `retry_on`,
        and never after those in `give_up_on`; if an exception's class inherits from both, the nearer one decides.
        Invalid arguments are never retried. A handler can decide itself: see `Retry` and `GiveUp`.
        """

        def register(function: Function) -> Function:
            self.add(
                name or function.__name__,
                function,
                slots=slots,
                mode=mode,
                raw=raw,
                retry_on=retry_on,
                give_up_on=give_up_on,
            )
            return function

        return register

    def add(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        slots: int | None = None,
        mode: Mode = "thread",
        raw: bool = False,
        retry_on: Sequence[type[BaseException]] | None = None,
        give_up_on: Sequence[type[BaseException]] = (),
    ) -> None:
        """Expose a function; also while the worker runs."""
        if not is_service_name(name, Limits().max_service_bytes) or is_reserved(name):
            raise ValueError(
                f"{name[:64]!r} is not a valid service name: 1 to 255 printable bytes, not scale0.* or mmi.*"
            )
        if mode not in ("thread", "process"):
            raise ValueError(f"mode is thread or process, not {mode!r}")
        is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        if mode == "process" and is_async:
            raise ValueError(f"{name}: a coroutine cannot run in a process of its own")
        wanted = slots if slots is not None else COROUTINE_SLOTS if is_async else 1
        if wanted < 1:
            raise ValueError(f"{name}: slots must be at least 1")
        self._all_handlers[name] = self.handlers[name] = Handler(
            name=name,
            function=function,
            slots=wanted,
            is_async=is_async,
            is_process=mode == "process",
            raw=raw,
            signature=None if raw else Signature(function),
            retry_on=None if retry_on is None else names_of(retry_on),
            give_up_on=names_of(give_up_on),
        )
        self._send_offer()

    def remove(self, name: str) -> None:
        """Stop offering a service; work in flight is finished."""
        self.handlers.pop(name, None)
        self._send_offer()

    def start(self) -> None:
        """Connect, in the background."""
        if self._socket is not None:
            raise RuntimeError("this worker was already started")
        if os.environ.get(IMPORTING):
            raise RuntimeError('put worker.run() under `if __name__ == "__main__":`: its handlers run in processes')
        session = BackendSession(
            self.endpoints,
            self._identity,
            self.handlers,
            self._slots(),
            random.SystemRandom(),
            self._heartbeat_interval,
            tasks=self._tasks,
            prefetch=self.prefetch,
            service_slots=self._service_slots(),
        )
        self._session = session
        keys = keys_for(session.connection.addresses, self.endpoints, self.key, self.server_key)
        self._socket = ClientSocket(session, self._deliver, keys)
        self._processes = ProcessPool()
        self._executor = Executor(self._all_handlers, session, self._socket, self._processes, self._fault, self._tasks)
        self._socket.act(session.start)
        self._executor.start()

    def wait_until_up(self, timeout: float | None = None) -> bool:
        """Wait until the broker has accepted the worker; False after `timeout` seconds."""
        return self._up.wait(timeout)

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or `stop()`; then finish work in flight, and disconnect."""
        if threading.current_thread() is threading.main_thread():
            with contextlib.suppress(ValueError):
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, lambda *_: self._stop_requests.put(None))
        if self._socket is None:
            self.start()
        while not self._wait_for_stop():
            continue
        if threading.current_thread() is threading.main_thread():
            # A second SIGINT interrupts the drain.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.stop()

    def stop(self, drain: float = DRAIN_SECONDS) -> None:
        """Accept no more work, finish work in flight within `drain` seconds, and disconnect."""
        self._stopping.set()
        self._stop_requests.put(None)
        session, socket, executor = self._session, self._socket, self._executor
        if session is None or socket is None or executor is None or self._ended.is_set():
            self._close()
            return
        deadline = read_now().mono + drain
        executor.stop_starting()
        self._offer_accepted.clear()
        socket.act(lambda now, effects: session.offer((), self._slots(), now, effects))
        if self._up.is_set():
            # Work that is on its way arrives before the broker's READYOK.
            self._offer_accepted.wait(min(drain, OFFER_SECONDS))
        pause = threading.Event()
        while self._is_busy(session, socket, executor) and read_now().mono < deadline and not self._ended.is_set():
            pause.wait(POLL_SECONDS)
        if self._is_busy(session, socket, executor):
            log.warning(
                "stopped with work in flight: its tasks will run elsewhere, and its callers get an error",
                extra=about(client=self.identity),
            )
        self._close()

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        self.stop()
        return False

    def _is_busy(self, session: BackendSession, socket: ClientSocket, executor: Executor) -> bool:
        """True until every answer is sent, and every result confirmed."""
        left = [1]
        with contextlib.suppress(SocketClosedError):
            socket.act(lambda _now, _out: left.append(self._tasks.unfinished))
        return bool(session.in_flight or left[-1] or not executor.is_idle())

    def _wait_for_stop(self) -> bool:
        """Wait for a stop request. With a timeout, because a signal handler may run only at the next check."""
        try:
            self._stop_requests.get(timeout=SIGNAL_SECONDS)
        except queue.Empty:
            return False
        return True

    def _close(self) -> None:
        try:
            if self._executor is not None:
                self._executor.stop()
        finally:
            if self._session is not None and self._socket is not None:
                self._socket.close(self._session.end)
            if self._processes is not None:
                self._processes.close()
            self._ended.set()

    def _fault(self, error: BaseException) -> None:
        """One of our threads failed: disconnect, so that the work runs elsewhere, and end `run`."""
        self.error = f"internal error of the worker: {type(error).__name__}: {error}"
        self._stopping.set()
        self._ended.set()
        # It may fail again, and was reported already.
        with contextlib.suppress(Exception):
            self._close()
        self._stop_requests.put(None)

    def _slots(self) -> int:
        """The total, which is all that a broker before `service_slots` knows."""
        return max(1, sum(handler.slots for handler in self.handlers.values()))

    def _service_slots(self) -> dict[str, int]:
        return {name: handler.slots for name, handler in self.handlers.items()}

    def _send_offer(self) -> None:
        session, socket = self._session, self._socket
        if session is not None and socket is not None and not self._stopping.is_set():
            each = self._service_slots()
            socket.act(lambda now, effects: session.offer(each, self._slots(), now, effects, each))

    def _deliver(self, notifications: list[Any]) -> None:
        """The socket's lock is held: nothing is sent here."""
        executor = self._executor
        requests = [notification for notification in notifications if type(notification) is RequestReceived]
        if requests and executor is not None:
            executor.add_requests(requests)
        if len(requests) == len(notifications):
            return
        for notification in notifications:
            match notification:
                case TasksAssigned() if executor is not None:
                    executor.add_tasks(notification.tasks)
                case TasksStopped() if executor is not None:
                    executor.cancel(notification.tasks)
                case CapacityAvailable() if executor is not None:
                    executor.resume()
                case Connected():
                    log.info("connected as %s", notification.identity, extra=about(client=notification.identity))
                    self._up.set()
                    if executor is not None:
                        executor.resume()
                case OfferAccepted():
                    self._offer_accepted.set()
                case ConnectionLost():
                    log.warning("connection lost: %s", notification.reason, extra=about(client=self.identity))
                    self._up.clear()
                case SessionEnded():
                    log.error(
                        "disconnected by the broker: %s %s",
                        notification.code,
                        notification.message,
                        extra=about(client=self.identity),
                    )
                    self.error = f"{notification.code} {notification.message}"
                    self._ended.set()
                    self._stopping.set()
                    self._stop_requests.put(None)
