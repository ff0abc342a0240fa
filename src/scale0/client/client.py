"""`Client`: call services and submit tasks, from any thread.

A client has no thread of its own. Of the threads that wait, one is the leader: it reads the socket for all of them,
until its own answer has arrived; then another one leads. A call from a single thread therefore costs no thread switch.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Unpack

from scale0.client import core, payload
from scale0.client.core import CallReply, Result
from scale0.client.task import Submission, Task
from scale0.client.task_options import TaskOptionArguments, TaskOptions
from scale0.kernel.edge.clocks import read_now
from scale0.transport.core.session import UP

CONNECT_SECONDS: Final = 1.0
"""How long a call that does not wait for its answer may wait for the first connection."""


class Pending:
    """A call in progress, as `Client.start` returns it. `result()` waits for its answer."""

    __slots__ = ("_client", "_reply")

    def __init__(self, client: Client, reply: CallReply) -> None:
        self._client = client
        self._reply = reply

    @property
    def service(self) -> str:
        """The service that was called."""
        return self._reply.service

    @property
    def raw(self) -> bool:
        """True if the answer is raw frames."""
        return self._reply.raw

    @property
    def done(self) -> bool:
        """True if the answer or an error has arrived."""
        return self._reply.done

    def result(self) -> Any:
        """Wait for the answer; raises `CallError`, at the latest one second after the call's timeout."""
        return self._client._result(self._reply)

    def parts(self) -> Iterator[Any]:
        """The parts of a streamed answer as they arrive; the last one is the handler's return value, if any."""
        return self._client._stream(self._reply)

    def has_come(self, part: bool) -> bool:
        """True if it is done, or (`part`) has an unread part."""
        return self._reply.is_ready(part)


