"""`Client`: call services and submit tasks, from any thread.

Of the threads that wait, one is the leader: it reads the socket for all of them, until its own answer has arrived. A
call from a single thread therefore costs no thread switch. When several threads wait, a thread of the client's own
leads until they have not for a while: the others then only leave their actions to it, and what several threads ask
leaves together.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Unpack

from scale0.client import core, payload
from scale0.client.core import CallReply, Result
from scale0.client.task import Submission, Task
from scale0.client.task_options import TaskOptionArguments, TaskOptions
from scale0.kernel.clock import Now
from scale0.kernel.edge.clocks import read_now
from scale0.transport.core.session import UP, SessionEffects
from scale0.transport.edge.client_socket import SocketClosedError
from scale0.transport.edge.idle_sockets import read_when_idle

CONNECT_SECONDS: Final = 1.0
"""How long a call that does not wait for its answer may wait for the first connection."""
IDLE_SECONDS: Final = 1.0
"""After this long without several waiting threads, the client's own thread ends."""


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
        self._leader = 0
        """The thread that reads the socket; 0 if none does. Only that thread sets it to 0, and it may be interrupted
        anywhere before."""
        self._leader_lock = threading.Lock()
        self._waiters: dict[threading.Lock, core.Awaited] = {}
        self._waiters_lock = threading.Lock()
        self._actions: deque[core.Action] = deque()
        """Left to the client's own thread."""
        self._actions_lock = threading.Lock()
        self._serves = False
        """That thread leads: it runs the actions."""
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._tasks = Submission(self, TaskOptions())
        self._act(self._core.session.start)
        read_when_idle(self._core.socket)

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
        """Run an action, which must not raise, on the session: at once, or by our own thread if that leads."""
        self._check_process()
        if self._serves:
            with self._actions_lock:
                if self._serves:
                    self._leave(action)
                    return
        self._core.socket.act(action)

    def _leave(self, action: core.Action) -> None:
        """Leave an action to our own thread, which waits for messages or is about to look for actions."""
        if self._core.is_closed:
            raise SocketClosedError("this client is closed")
        self._actions.append(action)
        if len(self._actions) == 1:
            self._core.socket.wake()

    def _run_actions(self, now: Now, effects: SessionEffects) -> None:
        for _ in range(len(self._actions)):
            self._actions.popleft()(now, effects)

    def _serve(self) -> None:
        """Our own thread: lead, as long as several threads wait."""
        socket, actions = self._core.socket, self._actions
        never = CallReply("", raw=False)
        while not self._claim():
            # Should a leader be interrupted before it hands over, this thread leads a second later.
            self._follow(never, False, read_now().mono + IDLE_SECONDS)
        self._serves = True
        used_at = read_now().mono
        try:
            while not self._core.is_closed and read_now().mono < used_at + IDLE_SECONDS:
                socket.wait(IDLE_SECONDS)
                while actions:
                    socket.act(self._run_actions)
                socket.pump()
                if len(self._waiters) > 1:
                    used_at = read_now().mono
        except SocketClosedError:
            pass  # what was left to us fails below
        finally:
            self._stop_serving()

    def _stop_serving(self) -> None:
        with self._actions_lock:
            try:
                self._core.socket.act(self._run_actions)
            except SocketClosedError:
                effects = SessionEffects()
                self._run_actions(read_now(), effects)
                core.deliver(effects.notifications)
            self._serves = False
            self._thread = None
        self._leader = 0
        self._hand_over()

    def _act_on_tasks(self, action: core.TaskAction) -> None:
        self._check_process()
        self._core.socket.act(lambda now, effects: self._core.session.run_sub_protocol(action, now, effects))

    def _flush(self) -> None:
        """Actions run at once."""

    def _send_off(self, awaited: core.Awaited) -> None:
        """Wait for the first connection: a request leaves once the broker has accepted us, and no thread reads."""
        deadline = read_now().mono + CONNECT_SECONDS
        connection = self._core.session.connection
        own = threading.get_ident()
        while not awaited.done and connection.state != UP and (rest := deadline - read_now().mono) > 0:
            try:
                if not self._claim():
                    return  # the leader reads for us
                self._core.socket.wait(rest)
                self._core.socket.pump()
            finally:
                if self._leader == own:
                    self._leader = 0
                    self._hand_over()

    def _deliver(self, notifications: list[Any]) -> None:
        core.deliver(notifications)
        if self._leader not in (0, threading.get_ident()):
            # The leader may wait for one of these, and the socket has nothing more for it.
            self._core.socket.wake()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("a Client cannot be used after fork: create a new one in the child process")

    def _wait(self, awaited: core.Awaited, parts: bool = False, timeout: float | None = None) -> None:
        """Wait until it is done (or has a part), or the timeout is over: as leader, or until woken by one."""
        self._check_process()
        end = None if timeout is None else read_now().mono + timeout
        own = threading.get_ident()
        try:
            while not awaited.is_ready(parts) and (end is None or read_now().mono < end):
                if self._claim():
                    self._lead(awaited, parts, end)
                else:
                    self._follow(awaited, parts, end)
        finally:
            # Also after following: we may have been made leader at the moment in which our answer arrived. And also
            # after an interrupt: the others still wait.
            if self._leader == own:
                self._leader = 0
            if self._waiters and not self._leader:
                self._hand_over()

    def _claim(self) -> bool:
        """Become the leader, unless there is one."""
        with self._leader_lock:
            if self._leader:
                return False
            self._leader = threading.get_ident()
            return True

    def _lead(self, awaited: core.Awaited, parts: bool, end: float | None) -> None:
        """Read until it is done or the time is over."""
        socket = self._core.socket
        while not awaited.is_ready(parts):
            if end is None:
                socket.wait()
            elif (rest := end - read_now().mono) > 0:
                socket.wait(rest)
            else:
                break
            socket.pump()

    def _follow(self, awaited: core.Awaited, parts: bool, end: float | None) -> None:
        lock = threading.Lock()
        lock.acquire()
        waker = lock.release
        try:
            with self._waiters_lock:
                core.register(awaited, waker)
                self._waiters[lock] = awaited
                if self._thread is None and not self._core.is_closed:
                    self._thread = threading.Thread(target=self._serve, name="scale0-client", daemon=True)
                    self._thread.start()
            # The leader may have finished before we were registered: nobody would wake us then.
            if not awaited.is_ready(parts) and self._leader:
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
