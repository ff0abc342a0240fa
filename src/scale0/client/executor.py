"""The executor of a worker: threads that read the socket and run handlers.

The thread that reads a message also runs its request, so that a short handler costs no thread switch. A monitor thread
checks every few milliseconds, and wakes or starts threads when work waits behind a slow handler. Invariants: at most
`slots` handlers of one service run at once; the monitor reads the socket and sends heartbeats whenever no other thread
does; an answer waits at most one period of the monitor; answers leave in order; requests run before tasks, because a
caller waits for them; a thread that fails ends the worker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from scale0.client.batches import BATCH_SECONDS, FLUSH_RESULTS, TaskBatches
from scale0.client.coroutine_runner import CoroutineRunner
from scale0.client.handler import Answer, Handler, perform
from scale0.client.slots import WorkerSlots, at_once
from scale0.kernel import codes
from scale0.kernel.log_context import about
from scale0.tasks.node.assigned_tasks import AssignedTask, AssignedTasks
from scale0.transport.core.backend_session import BackendSession, RequestReceived
from scale0.transport.edge.client_socket import ClientSocket, SocketClosedError

if TYPE_CHECKING:
    from scale0.client.process_pool import ProcessPool

log = logging.getLogger("scale0.worker")

PERIOD_SECONDS: Final = 0.004
"""The period of the monitor while there is work."""
UNREAD_SECONDS: Final = 0.001
"""How long the socket may be unread before the monitor reads it: a short handler is faster than a thread switch."""
IDLE_PERIODS: Final = 25
"""Periods without work after which the monitor sleeps until there is some."""
QUICK_HANDLERS: Final = 8
"""With this many handlers done in a period, handlers count as quick."""
HELPER_THREADS: Final = 2
"""Threads that run no plain function: the monitor, and the loop of the coroutines."""
FLUSH_ANSWERS: Final = 64
"""Answers that are sent together at most."""


class Executor:
    def __init__(
        self,
        handlers: dict[str, Handler],
        session: BackendSession,
        socket: ClientSocket,
        processes: ProcessPool | None,
        on_fault: Callable[[BaseException], None],
        tasks: AssignedTasks | None = None,
    ) -> None:
        """`on_fault` is called when one of our own threads failed: otherwise work could be left undone."""
        self._handlers = handlers
        self._session = session
        self._socket = socket
        self._processes = processes
        self._on_fault = on_fault
        self._slots = WorkerSlots(handlers)
        self._batches: TaskBatches | None = None
        if tasks is not None:
            self._batches = TaskBatches(handlers, self._slots, session, socket, processes, tasks)
        self._coroutines = CoroutineRunner(handlers, self._slots, socket, self._batches, self)
        self._queue: deque[RequestReceived] = deque()
        self._count_lock = threading.Lock()
        self._answers: deque[Answer] = deque()
        self._leader = threading.Lock()
        self._sleepers: deque[threading.Lock] = deque()
        self._last_read = 0.0
        """When the last thread stopped reading."""
        self._threads: list[threading.Thread] = []
        self._work_event = threading.Event()
        self._pause_event = threading.Event()
        self._done = 0
        self._done_before = 0
        self._waiting_before = 0
        """Work that waited at the last period of the monitor."""
        self._stopped = False
        self._in_flight = 0

    def start(self) -> None:
        """Start one thread and the monitor; more are started when needed."""
        if any(handler.is_async for handler in self._handlers.values()):
            self._coroutines.start()
        self._add_thread()
        self.start_thread(self._monitor, "scale0-monitor")

    def add_requests(self, requests: Sequence[RequestReceived]) -> None:
        """Accept requests; the thread that read them runs them next. The socket is locked: nothing is sent here."""
        with self._count_lock:
            self._in_flight += len(requests)
        if len(self._handlers) > 1:
            # Several services share the worker's slots, so each is counted. For a single one, the broker's count is
            # enough.
            self._slots.is_counting = True
        coroutines: list[RequestReceived] = []
        for request in requests:
            handler = self._handlers.get(request.service)
            if handler is None:
                self.answer(("error", request.id, (codes.NO_SUCH_SERVICE, f"{request.service} is not offered here")))
            elif handler.is_async:
                coroutines.append(request)
            else:
                self._queue.append(request)
        self._wake_monitor()
        if coroutines:
            self._coroutines.add_requests(coroutines)

    def add_tasks(self, tasks: Sequence[AssignedTask]) -> None:
        """Accept tasks; as for requests, nothing is sent here."""
        if self._batches is None:
            return
        self._batches.add(tasks)
        self._wake_monitor()
        if any((handler := self._handlers.get(task.method)) is not None and handler.is_async for task in tasks):
            self._coroutines.wake()

    def cancel(self, tasks: Sequence[AssignedTask]) -> None:
        """Cancel tasks: those in threads are flagged, the others are ended."""
        self._coroutines.stop(tasks)
        if self._processes is not None:
            self._processes.stop(tasks)

    def resume(self) -> None:
        """Connected, and there is room for results: tasks may start."""
        if self._batches is not None:
            self._batches.resume()
            self._wake_monitor()
            if any(handler.is_async for handler in self._handlers.values()):
                self._coroutines.wake()

    def stop_starting(self) -> None:
        """Start no more tasks; running ones go on."""
        if self._batches is not None:
            self._batches.stop()

    def is_idle(self) -> bool:
        """True if no handler runs, and nothing waits to be sent."""
        if self._in_flight or self._answers or self._slots.busy:
            return False
        return self._batches is None or not self._batches.results

    def flush(self) -> None:
        """Send finished answers and results."""
        answers, batches = self._answers, self._batches
        if not answers and (batches is None or not batches.has_messages()):
            return

        def send(now: Any, effects: Any) -> None:
            session = self._session
            # Taken under the socket's lock, so that the answers of two threads leave in order.
            for _ in range(len(answers)):
                kind, id_, content = answers.popleft()
                if kind == "reply":
                    session.reply(id_, content, now, effects)
                elif kind == "partial":
                    session.partial(id_, content, now, effects)
                else:
                    session.error(id_, content[0], content[1], now, effects)
            if batches is not None:
                batches.send(now, effects)

        try:
            self._socket.act(send)
        except SocketClosedError:
            answers.clear()  # the worker has stopped
            if batches is not None:
                batches.results.clear()

    def stop(self) -> None:
        """Send what is ready, and end the threads; a thread inside a handler ends after it."""
        try:
            self.stop_starting()
            self.flush()
        finally:
            self._end()

    def _end(self) -> None:
        self._stopped = True
        self._pause_event.set()
        self._work_event.set()
        self._socket.wake()
        while self._sleepers:
            self._sleepers.popleft().release()
        self._coroutines.end()

    def _wake_monitor(self) -> None:
        if not self._work_event.is_set():
            self._work_event.set()

    def start_thread(self, target: Callable[[], None], name: str) -> None:
        """Start a thread whose failure ends the worker."""
        thread = threading.Thread(target=self.guard, args=(target,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def guard(self, action: Callable[[], None]) -> None:
        """Run `action`; a failure ends the worker, which would otherwise only seem to be alive."""
        try:
            action()
        except BaseException as error:
            log.critical(
                "%s failed",
                threading.current_thread().name,
                exc_info=error,
                extra=about(thread=threading.current_thread().name),
            )
            # A user's excepthook comes first: it may want to end the process.
            threading.excepthook(
                threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread()))
            )
            self._on_fault(error)

    def _add_thread(self) -> None:
        self.start_thread(self._run_thread, f"scale0-thread-{len(self._threads)}")

    def _run_thread(self) -> None:
        """One thread: run what waits, else read, else sleep."""
        while not self._stopped:
            request = self._next()
            if request is not None:
                self._run_request(request)
                if not self._queue or len(self._answers) >= FLUSH_ANSWERS:
                    self.flush()
            elif self._batches is not None and self._run_batch(self._batches):
                continue
            elif self._leader.acquire(blocking=False):
                try:
                    self.flush()
                    self._socket.wait()
                    self._socket.pump()
                finally:
                    self._last_read = time.monotonic()
                    self._leader.release()
            else:
                lock = threading.Lock()
                lock.acquire()
                self._sleepers.append(lock)
                if not self._is_stopping():
                    lock.acquire()

    def _is_stopping(self) -> bool:
        """Another thread may have stopped us meanwhile; mypy assumes otherwise for `_stopped`."""
        return self._stopped

    def _next(self) -> RequestReceived | None:
        """The next request whose service has a free slot."""
        while self._queue:
            try:
                request = self._queue.popleft()
            except IndexError:
                return None
            if not self._slots.is_counting or self._slots.acquire_request(request):
                return request
        return None

    def _run_batch(self, batches: TaskBatches) -> bool:
        """Run a batch of tasks; False if none may start."""
        service = self._slots.acquire(is_async=False)
        if service is None:
            return False
        if service.group > 1:
            # They are quick: this thread reads again before the monitor must.
            self._last_read = time.monotonic() + BATCH_SECONDS
        try:
            self._done += batches.run(service, self._queue.__len__)
        finally:
            self._requeue(self._slots.release_task(service))
        if len(batches.results) >= FLUSH_RESULTS or not self._slots.startable():
            self.flush()
        return True

    def _requeue(self, held: RequestReceived | None) -> None:
        """A request whose slot is free now is the next one."""
        if held is not None:
            self._queue.appendleft(held)

    def _monitor(self) -> None:
        """Look every few milliseconds while there is work; sleep while there is none."""
        idle_periods = 0
        while not self._stopped:
            if idle_periods > IDLE_PERIODS and self._leader.locked():
                self._work_event.clear()
                if self._is_working() or self._is_stopping():
                    self._work_event.set()
                self._work_event.wait()
                idle_periods = 0
            if time.monotonic() - self._last_read > UNREAD_SECONDS and self._leader.acquire(blocking=False):
                # No thread reads: all run handlers. Read for one period.
                try:
                    self._socket.wait(PERIOD_SECONDS)
                    self._socket.pump()
                finally:
                    self._leader.release()
            else:
                self._pause_event.wait(PERIOD_SECONDS)
            idle_periods = 0 if self._is_working() else idle_periods + 1
            self.flush()
            self._add_threads()

    def _is_working(self) -> bool:
        """True if a handler runs, or could start."""
        return bool(self._in_flight or self._slots.busy or self._slots.startable())

    def _add_threads(self) -> None:
        """If work waits behind a slow handler, or no thread reads: wake sleeping threads, or start new ones."""
        done, self._done_before = self._done - self._done_before, self._done
        # While handlers are quick, more threads would only compete.
        slow = done < QUICK_HANDLERS
        pending = len(self._queue) + self._slots.startable()
        waiting, self._waiting_before = (min(pending, self._waiting_before) if slow else 0), pending
        wanted = waiting if self._leader.locked() else max(1, waiting)
        if wanted > 0 and self._sleepers:
            # The thread that wakes up first reads again, before the monitor does.
            self._last_read = time.monotonic()
        while wanted > 0 and self._sleepers:
            self._sleepers.popleft().release()
            wanted -= 1
        if wanted > 0 and waiting:
            # A thread for each slot, so that no service waits for another.
            most = HELPER_THREADS + sum(at_once(one) for one in self._handlers.values() if not one.is_async)
            for _ in range(min(wanted, most - len(self._threads))):
                self._add_thread()

    def answer(self, answer: Answer) -> None:
        """Store an answer; the last one of a request ends it."""
        self._answers.append(answer)
        if answer[0] != "partial":
            with self._count_lock:
                self._in_flight -= 1
                self._done += 1

    def _run_request(self, request: RequestReceived) -> None:
        handler = self._handlers.get(request.service)
        try:
            if handler is None:
                self.answer(("error", request.id, (codes.NO_SUCH_SERVICE, f"{request.service} is not offered here")))
            elif handler.is_process and self._processes is not None:
                self.answer(self._processes.run(handler, request, self.send_part))
            else:
                self.answer(perform(handler, request, self.send_part))
        finally:
            self._requeue(self._slots.release_request(request))

    def send_part(self, id_: str, bodies: Sequence[bytes]) -> None:
        """Send a partial answer at once: the caller may show it."""
        self.answer(("partial", id_, bodies))
        self.flush()
