"""Children: handlers in processes of their own.

Lives here: one process per slot, fed through a socket pair with length-prefixed MessagePack. Never here: pickle. A
handler that crashes its process, or outlasts its time, costs that one request or attempt. Invariant: a child serves one
thing at a time, and ends with us.

To a child goes `[attempt, id, bodies]`, attempt 0 being a request; the id is for its log. From it come `partial` and
`reply` with bodies, `error` with code and message; for a task `progress` with a number and a note, `result` with JSON,
`failure` with a Failure.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.client.task_outcome import CHILD_NAME, MAIN, Failure, Outcome, died, late, not_started
from scale0.kernel import codes
from scale0.kernel.edge.clocks import read_now
from scale0.tasks.node.assigned_tasks import AssignedTask
from scale0.transport.core.backend_session import RequestReceived

if TYPE_CHECKING:
    from scale0.client.handler import Answer, Handler
    from scale0.client.task_context import Tell

__all__ = ["CHILD_MARK", "CHILD_NAME", "MAIN", "ProcessPool", "receive", "send"]

HEAD: Final = struct.Struct(">I")
CHILD_MARK: Final = "SCALE0_CHILD"
"""Set in a child's environment while it looks: a script without a guard must not start a second worker there."""
CHILD_MODULE: Final = "scale0.client.handler_process"

DYING_SECONDS: Final = 2.0
"""From the end of a child's socket to its own: a large one takes time to be taken apart."""
LOOK_SECONDS: Final = 0.001

_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder(list[Any]).decode


