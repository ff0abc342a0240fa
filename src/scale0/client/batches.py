"""Batches of tasks: report tasks as started, run them one after the other, and collect results and progress.

Invariants: no task starts before it is reported; the results and reports of a batch leave in one message each; the
progress of one task is sent at most ten times a second, and its last progress before its result.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from scale0.client.handler import Handler
from scale0.client.slots import ServiceSlots, WorkerSlots
from scale0.client.task_context import RunningTask, current_task
from scale0.client.task_outcome import Failure, Outcome, error_object, not_offered, perform_task, timed_out
from scale0.kernel.clock import Now
from scale0.tasks.node.assigned_tasks import RUNNING, AssignedTask, AssignedTasks
from scale0.transport.core.backend_session import BackendSession
from scale0.transport.core.session import SessionEffects
from scale0.transport.edge.client_socket import ClientSocket, SocketClosedError

if TYPE_CHECKING:
    from scale0.client.process_pool import ProcessPool

BATCH_SECONDS: Final = 0.005
"""After this long a thread searches for other work."""
FLUSH_RESULTS: Final = 500
"""Results that are sent together at most."""
PROGRESS_SECONDS: Final = 0.1
"""The least time between two progress messages of one task."""
SETTLE_ATTEMPT: Final = 3
SETTLE_SECONDS: Final = 0.002
"""From the third attempt on, a task in our own process waits this long after its report, so that the report has left: a
handler that kills the process at once must be counted."""


class ReportedProgress:
    """The latest progress of a task."""

    __slots__ = ("done", "is_new", "note", "sent_at")

    def __init__(self) -> None:
        self.done = 0.0
        self.note = ""
        self.is_new = False
        self.sent_at = 0.0
        """When it was last sent; monotonic."""


class TaskBatches:
    def __init__(
        self,
        handlers: Mapping[str, Handler],
        slots: WorkerSlots,
        session: BackendSession,
        socket: ClientSocket,
        processes: ProcessPool | None,
        tasks: AssignedTasks,
    ) -> None:
        self._handlers = handlers
        self._slots = slots
        self._session = session
        self._socket = socket
        self._processes = processes
        self._tasks = tasks
        self.results: deque[tuple[AssignedTask, Outcome]] = deque()
        self._progress: dict[AssignedTask, ReportedProgress] = {}
        self._progress_lock = threading.Lock()
        self._stopped = False

    # Under the socket's lock: messages from and to the broker.

    def add(self, tasks: Sequence[AssignedTask]) -> None:
        known = [task for task in tasks if task.method in self._handlers]
        if len(known) < len(tasks):
            self.results.extend((task, not_offered(task.method)) for task in tasks if task.method not in self._handlers)
        self._slots.add(known)

    def send(self, now: Now, effects: SessionEffects) -> None:
        """Report results and progress to the broker."""
        tasks, results = self._tasks, self.results
        if self._progress:
            self._send_progress(now.mono)
        for _ in range(len(results)):
            task, outcome = results.popleft()
            if self._progress:
                self._send_last_progress(task)
            if isinstance(outcome, Failure):
                tasks.fail(task, error_object(self._handlers.get(task.method), outcome))
            else:
                tasks.finish(task, outcome)
        self._session.send_tasks(now, effects)

    def resume(self) -> None:
        """Connected, and there is room for results: tasks may start."""
        self._slots.is_open = not self._stopped

    def stop(self) -> None:
        self._stopped = True
        self._slots.is_open = False

    def start(
        self, groups: Sequence[tuple[ServiceSlots, Sequence[AssignedTask]]], now: Now, effects: SessionEffects
    ) -> list[list[AssignedTask]]:
        """Report tasks as started, and send what else is due. Return the tasks of each service that may start now."""
        is_ready = self._session.is_up and not self._tasks.is_full and not self._stopped
        if is_ready:
            started = [self._tasks.start(group) for _, group in groups]
        else:
            started = [[] for _ in groups]
            self._slots.is_open = False
            for service, group in groups:
                self._slots.put_back(service, group)
        self.send(now, effects)
        return started

    # In a worker thread.

    def has_messages(self) -> bool:
        """True if there is something to send now."""
        return bool(self.results) or (bool(self._progress) and self._progress_due(time.monotonic()))

    def run(self, service: ServiceSlots, is_wanted: Callable[[], object]) -> int:
        """Run tasks until none is left, BATCH_SECONDS passed, or the thread `is_wanted` elsewhere; return how many."""
        handler = self._handlers[service.name]
        if not service.reported:
            self._report_started(service, handler)
        reported, results = service.reported, self.results
        began = last = time.monotonic()
        end = began + BATCH_SECONDS
        count = 0
        while reported:
            try:
                task = reported.popleft()
            except IndexError:
                break  # another thread was quicker
            if task.stop:
                continue
            task.deadline = last + task.timeout
            outcome = self._run_handler(handler, task)
            after = time.monotonic()
            if after > task.deadline and type(outcome) is bytes:
                outcome = timed_out(task)
            results.append((task, outcome))
            count += 1
            last = after
            if last > end or is_wanted():
                break
        current_task.set(None)
        service.record(count, last - began)
        return count

    def report(self, task: AssignedTask, done: float, note: str) -> None:
        """Store the progress that a handler reports; the monitor thread sends it."""
        if task.state != RUNNING:
            return  # a thread that the handler left behind
        with self._progress_lock:
            progress = self._progress.get(task)
            if progress is None:
                progress = self._progress[task] = ReportedProgress()
            progress.done, progress.note, progress.is_new = done, note, True

    def _run_handler(self, handler: Handler, task: AssignedTask) -> Outcome:
        if handler.is_process and self._processes is not None:
            return self._processes.run_task(handler, task, self.report)
        current_task.set(RunningTask(task, self.report))
        return perform_task(handler, task)

    def _report_started(self, service: ServiceSlots, handler: Handler) -> None:
        group = self._slots.take_group(service)
        if not group:
            return

        def start(now: Now, effects: SessionEffects) -> None:
            (started,) = self.start([(service, group)], now, effects)
            self._slots.mark_reported(service, started)

        try:
            self._socket.act(start)
        except SocketClosedError:
            return  # the worker has stopped: its tasks run elsewhere
        if group[0].attempt >= SETTLE_ATTEMPT and not handler.is_process:
            time.sleep(SETTLE_SECONDS)

    # Progress.

    def _progress_due(self, mono: float) -> bool:
        with self._progress_lock:
            return any(
                progress.is_new and mono >= progress.sent_at + PROGRESS_SECONDS for progress in self._progress.values()
            )

    def _send_progress(self, mono: float) -> None:
        with self._progress_lock:
            due = [
                (task, progress)
                for task, progress in self._progress.items()
                if progress.is_new and mono >= progress.sent_at + PROGRESS_SECONDS
            ]
            for task, progress in due:
                progress.is_new, progress.sent_at = False, mono
                self._tasks.progress(task, progress.done, progress.note)

    def _send_last_progress(self, task: AssignedTask) -> None:
        with self._progress_lock:
            progress = self._progress.pop(task, None)
        if progress is not None and progress.is_new:
            self._tasks.progress(task, progress.done, progress.note)
