"""Children: handlers in processes of their own.

Lives here: one process per slot, fed through a socket pair with length-prefixed MessagePack. Never here: pickle. A
handler that crashes its process, or outlasts its request, costs that one request. Invariant: a child serves one request
at a time, and ends with us.
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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scale0.base import codes
from scale0.broker.backend import Work
from scale0.io.clock import read_now

if TYPE_CHECKING:
    from scale0.client.perform import Answer, Offer

HEAD: Final = struct.Struct(">I")
CHILD_NAME: Final = "__scale0_child__"
"""What a script is called in place of `__main__` when a child looks for a function in it."""
CHILD_MARK: Final = "SCALE0_CHILD"
"""Set in a child's environment while it looks: a script without a guard must not start a second worker there."""
CHILD_MODULE: Final = "scale0.client.child"
MAIN: Final = "__main__"

_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder(list[Any]).decode


class Child:
    """One process, ready for one handler."""

    def __init__(self, handler: Offer) -> None:
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

    def ask(self, bodies: Sequence[bytes], deadline: float) -> None:
        """Send one request."""
        self._limit(deadline)
        send(self.socket, list(bodies))

    def hear(self, deadline: float) -> list[Any] | None:
        """One message, or None when the child is gone; `TimeoutError` when its time is over."""
        self._limit(deadline)
        return receive(self.socket)

    def end(self) -> int:
        """Kill it, and what it has started; its exit status."""
        self.socket.close()
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()

    def _limit(self, deadline: float) -> None:
        left = deadline - read_now().mono
        if left <= 0:
            raise TimeoutError
        self.socket.settimeout(None if left == math.inf else left)


class Children:
    """All children of one worker."""

    def __init__(self, worker: object) -> None:
        self._worker = worker
        self._free: dict[str, list[Child]] = {}
        self._all: set[Child] = set()
        self._lock = threading.Lock()
        self._closed = False

    def run(self, handler: Offer, work: Work, part: Callable[[str, Sequence[bytes]], None]) -> Answer:
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
        status = self._lose(child)
        return "error", work.id, (codes.BACKEND_DIED, f"the handler's process died ({describe(status)})")

    def close(self) -> None:
        """End them all."""
        with self._lock:
            self._closed = True
            everyone, self._all = self._all, set()
        for child in everyone:
            child.end()

    def _converse(self, child: Child, work: Work, part: Callable[[str, Sequence[bytes]], None]) -> Answer | None:
        deadline = read_now().mono + (work.timeout or math.inf)
        child.ask(work.bodies, deadline)
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

    def _take(self, handler: Offer) -> Child:
        with self._lock:
            free = self._free.setdefault(handler.name, [])
            while free:
                child = free.pop()
                if child.process.poll() is None:
                    return child
                self._all.discard(child)
        child = Child(handler)
        with self._lock:
            self._all.add(child)
            closed = self._closed
        if closed:
            child.end()
            raise OSError("the worker is stopping")
        return child

    def _give_back(self, handler: Offer, child: Child) -> None:
        with self._lock:
            self._free[handler.name].append(child)

    def _lose(self, child: Child) -> int:
        with self._lock:
            self._all.discard(child)
        return child.end()


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
