"""`Client`: call services and submit tasks, from any thread.

Lives here: waiting. Never here: the protocols (`transport.core.frontend_session`, `tasks.client.task_client`), or the
socket (`transport.edge.client_socket`). There is no thread of its own: whoever waits leads, that is, reads the socket
for all, and hands over when its own answer has come. So a call from one thread costs no switch at all.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Unpack

from scale0.client import payload
from scale0.client.argument_checks import check_command, check_request, check_timeout
from scale0.client.endpoints import endpoints_of
from scale0.client.pending import Awaited, Pending
from scale0.client.submission import Submission
from scale0.client.task import Task
from scale0.client.task_options import TaskOptionArguments, TaskOptions
from scale0.kernel.clock import Now
from scale0.kernel.edge.clocks import read_now
from scale0.tasks.client.futures import FutureChanged
from scale0.tasks.client.task_client import TaskClientSession
from scale0.transport.core.calls import CallAnswered, CallFailed, ManagementAnswered, PartialReply
from scale0.transport.core.frontend_session import FrontendSession
from scale0.transport.core.session import UP, SessionEffects
from scale0.transport.edge.client_keys import keys_for
from scale0.transport.edge.client_socket import ClientSocket

DEFAULT_ENDPOINT: Final = "tcp://127.0.0.1:5700"
DEFAULT_TIMEOUT: Final = 30.0
DEFAULT_IN_FLIGHT: Final = 100
SEE_OFF_SECONDS: Final = 1.0
"""How long a call that does not wait may wait for the very first connection."""
TASK_CLIENT_BITS: Final = 96
"""Of a task client's own id, where the user gave none."""

ABOUT_CALLS: Final = frozenset({CallAnswered, PartialReply, CallFailed, ManagementAnswered, FutureChanged})
"""News with a `tag`; the rest is about the line."""


