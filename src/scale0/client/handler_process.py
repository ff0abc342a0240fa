"""A child: one handler's process. Started by `children` as `python -m`, never by hand.

Lives here: find the function by name, then serve one request or task after another until the parent is gone. Invariant:
progress is said a hundred times a second at the most, and the last word comes before the result.
"""

from __future__ import annotations

import ctypes
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
from scale0.client.process_pool import CHILD_MARK, CHILD_NAME, MAIN, receive, send
from scale0.client.task_context import RunningTask, TaskAttempt, here
from scale0.client.task_outcome import Failure, perform_task
from scale0.kernel.edge.clocks import read_now
from scale0.kernel.edge.log_setup import log_as_told
from scale0.tasks.node.assigned_tasks import AssignedTask
from scale0.transport.core.backend_session import RequestReceived

PR_SET_PDEATHSIG: Final = 1
"""Of prctl(2). It heeds the thread that started us: a hand of the crew, which lives as long as its worker."""

TELL_SECONDS: Final = 0.01
"""Between two words about progress: a handler may say it in its innermost loop."""


class ProcessReporter:
    """Passes a handler's progress on: at once, or a little later if it talks much."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._latest: list[Any] | None = None
        self._said = -math.inf
        self._timer: threading.Timer | None = None

    def tell(self, _job: TaskAttempt, done: float, note: str) -> None:
        """How far it is."""
        with self._lock:
            self._latest = [done, note]
            wait = self._said + TELL_SECONDS - read_now().mono
            if wait <= 0:
                self._say()
            elif self._timer is None:
                self._timer = threading.Timer(wait, self._later)
                self._timer.daemon = True
                self._timer.start()

    def end(self, *message: Any) -> None:
        """The last word about progress, and then the message that ends the task."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._say()
            send(self._stream, list(message))

    def _later(self) -> None:
        with self._lock:
            if self._timer is threading.current_thread():
                self._timer = None
                self._say()

    def _say(self) -> None:
        if self._latest is not None:
            send(self._stream, ["progress", self._latest])
            self._latest = None
            self._said = read_now().mono


def find(module: str, name: str, path: str) -> Callable[..., Any]:
    """The function, by the names that its parent knows it by."""
    if module == MAIN:
        # The guard `if __name__ == "__main__"` keeps the script from starting a second worker here.
        found: Any = runpy.run_path(path, run_name=CHILD_NAME)
        first, *rest = name.split(".")
        found = found[first]
    else:
        found, rest = importlib.import_module(module), name.split(".")
    for part in rest:
        found = getattr(found, part)
    function: Callable[..., Any] = found
    return function


def end_with_parent() -> None:
    """Have the kernel kill us when the parent dies without a word: a busy handler would not notice."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(arguments: Sequence[str]) -> None:
    """Serve on the inherited socket."""
    descriptor, module, name, path, raw = arguments
    # A stop is the parent's business: it lets us finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent()
    log_as_told()
    stream = socket.socket(fileno=int(descriptor))
    os.environ[CHILD_MARK] = "1"
    function = find(module, name, path)
    del os.environ[CHILD_MARK]
    is_raw = raw == "1"
    handler = Handler(name, function, 1, False, False, is_raw, None if is_raw else Signature(function))
    teller = ProcessReporter(stream)
    while True:
        heard = receive(stream)
        if heard is None:
            return
        attempt, id_, bodies = heard
        if attempt:
            do_task(handler, attempt, id_, bodies[0], teller)
            continue
        work = RequestReceived(id_, name, bodies, 0.0)
        how, _, what = perform(handler, work, lambda _id, parts: send(stream, ["partial", list(parts)]))
        send(stream, [how, list(what)])


def do_task(handler: Handler, attempt: int, id_: str, params: bytes, teller: ProcessReporter) -> None:
    """One attempt; whether it is tried again is the parent's business, who kills us when its time is over."""
    job = AssignedTask(id_, attempt, handler.name, params, math.inf, "")
    here.set(RunningTask(job, teller.tell))
    outcome = perform_task(handler, job)
    here.set(None)
    if isinstance(outcome, Failure):
        teller.end("failure", outcome)
    else:
        teller.end("result", outcome)


if __name__ == "__main__":
    main(sys.argv[1:])
