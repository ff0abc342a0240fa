"""Runs handlers in processes of their own: one process per slot, connected by a socket pair with length-prefixed
MessagePack, never pickle.

A handler that crashes its process, or times out, affects only that request or attempt. Invariant: a process serves one
request or task at a time, and ends with the worker.

Messages to a process: `[attempt, id, bodies]`, where attempt 0 is a request; the id is for its log. Messages from it:
`partial` and `reply` with bodies, `error` with code and message; for a task `progress` with a number and a note,
`result` with JSON, `failure` with a Failure.
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
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.client.task_outcome import MAIN, Failure, Outcome, not_started, process_died, timed_out
from scale0.kernel import codes
from scale0.kernel.edge.clocks import read_now
from scale0.tasks.node.assigned_tasks import AssignedTask
from scale0.transport.core.backend_session import RequestReceived

if TYPE_CHECKING:
    from scale0.client.handler import Answer, Handler, SendPart
    from scale0.client.task_context import ReportProgress

HEAD: Final = struct.Struct(">I")
IMPORTING: Final = "SCALE0_CHILD"
"""Set in the environment of a process while it imports the handler: a script without a `__main__` guard must not start
a second worker there."""
PROCESS_MODULE: Final = "scale0.client.handler_process"

EXIT_SECONDS: Final = 2.0
"""How long a process may take to exit after it closed its socket: a large one takes time."""
POLL_SECONDS: Final = 0.001

_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder(list[Any]).decode


class HandlerProcess:
    def __init__(self, handler: Handler) -> None:
        module, name = handler.function.__module__, handler.function.__qualname__
        if "<locals>" in name:
            raise ValueError(f"{handler.name}: a function inside a function cannot run in a process of its own")
        path = ""
        if module == MAIN:
            path = os.path.abspath(getattr(sys.modules[MAIN], "__file__", "") or "")
            if not path:
                raise ValueError(f"{handler.name}: put it in a file, so that its process can find it")
        own, other = socket.socketpair()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        arguments = [
            sys.executable,
            "-m",
            PROCESS_MODULE,
            str(other.fileno()),
            module,
            name,
            path,
            str(int(handler.raw)),
        ]
        with other:
            # A process group of its own: processes that the handler started end with it.
            self.process = subprocess.Popen(
                arguments, pass_fds=(other.fileno(),), env=environment, start_new_session=True
            )
        self.socket = own

    def send(self, attempt: int, id_: str, bodies: Sequence[bytes], deadline: float) -> None:
        self._set_timeout(deadline)
        send(self.socket, [attempt, id_, list(bodies)])

    def receive(self, deadline: float) -> list[Any] | None:
        """The next message; None if the process ended; `TimeoutError` after the deadline."""
        self._set_timeout(deadline)
        return receive(self.socket)

    def kill(self) -> None:
        """Kill the process and what it has started; the thread that talks to it notices."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> int:
        """Close the socket and kill the process; return its exit status."""
        self.socket.close()
        self.kill()
        return self.process.wait()

    def wait(self) -> int:
        """Wait for a process that is ending, and kill what it has started; return its own exit status."""
        self.socket.close()
        until = read_now().mono + EXIT_SECONDS
        with contextlib.suppress(ChildProcessError):
            # WNOWAIT: until the process is reaped, its id cannot be reused, so its group can be killed.
            while os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                if read_now().mono > until:
                    break  # it only closed its socket
                time.sleep(POLL_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()

    def _set_timeout(self, deadline: float) -> None:
        left = deadline - read_now().mono
        if left <= 0:
            raise TimeoutError
        self.socket.settimeout(None if left == math.inf else left)


class ProcessPool:
    def __init__(self) -> None:
        self._free: dict[str, list[HandlerProcess]] = {}
        self._processes: set[HandlerProcess] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._by_task: dict[AssignedTask, HandlerProcess] = {}

    def run(self, handler: Handler, request: RequestReceived, send_part: SendPart) -> Answer:
        """Run a request in a process; there is an answer, whatever happens to the process."""
        try:
            process = self._acquire(handler)
        except (OSError, ValueError) as error:
            return "error", request.id, (codes.FAILED, str(error))
        try:
            answer = self._run_request(process, request, send_part)
        except TimeoutError:
            self._remove(process)
            return (
                "error",
                request.id,
                (codes.NO_ANSWER, f"{request.service} took longer than {request.timeout:g} s: it was killed"),
            )
        except OSError:
            answer = None
        if answer is not None:
            self._release(handler, process)
            return answer
        status = self._remove(process, is_dying=True)
        return "error", request.id, (codes.BACKEND_DIED, f"the handler's process died ({exit_text(status)})")

    def run_task(self, handler: Handler, task: AssignedTask, report: ReportProgress) -> Outcome:
        """Run a task in a process; there is an outcome, whatever happens to the process."""
        try:
            process = self._acquire(handler)
        except (OSError, ValueError) as error:
            return not_started(str(error))
        with self._lock:
            self._by_task[task] = process
        outcome: Outcome | None = None
        is_late = False
        try:
            outcome = self._run_attempt(process, task, report)
        except TimeoutError:
            is_late = True
        except OSError:
            pass  # it has ended
        with self._lock:
            del self._by_task[task]
        if outcome is not None and not task.stop:
            self._release(handler, process)
            return outcome
        # A process that was killed by `stop` may just have finished its task: it is not used again.
        status = self._remove(process, is_dying=not is_late and not task.stop)
        return timed_out(task, ": it was killed") if is_late else process_died(exit_text(status))

    def stop(self, tasks: Sequence[AssignedTask]) -> None:
        """Kill the processes that run these tasks."""
        with self._lock:
            for task in tasks:
                process = self._by_task.get(task)
                if process is not None:
                    process.kill()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            processes, self._processes = self._processes, set()
        for process in processes:
            process.end()

    def _run_request(self, process: HandlerProcess, request: RequestReceived, send_part: SendPart) -> Answer | None:
        deadline = read_now().mono + (request.timeout or math.inf)
        process.send(0, request.id, request.bodies, deadline)
        while True:
            message = process.receive(deadline)
            if message is None:
                return None
            kind, content = message
            if kind == "partial":
                send_part(request.id, content)
            elif kind == "reply":
                return "reply", request.id, content
            else:
                return "error", request.id, (content[0], content[1])

    def _run_attempt(self, process: HandlerProcess, task: AssignedTask, report: ReportProgress) -> Outcome | None:
        process.send(task.attempt, task.id, [task.params], task.deadline)
        while True:
            message = process.receive(task.deadline)
            if message is None:
                return None
            kind, content = message
            if kind == "progress":
                report(task, content[0], content[1])
            elif kind == "result":
                result: bytes = content
                return result
            else:
                return msgspec.convert(content, Failure)

    def _acquire(self, handler: Handler) -> HandlerProcess:
        with self._lock:
            free = self._free.setdefault(handler.name, [])
            while free:
                process = free.pop()
                if process.process.poll() is None:
                    return process
                self._processes.discard(process)
        process = HandlerProcess(handler)
        with self._lock:
            self._processes.add(process)
            closed = self._closed
        if closed:
            process.end()
            raise OSError("the worker is stopping")
        return process

    def _release(self, handler: Handler, process: HandlerProcess) -> None:
        with self._lock:
            self._free[handler.name].append(process)

    def _remove(self, process: HandlerProcess, is_dying: bool = False) -> int:
        """Remove a process; return its exit status. `is_dying`: it is ending by itself, and its own status matters."""
        with self._lock:
            self._processes.discard(process)
        return process.wait() if is_dying else process.end()


def exit_text(status: int) -> str:
    if status < 0:
        try:
            return signal.Signals(-status).name
        except ValueError:
            return f"signal {-status}"
    return f"exit status {status}"


def send(stream: socket.socket, message: list[Any]) -> None:
    packed = _pack(message)
    stream.sendall(HEAD.pack(len(packed)) + packed)


def receive(stream: socket.socket) -> list[Any] | None:
    """The next message; None at the end of the stream."""
    head = read_exactly(stream, HEAD.size)
    if head is None:
        return None
    body = read_exactly(stream, HEAD.unpack(head)[0])
    return None if body is None else _unpack(body)


def read_exactly(stream: socket.socket, size: int) -> bytes | None:
    """Exactly `size` bytes; None if the stream ends before."""
    pieces: list[bytes] = []
    while size:
        piece = stream.recv(min(size, 1 << 20))
        if not piece:
            return None
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