class Client:
    """A connection to a network, for calls and tasks.

    >>> with Client("tcp://127.0.0.1:5700") as net:  # doctest: +SKIP
    ...     net.call("thumbs.make", "cat.png", width=100)  # now
    ...     task = net.submit("thumbs.make", "cat.png", width=100)  # durable: it will be done, whoever dies
    ...     task.result(timeout=10)
    """

    def __init__(
        self,
        endpoint: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        identity: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        retry: bool = False,
        patience: float | None = None,
        task_client: str | None = None,
        key: str | Path | None = None,
        server_key: str | None = None,
    ) -> None:
        """With `retry` calls may run twice, so another worker is tried when one dies.

        Tasks belong to `task_client`, else to `identity`: with the same one, another process finds them again
        (`task_of`), and several connections may use it at once.
        `patience`: how long a broker is looked for before calls fail, whatever their timeout.
        `key`: a file with our own CURVE certificate; `server_key`: the broker's public key, or a file that has it.
        Where they are not given, SCALE0_KEY, SCALE0_SERVER_KEY and the user's folder of keys are asked.
        """
        endpoints = endpoints_of(endpoint, "tcp://host:5700")
        chance = random.SystemRandom()
        owner = task_client or identity or f"c-{chance.getrandbits(TASK_CLIENT_BITS):024x}"
        self._asker = TaskClientSession(owner, chance)
        self._session = FrontendSession(endpoints, identity, chance, patience, sub_protocol=self._asker)
        keys = keys_for(self._session.connection.addresses, endpoints, key, server_key)
        self._link = ClientSocket(self._session, self._deliver, keys)
        self._leader = threading.Lock()
        self._leads = 0
        """The thread that leads, if one does."""
        self._waiters: dict[threading.Lock, Awaited] = {}
        self._queueing = threading.Lock()
        self._timeout = check_timeout(timeout)
        self._retry = retry
        self._pid = os.getpid()
        self._closed = False
        self._tasks = Submission(self, TaskOptions())
        self._act(self._session.start)

    @property
    def identity(self) -> str | None:
        """Who we are on the network, once the broker has said so."""
        return self._session.connection.identity

    def call(
        self, service: str, *args: Any, timeout: float | None = None, retry: bool | None = None, **kwargs: Any
    ) -> Any:
        """Have `service` done with these arguments, and return what it returns."""
        return self._start(service, (payload.encode_arguments(args, kwargs),), timeout, retry, raw=False).result()

    def stream(
        self, service: str, *args: Any, timeout: float | None = None, retry: bool | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        """Like `call`, for a handler that yields: its values as they come."""
        return self._start(service, (payload.encode_arguments(args, kwargs),), timeout, retry, raw=False).parts()

    def start(
        self, service: str, *args: Any, timeout: float | None = None, retry: bool | None = None, **kwargs: Any
    ) -> Pending:
        """Like `call`, but do not wait: the answer is in `result()`."""
        pending = self._start(service, (payload.encode_arguments(args, kwargs),), timeout, retry, raw=False)
        self._see_off(pending)
        return pending

    def request(
        self, service: str, *bodies: bytes, timeout: float | None = None, retry: bool | None = None
    ) -> list[bytes]:
        """Raw frames out, raw frames back: for services that do not speak JSON."""
        frames: list[bytes] = self._start(service, bodies, timeout, retry, raw=True).result()
        return frames

    def start_request(
        self, service: str, *bodies: bytes, timeout: float | None = None, retry: bool | None = None
    ) -> Pending:
        """Like `request`, but do not wait: the frames are in `result()`, or part by part in `parts()`."""
        pending = self._start(service, bodies, timeout, retry, raw=True)
        self._see_off(pending)
        return pending

    def map(
        self,
        service: str,
        items: Iterable[Any],
        *,
        in_flight: int = DEFAULT_IN_FLIGHT,
        timeout: float | None = None,
        retry: bool | None = None,
        raw: bool = False,
    ) -> Iterator[Any]:
        """Call `service` with each item (one argument; with `raw`, one body), and yield the results in order.

        At most `in_flight` calls are under way at once. The first error is raised where its result would be.
        """
        if in_flight < 1:
            raise ValueError(f"in_flight is at least 1, not {in_flight}")
        source = iter(items)
        window: deque[Pending] = deque()
        more = True
        while more or window:
            if more and len(window) <= in_flight // 2:
                # Refill by halves: the requests of one refill travel as one BATCH.
                more = self._refill(service, source, window, in_flight, timeout, retry, raw)
            if window:
                yield window.popleft().result()

    @property
    def task_client(self) -> str:
        """Whom our tasks belong to: the identity that we were given, or one of our own making."""
        return self._asker.client_id

    def submit(self, service: str, /, *args: Any, **kwargs: Any) -> Task:
        """Have `service` done with these arguments, whoever dies meanwhile: it is on disk when this returns.

        All arguments are the handler's own; options are given by `task(...)`.
        """
        return self._tasks.submit(service, *args, **kwargs)

    def submit_many(self, service: str, items: Iterable[Any], *, star: bool = False) -> list[Task]:
        """Submit a task for each item (one argument; with `star`, a sequence of them), in few messages."""
        return self._tasks.submit_many(service, items, star=star)

    def task(self, **options: Unpack[TaskOptionArguments]) -> Submission:
        """Options for tasks (see `TaskOptions`): `net.task(priority=7, delay=60).submit("thumbs.make", "cat.png")`."""
        return Submission(self, TaskOptions(**options)) if options else self._tasks

    def task_of(self, id_: str) -> Task:
        """A task that was submitted before, by this client or by another one with the same identity."""
        return self._tasks.task_of(id_)

    def services(self) -> list[dict[str, Any]]:
        """Every service of the network, with its backends, slots and busy count."""
        return list(self._pages("scale0.services"))

    def clients(self) -> list[dict[str, Any]]:
        """Every client of the broker."""
        return list(self._pages("scale0.clients"))

    def brokers(self) -> list[dict[str, Any]]:
        """Every broker that the broker knows, itself included, with its state."""
        return list(self._pages("scale0.brokers"))

    def ping(self, timeout: float | None = None) -> dict[str, Any]:
        """A sign of life from the broker."""
        answer: dict[str, Any] = self.call("scale0.ping", timeout=timeout)
        return answer

    def manage(self, command: str, *, timeout: float | None = None, **arguments: Any) -> Any:
        """A management command (PROTOCOL 4). Give `auth_token`, or `auth_id` and `auth_password`.

        `config`, or `body`, goes as the message's body: it may be large.
        """
        pending = Pending(self, command, raw=False)
        body = payload.body_of(arguments)
        said = {"command": command, **arguments}
        check_command(said)
        wait = self._wait_for(timeout)
        self._act(lambda now, out: self._session.manage(said, body, wait, pending, now, out))
        return pending.result()

    def close(self) -> None:
        """Leave; what is under way fails. Tasks that were submitted go on."""
        self._closed = True
        if os.getpid() == self._pid:
            self._link.close(self._session.end)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        self.close()
        return False

    def _pages(self, service: str) -> Iterator[dict[str, Any]]:
        after: str | None = None
        while True:
            page = self.call(service, after=after) if after else self.call(service)
            yield from page["items"]
            after = page["next"]
            if after is None:
                return

    def _start(
        self, service: str, bodies: Sequence[bytes], timeout: float | None, retry: bool | None, raw: bool
    ) -> Pending:
        check_request(service, bodies)
        pending = Pending(self, service, raw)
        wait = self._wait_for(timeout)
        again = self._retry if retry is None else retry
        self._act(lambda now, out: self._session.request(service, bodies, wait, again, pending, now, out))
        return pending

    def _see_off(self, pending: Awaited) -> None:
        """A request leaves once the broker has taken us in; without a thread of our own, somebody must read that."""
        deadline = read_now().mono + SEE_OFF_SECONDS
        while not pending.done and self._session.connection.state != UP and (rest := deadline - read_now().mono) > 0:
            if not self._leader.acquire(blocking=False):
                return  # somebody waits, and reads for us
            try:
                self._link.wait(rest)
                self._link.pump()
            finally:
                self._leader.release()
                self._hand_over()

    def _refill(
        self,
        service: str,
        source: Iterator[Any],
        window: deque[Pending],
        in_flight: int,
        timeout: float | None,
        retry: bool | None,
        raw: bool,
    ) -> bool:
        bodies: list[bytes] = []
        for item in source:
            bodies.append(item if raw else payload.encode_arguments((item,), {}))
            if len(window) + len(bodies) >= in_flight:
                break
        check_request(service, bodies)
        started = [Pending(self, service, raw) for _ in bodies]
        wait = self._wait_for(timeout)
        again = self._retry if retry is None else retry

        def ask(now: Any, out: Any) -> None:
            request = self._session.request
            for body, pending in zip(bodies, started, strict=True):
                request(service, (body,), wait, again, pending, now, out)

        self._act(ask)
        window.extend(started)
        return len(window) >= in_flight

    def _act(self, do: Callable[[Now, SessionEffects], None]) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("a Client cannot be used after fork: make a new one in the child")
        self._link.act(do)

    def _ride(self, do: Callable[[Now], None]) -> None:
        """Ask the tasks' session for something."""
        self._act(lambda now, out: self._session.run_sub_protocol(do, now, out))

    def _wait_for(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else check_timeout(timeout)

    def _deliver(self, news: list[Any]) -> None:
        for one in news:
            if type(one) in ABOUT_CALLS:
                one.tag._news(one)
        if self._leader.locked() and self._leads != threading.get_ident():
            # One of these may be what the leader waits for, and the socket has nothing more to tell it.
            self._link.wake()

    def _wait(self, pending: Awaited, parts: bool = False, timeout: float | None = None) -> None:
        """Until it is done (or has a part), or the time is over: lead, or sleep until done or asked to lead."""
        if os.getpid() != self._pid:
            raise RuntimeError("a Client cannot be used after fork: make a new one in the child")
        end = None if timeout is None else read_now().mono + timeout
        try:
            while not pending.has_come(parts) and (end is None or read_now().mono < end):
                if self._leader.acquire(blocking=False):
                    self._lead(pending, parts, end)
                else:
                    self._follow(pending, parts, end)
        finally:
            # Also after following: we may have been asked to lead in the moment in which our answer came. And also if
            # we were interrupted: the others still wait.
            if self._waiters and not self._leader.locked():
                self._hand_over()

    def _lead(self, pending: Awaited, parts: bool, end: float | None) -> None:
        try:
            self._leads = threading.get_ident()
            while not pending.has_come(parts):
                if end is None:
                    self._link.wait()
                elif (rest := end - read_now().mono) > 0:
                    self._link.wait(rest)
                else:
                    break
                self._link.pump()
        finally:
            self._leads = 0
            self._leader.release()

    def _follow(self, pending: Awaited, parts: bool, end: float | None) -> None:
        gate = threading.Lock()
        gate.acquire()
        try:
            with self._queueing:
                if pending._gates is None:
                    pending._gates = []
                pending._gates.append(gate)
                self._waiters[gate] = pending
            # The leader may have finished between our look and our queueing: nobody would wake us then.
            if not pending.has_come(parts) and self._leader.locked():
                gate.acquire(timeout=-1 if end is None else max(0.0, end - read_now().mono))
        finally:
            with self._queueing:
                self._waiters.pop(gate, None)
                if pending._gates is not None and gate in pending._gates:
                    pending._gates.remove(gate)

    def _hand_over(self) -> None:
        """Wake one that still waits, so that somebody leads."""
        for gate, pending in tuple(self._waiters.items()):
            if not pending.done and gate.locked():
                with contextlib.suppress(RuntimeError):
                    gate.release()
                return
