"""The process of one handler, started by `process_pool` as `python -m`: import the function, then serve requests and
tasks until the worker ends.

Invariant: progress is sent at most a hundred times a second, and the last one before the result.
"""

from __future__ import annotations

import importlib
import math
import os
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from scale0.client.handler import Handler, perform
from scale0.client.payload import Signature
from scale0.client.process_pool import IMPORTING, receive, send
from scale0.client.task_context import RunningTask, current_task
from scale0.client.task_outcome import MAIN, PROCESS_MAIN, Failure, perform_task
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.edge.log_setup import configure_logging
from scale0.kernel.edge.parent_death import end_with_parent
from scale0.tasks.node.assigned_tasks import AssignedTask
from scale0.transport.core.backend_session import RequestReceived

PROGRESS_SECONDS: Final = 0.01
"""The least time between two progress messages: a handler may report in its innermost loop."""


class ProcessReporter:
    """Sends a handler's progress: at once, or a little later if it reports often."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._latest: list[Any] | None = None
        self._sent_at = -math.inf
        self._timer: threading.Timer | None = None

    def report(self, _task: AssignedTask, done: float, note: str) -> None:
        with self._lock:
            self._latest = [done, note]
            wait = self._sent_at + PROGRESS_SECONDS - read_now().mono
            if wait <= 0:
                self._send()
            elif self._timer is None:
                self._timer = threading.Timer(wait, self._send_later)
                self._timer.daemon = True
                self._timer.start()

    def end(self, *message: Any) -> None:
        """Send the last progress, and then the message that ends the task."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._send()
            send(self._stream, list(message))

    def _send_later(self) -> None:
        with self._lock:
            if self._timer is threading.current_thread():
                self._timer = None
                self._send()

    def _send(self) -> None:
        if self._latest is not None:
            send(self._stream, ["progress", self._latest])
            self._latest = None
            self._sent_at = read_now().mono


def find(module: str, name: str, path: str) -> Callable[..., Any]:
    """The function, by the names that the worker gives it."""
    if module == MAIN:
        # The guard `if __name__ == "__main__"` keeps the script from starting a second worker here.
        found: Any = runpy.run_path(path, run_name=PROCESS_MAIN)
        first, *rest = name.split(".")
        found = found[first]
    else:
        found, rest = importlib.import_module(module), name.split(".")
    for part in rest:
        found = getattr(found, part)
    function: Callable[..., Any] = found
    return function


def main(arguments: Sequence[str]) -> None:
    descriptor, module, name, path, raw = arguments
    # The worker handles these signals, and lets us finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # The kernel watches the thread that started us: one of the executor, which lives as long as its worker.
    end_with_parent()
    configure_logging()
    stream = socket.socket(fileno=int(descriptor))
    os.environ[IMPORTING] = "1"
    function = find(module, name, path)
    del os.environ[IMPORTING]
    is_raw = raw == "1"
    handler = Handler(name, function, 1, False, False, is_raw, None if is_raw else Signature(function))
    reporter = ProcessReporter(stream)
    while True:
        message = receive(stream)
        if message is None:
            return
        attempt, id_, bodies = message
        if attempt:
            run_task(handler, attempt, id_, bodies[0], reporter)
            continue
        request = RequestReceived(id_, name, bodies, 0.0)
        kind, _, content = perform(handler, request, lambda _id, parts: send(stream, ["partial", list(parts)]))
        send(stream, [kind, list(content)])


def run_task(handler: Handler, attempt: int, id_: str, params: bytes, reporter: ProcessReporter) -> None:
    """Run one attempt; the worker decides about retries, and kills this process after a timeout."""
    task = AssignedTask(id_, attempt, handler.name, params, math.inf, "")
    current_task.set(RunningTask(task, reporter.report))
    outcome = perform_task(handler, task)
    current_task.set(None)
    if isinstance(outcome, Failure):
        reporter.end("failure", outcome)
    else:
        reporter.end("result", outcome)


if __name__ == "__main__":
    main(sys.argv[1:])
