"""`Worker`: offer functions as services.

Lives here: registration, start, drain and stop. Never here: the protocol (`transport.core.backend_session`,
`tasks.node.assigned_tasks`), or how handlers are run (`crew`, `children`). Invariant: heartbeats never wait for a
handler.
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

from scale0.client.endpoints import endpoints_of
from scale0.client.executor import Executor
from scale0.client.handler import Handler
from scale0.client.payload import Signature
from scale0.client.process_pool import CHILD_MARK, ProcessPool
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
"""How long a stop waits for the work in hand."""
OFFER_SECONDS: Final = 3.0
"""How long a stop waits for the broker to say that no more work will come."""
TOLD_SECONDS: Final = 0.5
"""How long a signal may go unheeded."""
LOOK_SECONDS: Final = 0.01
"""How often a stop looks whether all is done."""
COROUTINE_SLOTS: Final = 100
"""Slots of a coroutine that names none: waiting is cheap there."""
PREFETCH: Final = 4_000
"""Tasks that may wait here beside those that run: enough for the quickest of them to never wait for the broker."""
MAX_PREFETCH: Final = 10_000

Function = TypeVar("Function", bound=Callable[..., Any])
Mode = Literal["thread", "process"]


class Worker:
    """Functions offered to a network.

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
        """A worker with one address of its network; services are added by `service`.

        `prefetch`: how many tasks may wait here beside those that run. It is a cap: the broker gives slow handlers
        fewer. 0: none.
        `key`: a file with our own CURVE certificate; `server_key`: the broker's public key, or a file that has it.
        """
        if not 0 <= prefetch <= MAX_PREFETCH:
            raise ValueError(f"prefetch is 0 to {MAX_PREFETCH}, not {prefetch}")
        self.prefetch = prefetch
        self.key, self.server_key = key, server_key
        self.endpoints = endpoints_of(endpoint, "tcp://host:5701")
        self.handlers: dict[str, Handler] = {}
        self._known: dict[str, Handler] = {}
        """Also what is offered no longer: it may still be in hand, or on its way."""
        self._identity = identity
        self._heartbeat_interval = heartbeat_interval
        self._session: BackendSession | None = None
        self._tasks = AssignedTasks()
        self._link: ClientSocket | None = None
        self._crew: Executor | None = None
        self._children: ProcessPool | None = None
        self._up = threading.Event()
        self._ended = threading.Event()
        self._stopping = threading.Event()
        self._offered = threading.Event()
        # Not an Event: a signal's handler may interrupt the very thread that waits, and a queue allows for that.
        self._told: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.error: str | None = None
        """Why it ended by itself, if so: another worker took our identity, or a thread of ours failed."""

    @property
    def identity(self) -> str | None:
        """Who we are on the network, once the broker has said so."""
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
        """Offer a function as `name`, for calls and tasks.

        Plain functions run in threads or processes, coroutines in a loop.
        A generator's values travel as a stream of parts; those of a task become a list. With `raw`, the function gets
        the frames of the request as bytes, and returns bytes; for a task it gets one frame, the params in JSON, and
        returns one JSON value. `slots`: how many of it run at once.

        A task that raises is tried again, up to its `max_attempts`: after any exception, or only after those in
        `retry_on`, and never after those in `give_up_on`; if an exception's class inherits from both, the nearer one
        decides. Arguments that do not fit are never tried again. A handler can say it itself: see `Retry` and `GiveUp`.
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
        """Offer a function; also while running."""
        if not is_service_name(name, Limits().max_service_bytes) or is_reserved(name):
            raise ValueError(
                f"{name[:64]!r} cannot be a service's name: up to 255 printable bytes, not scale0. or mmi."
            )
        if mode not in ("thread", "process"):
            raise ValueError(f"mode is thread or process, not {mode!r}")
        is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        if mode == "process" and is_async:
            raise ValueError(f"{name}: a coroutine cannot run in a process of its own")
        wanted = slots if slots is not None else COROUTINE_SLOTS if is_async else 1
        if wanted < 1:
            raise ValueError(f"{name}: slots must be at least 1")
        self._known[name] = self.handlers[name] = Handler(
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
        self._offer()

    def remove(self, name: str) -> None:
        """Offer it no longer; what is in hand is finished."""
        self.handlers.pop(name, None)
        self._offer()

    def start(self) -> None:
        """Connect, in the background."""
        if self._link is not None:
            raise RuntimeError("this worker was started before")
        if os.environ.get(CHILD_MARK):
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
        )
        self._session = session
        keys = keys_for(session.connection.addresses, self.endpoints, self.key, self.server_key)
        self._link = ClientSocket(session, self._deliver, keys)
        self._children = ProcessPool(self)
        self._crew = Executor(self._known, session, self._link, self._children, self._fault, self._tasks)
        self._link.act(session.start)
        self._crew.start()

    def wait_until_up(self, timeout: float | None = None) -> bool:
        """True once the broker has taken us in."""
        return self._up.wait(timeout)

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or `stop()`; then finish what is in hand, and leave."""
        if threading.current_thread() is threading.main_thread():
            with contextlib.suppress(ValueError):
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, lambda *_: self._told.put(None))
        if self._link is None:
            self.start()
        while not self._is_told():
            continue
        if threading.current_thread() is threading.main_thread():
            # Whoever is in a hurry says it twice.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.stop()

    def stop(self, drain: float = DRAIN_SECONDS) -> None:
        """Take no more work, finish what is in hand within `drain` seconds, and leave."""
        self._stopping.set()
        self._told.put(None)
        session, link, crew = self._session, self._link, self._crew
        if session is None or link is None or crew is None or self._ended.is_set():
            self._close()
            return
        deadline = read_now().mono + drain
        crew.hold()
        self._offered.clear()
        link.act(lambda now, out: session.offer((), self._slots(), now, out))
        if self._up.is_set():
            # Work that is on its way to us comes before the broker's READYOK.
            self._offered.wait(min(drain, OFFER_SECONDS))
        pause = threading.Event()
        while self._owes(session, link, crew) and read_now().mono < deadline and not self._ended.is_set():
            pause.wait(LOOK_SECONDS)
        if self._owes(session, link, crew):
            log.warning(
                "left with work in hand: its tasks will be done elsewhere, and its callers are told",
                extra=about(client=self.identity),
            )
        self._close()

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        self.stop()
        return False

    def _owes(self, session: BackendSession, link: ClientSocket, crew: Executor) -> bool:
        """True while somebody waits for us: an answer is owed until it is on the line, a result until it is taken."""
        left = [1]
        with contextlib.suppress(SocketClosedError):
            link.act(lambda _now, _out: left.append(self._tasks.unfinished))
        return bool(session.in_flight or left[-1] or not crew.idle())

    def _is_told(self) -> bool:
        """Wait to be told to stop. In pieces: a signal in an unlucky moment is heeded only with the next one."""
        try:
            self._told.get(timeout=TOLD_SECONDS)
        except queue.Empty:
            return False
        return True

    def _close(self) -> None:
        try:
            if self._crew is not None:
                self._crew.stop()
        finally:
            if self._session is not None and self._link is not None:
                self._link.close(self._session.end)
            if self._children is not None:
                self._children.close()
            self._ended.set()

    def _fault(self, error: BaseException) -> None:
        """A thread of ours failed: leave, so that others get our work, and let `run` end."""
        self.error = f"a fault of the worker itself: {type(error).__name__}: {error}"
        self._stopping.set()
        self._ended.set()
        # What failed once may fail again, and was told already.
        with contextlib.suppress(Exception):
            self._close()
        self._told.put(None)

    def _slots(self) -> int:
        return max(1, sum(handler.slots for handler in self.handlers.values()))

    def _offer(self) -> None:
        session, link = self._session, self._link
        if session is not None and link is not None and not self._stopping.is_set():
            names = list(self.handlers)
            link.act(lambda now, out: session.offer(names, self._slots(), now, out))

    def _deliver(self, news: list[Any]) -> None:
        """The link's lock is held: nothing is said here."""
        crew = self._crew
        work = [one for one in news if type(one) is RequestReceived]
        if work and crew is not None:
            crew.take(work)
        if len(work) == len(news):
            return
        for one in news:
            match one:
                case TasksAssigned() if crew is not None:
                    crew.give(one.tasks)
                case TasksStopped() if crew is not None:
                    crew.cancel(one.tasks)
                case CapacityAvailable() if crew is not None:
                    crew.resume()
                case Connected():
                    log.info("up as %s", one.identity, extra=about(client=one.identity))
                    self._up.set()
                    if crew is not None:
                        crew.resume()
                case OfferAccepted():
                    self._offered.set()
                case ConnectionLost():
                    log.warning("connection lost: %s", one.reason, extra=about(client=self.identity))
                    self._up.clear()
                case SessionEnded():
                    log.error("the broker let us go: %s %s", one.code, one.message, extra=about(client=self.identity))
                    self.error = f"{one.code} {one.message}"
                    self._ended.set()
                    self._stopping.set()
                    self._told.put(None)