class HandlerProcess:
    """One process, ready for one handler."""

    def __init__(self, handler: Handler) -> None:
        module, name = handler.function.__module__, handler.function.__qualname__
        if "<locals>" in name:
            raise ValueError(f"{handler.name}: a function inside a function cannot run in a process of its own")
        path = ""
        if module == MAIN:
            path = os.path.abspath(getattr(sys.modules[MAIN], "__file__", "") or "")
            if not path:
                raise ValueError(f"{handler.name}: put it in a file, so that its process can find it")
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        arguments = [
            sys.executable,
            "-m",
            CHILD_MODULE,
            str(theirs.fileno()),
            module,
            name,
            path,
            str(int(handler.raw)),
        ]
        with theirs:
            # A group of its own: what the handler has started ends with it.
            self.process = subprocess.Popen(
                arguments, pass_fds=(theirs.fileno(),), env=environment, start_new_session=True
            )
        self.socket = ours

    def ask(self, attempt: int, id_: str, bodies: Sequence[bytes], deadline: float) -> None:
        """Send one request, or one attempt of a task."""
        self._limit(deadline)
        send(self.socket, [attempt, id_, list(bodies)])

    def hear(self, deadline: float) -> list[Any] | None:
        """One message, or None when the child is gone; `TimeoutError` when its time is over."""
        self._limit(deadline)
        return receive(self.socket)

    def kill(self) -> None:
        """Kill it, and what it has started; whoever converses with it notices."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> int:
        """Be done with it; its exit status."""
        self.socket.close()
        self.kill()
        return self.process.wait()

    def bury(self) -> int:
        """It is ending by itself, or soon will; its own exit status. What it has started ends with it."""
        self.socket.close()
        until = read_now().mono + DYING_SECONDS
        with contextlib.suppress(ChildProcessError):
            # Looked at, but not waited for: until then nobody else can have its number, and its group can be named.
            while os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                if read_now().mono > until:
                    break  # it only closed its socket
                time.sleep(LOOK_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()

    def _limit(self, deadline: float) -> None:
        left = deadline - read_now().mono
        if left <= 0:
            raise TimeoutError
        self.socket.settimeout(None if left == math.inf else left)


class ProcessPool:
    """All children of one worker."""

    def __init__(self, worker: object) -> None:
        self._worker = worker
        self._free: dict[str, list[HandlerProcess]] = {}
        self._all: set[HandlerProcess] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._at_task: dict[AssignedTask, HandlerProcess] = {}

    def run(self, handler: Handler, work: RequestReceived, part: Callable[[str, Sequence[bytes]], None]) -> Answer:
        """Have a child do it; whatever happens to the child, there is an answer."""
        try:
            child = self._take(handler)
        except (OSError, ValueError) as error:
            return "error", work.id, (codes.FAILED, str(error))
        try:
            answer = self._converse(child, work, part)
        except TimeoutError:
            self._lose(child)
            return (
                "error",
                work.id,
                (codes.NO_ANSWER, f"{work.service} took longer than {work.timeout:g} s: it was killed"),
            )
        except OSError:
            answer = None
        if answer is not None:
            self._give_back(handler, child)
            return answer
        status = self._lose(child, buries=True)
        return "error", work.id, (codes.BACKEND_DIED, f"the handler's process died ({describe(status)})")

    def run_task(self, handler: Handler, job: AssignedTask, tell: Tell) -> Outcome:
        """Have a child do a task; whatever happens to the child, there is an outcome."""
        try:
            child = self._take(handler)
        except (OSError, ValueError) as error:
            return not_started(str(error))
        with self._lock:
            self._at_task[job] = child
        outcome: Outcome | None = None
        is_late = False
        try:
            outcome = self._attempt(child, job, tell)
        except TimeoutError:
            is_late = True
        except OSError:
            pass  # it is gone
        with self._lock:
            del self._at_task[job]
        if outcome is not None and not job.stop:
            self._give_back(handler, child)
            return outcome
        # One that was told to stop may be dying, though it had just finished: nobody else gets it.
        status = self._lose(child, buries=not is_late and not job.stop)
        return late(job, ": it was killed") if is_late else died(describe(status))

    def stop(self, jobs: Sequence[AssignedTask]) -> None:
        """Kill the children that are at these tasks, whose `stop` is set."""
        with self._lock:
            for job in jobs:
                child = self._at_task.get(job)
                if child is not None:
                    child.kill()

    def close(self) -> None:
        """End them all."""
        with self._lock:
            self._closed = True
            everyone, self._all = self._all, set()
        for child in everyone:
            child.end()

    def _converse(
        self, child: HandlerProcess, work: RequestReceived, part: Callable[[str, Sequence[bytes]], None]
    ) -> Answer | None:
        deadline = read_now().mono + (work.timeout or math.inf)
        child.ask(0, work.id, work.bodies, deadline)
        while True:
            heard = child.hear(deadline)
            if heard is None:
                return None
            how, what = heard
            if how == "partial":
                part(work.id, what)
            elif how == "reply":
                return "reply", work.id, what
            else:
                return "error", work.id, (what[0], what[1])

    def _attempt(self, child: HandlerProcess, job: AssignedTask, tell: Tell) -> Outcome | None:
        child.ask(job.attempt, job.id, [job.params], job.deadline)
        while True:
            heard = child.hear(job.deadline)
            if heard is None:
                return None
            how, what = heard
            if how == "progress":
                tell(job, what[0], what[1])
            elif how == "result":
                result: bytes = what
                return result
            else:
                return msgspec.convert(what, Failure)

    def _take(self, handler: Handler) -> HandlerProcess:
        with self._lock:
            free = self._free.setdefault(handler.name, [])
            while free:
                child = free.pop()
                if child.process.poll() is None:
                    return child
                self._all.discard(child)
        child = HandlerProcess(handler)
        with self._lock:
            self._all.add(child)
            closed = self._closed
        if closed:
            child.end()
            raise OSError("the worker is stopping")
        return child

    def _give_back(self, handler: Handler, child: HandlerProcess) -> None:
        with self._lock:
            self._free[handler.name].append(child)

    def _lose(self, child: HandlerProcess, buries: bool = False) -> int:
        """Its exit status; `buries`: it is dying of itself, and its own status tells how."""
        with self._lock:
            self._all.discard(child)
        return child.bury() if buries else child.end()


def describe(status: int) -> str:
    """An exit status in words."""
    if status < 0:
        try:
            return signal.Signals(-status).name
        except ValueError:
            return f"signal {-status}"
    return f"exit status {status}"


def send(stream: socket.socket, message: list[Any]) -> None:
    """One message: its length, then MessagePack."""
    packed = _pack(message)
    stream.sendall(HEAD.pack(len(packed)) + packed)


def receive(stream: socket.socket) -> list[Any] | None:
    """One message, or None at the end of the stream."""
    head = read_exactly(stream, HEAD.size)
    if head is None:
        return None
    body = read_exactly(stream, HEAD.unpack(head)[0])
    return None if body is None else _unpack(body)


def read_exactly(stream: socket.socket, size: int) -> bytes | None:
    """So many bytes, or None if the stream ends before."""
    pieces: list[bytes] = []
    while size:
        piece = stream.recv(min(size, 1 << 20))
        if not piece:
            return None
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