class Client:
    """A connection to a network, for calls and tasks.

    >>> with Client("tcp://127.0.0.1:5700") as net:  # doctest: +SKIP
    ...     net.call("thumbs.make", "cat.png", width=100)  # a call: the caller waits
    ...     task = net.submit("thumbs.make", "cat.png", width=100)  # a durable task: it survives crashes
    ...     task.result(timeout=10)
    """

    def __init__(
        self,
        endpoint: str | Sequence[str] = core.DEFAULT_ENDPOINT,
        *,
        identity: str | None = None,
        timeout: float = core.DEFAULT_TIMEOUT,
        retry: bool = False,
        patience: float | None = None,
        task_client: str | None = None,
        key: str | Path | None = None,
        server_key: str | None = None,
    ) -> None:
        """With `retry` calls may run twice, so another worker is tried when one dies.

        Tasks belong to `task_client`, else to `identity`: another process with the same one finds them again
        (`task_of`), and several connections may use it at once.
        `patience`: after so many seconds without a broker, calls fail, whatever their timeout.
        `key`: a file with our own CURVE certificate; `server_key`: the broker's public key, or a file that holds it.
        Without them, SCALE0_KEY, SCALE0_SERVER_KEY and the user's key folder are used.
        """
        self._core = core.ClientCore(
            self, self._deliver, endpoint, identity, timeout, retry, patience, task_client, key, server_key
        )
        self._leader = threading.Lock()
        self._leader_thread = 0
        """The thread that reads the socket; 0 if none does."""
        self._waiters: dict[threading.Lock, core.Awaited] = {}
        self._waiters_lock = threading.Lock()
        self._pid = os.getpid()
        self._tasks = Submission(self, TaskOptions())
        self._act(self._core.session.start)

    @property
    def identity(self) -> str | None:
        """The client's identity on the network, once the broker has assigned it."""
        return self._core.session.connection.identity

    def call(
        self, service: str, *args: Any, timeout: float | None = None, retry: bool | None = None, **kwargs: Any
    ) -> Any:
        """Call `service` with these arguments, and return its result."""
        body = payload.encode_arguments(args, kwargs)
        return self._result(self._core.start(service, (body,), timeout, retry, raw=False))

    def stream(
        self, service: str, *args: Any, timeout: float | None = None, retry: bool | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        """Like `call`, for a handler that yields: its values as they arrive."""
        body = payload.encode_arguments(args, kwargs)
        return self._stream(self._core.start(service, (body,), timeout, retry, raw=False))

    def start(
        self, service: str, *args: Any, timeout: float | None = None, retry: bool | None = None, **kwargs: Any
    ) -> Pending:
        """Like `call`, without waiting: `result()` of what it returns waits for the answer."""
        return self._start(service, (payload.encode_arguments(args, kwargs),), timeout, retry, raw=False)

    def request(
        self, service: str, *bodies: bytes, timeout: float | None = None, retry: bool | None = None
    ) -> list[bytes]:
        """Send raw frames, and return raw frames: for services that do not use JSON."""
        frames: list[bytes] = self._result(self._core.start(service, bodies, timeout, retry, raw=True))
        return frames

    def start_request(
        self, service: str, *bodies: bytes, timeout: float | None = None, retry: bool | None = None
    ) -> Pending:
        """Like `request`, without waiting: the frames are in `result()`, or part by part in `parts()`."""
        return self._start(service, bodies, timeout, retry, raw=True)

    def map(
        self,
        service: str,
        items: Iterable[Any],
        *,
        in_flight: int = core.DEFAULT_IN_FLIGHT,
        timeout: float | None = None,
        retry: bool | None = None,
        raw: bool = False,
    ) -> Iterator[Any]:
        """Call `service` with each item (one argument; with `raw`, one body), and yield the results in order.

        At most `in_flight` calls are outstanding. The first error is raised in place of its result.
        """
        for reply in self._core.map(service, items, in_flight, timeout, retry, raw):
            yield self._result(reply)

    @property
    def task_client(self) -> str:
        """The owner of our tasks: the identity that was given, or a random one."""
        return self._core.tasks.client_id

    def submit(self, service: str, /, *args: Any, **kwargs: Any) -> Task:
        """Submit a durable task: it is on disk when this returns, and survives crashes of clients, workers and brokers.

        All arguments are the handler's own; `task(...)` takes options.
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
        return self._run(self._core.rows("scale0.services"))

    def clients(self) -> list[dict[str, Any]]:
        """Every client of the broker."""
        return self._run(self._core.rows("scale0.clients"))

    def brokers(self) -> list[dict[str, Any]]:
        """Every broker that the broker knows, itself included, with its state."""
        return self._run(self._core.rows("scale0.brokers"))

    def ping(self, timeout: float | None = None) -> dict[str, Any]:
        """Check that the broker answers; returns its identity and state."""
        answer: dict[str, Any] = self.call("scale0.ping", timeout=timeout)
        return answer

    def manage(self, command: str, *, timeout: float | None = None, **arguments: Any) -> Any:
        """Run a management command (PROTOCOL 4). Give `auth_token`, or `auth_id` and `auth_password`.

        `config`, or `body`, becomes the message's body: it may be large.
        """
        return self._result(self._core.manage(command, timeout, arguments))

    def close(self) -> None:
        """Disconnect; calls in progress fail. Submitted tasks go on."""
        self._core.is_closed = True
        if os.getpid() == self._pid:
            self._core.socket.close(self._core.session.end)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        self.close()
        return False

    def _start(
        self, service: str, bodies: Sequence[bytes], timeout: float | None, retry: bool | None, raw: bool
    ) -> Pending:
        reply = self._core.start(service, bodies, timeout, retry, raw)
        self._send_off(reply)
        return Pending(self, reply)

    def _result(self, reply: CallReply) -> Any:
        if not reply.done:
            self._wait(reply)
        return reply.value()

    def _stream(self, reply: CallReply) -> Iterator[Any]:
        for part in reply.stream():
            if part is reply:
                self._wait(reply, parts=True)
            else:
                yield part

    def _run(self, steps: core.Steps[Result]) -> Result:
        with contextlib.closing(steps):
            while True:
                try:
                    awaited, timeout = next(steps)
                except StopIteration as stop:
                    result: Result = stop.value
                    return result
                self._wait(awaited, timeout=timeout)

    def _act(self, action: core.Action) -> None:
        self._check_process()
        self._core.socket.act(action)

    def _act_on_tasks(self, action: core.TaskAction) -> None:
        self._act(lambda now, effects: self._core.session.run_sub_protocol(action, now, effects))

    def _flush(self) -> None:
        """Actions run at once."""

    def _send_off(self, awaited: core.Awaited) -> None:
        """Wait for the first connection: a request leaves once the broker has accepted us, and no thread reads."""
        deadline = read_now().mono + CONNECT_SECONDS
        connection = self._core.session.connection
        while not awaited.done and connection.state != UP and (rest := deadline - read_now().mono) > 0:
            if not self._leader.acquire(blocking=False):
                return  # the leader reads for us
            try:
                self._core.socket.wait(rest)
                self._core.socket.pump()
            finally:
                self._leader.release()
                self._hand_over()

    def _deliver(self, notifications: list[Any]) -> None:
        core.deliver(notifications)
        if self._leader.locked() and self._leader_thread != threading.get_ident():
            # The leader may wait for one of these, and the socket has nothing more for it.
            self._core.socket.wake()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("a Client cannot be used after fork: create a new one in the child process")

    def _wait(self, awaited: core.Awaited, parts: bool = False, timeout: float | None = None) -> None:
        """Wait until it is done (or has a part), or the timeout is over: as leader, or until woken by one."""
        self._check_process()
        end = None if timeout is None else read_now().mono + timeout
        try:
            while not awaited.is_ready(parts) and (end is None or read_now().mono < end):
                if self._leader.acquire(blocking=False):
                    self._lead(awaited, parts, end)
                else:
                    self._follow(awaited, parts, end)
        finally:
            # Also after following: we may have been made leader at the moment in which our answer arrived. And also
            # after an interrupt: the others still wait.
            if self._waiters and not self._leader.locked():
                self._hand_over()

    def _lead(self, awaited: core.Awaited, parts: bool, end: float | None) -> None:
        socket = self._core.socket
        try:
            self._leader_thread = threading.get_ident()
            while not awaited.is_ready(parts):
                if end is None:
                    socket.wait()
                elif (rest := end - read_now().mono) > 0:
                    socket.wait(rest)
                else:
                    break
                socket.pump()
        finally:
            self._leader_thread = 0
            self._leader.release()

    def _follow(self, awaited: core.Awaited, parts: bool, end: float | None) -> None:
        lock = threading.Lock()
        lock.acquire()
        waker = lock.release
        try:
            with self._waiters_lock:
                core.register(awaited, waker)
                self._waiters[lock] = awaited
            # The leader may have finished before we were registered: nobody would wake us then.
            if not awaited.is_ready(parts) and self._leader.locked():
                lock.acquire(timeout=-1 if end is None else max(0.0, end - read_now().mono))
        finally:
            with self._waiters_lock:
                self._waiters.pop(lock, None)
                core.unregister(awaited, waker)

    def _hand_over(self) -> None:
        """Wake one thread that still waits, so that it becomes the leader."""
        for lock, awaited in tuple(self._waiters.items()):
            if not awaited.done and lock.locked():
                with contextlib.suppress(RuntimeError):
                    lock.release()
                return
