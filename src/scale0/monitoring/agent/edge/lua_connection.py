"""The connection between the agent and a Lua process: its messages (msgpack), and the agent's side of it.

Lua processes import this module too, so it must not import asyncio. Invariant: a Lua process answers in order, so the
first of its runs is the one that it executes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from scale0.monitoring.protocol.results import UNKNOWN, CheckFinding

if TYPE_CHECKING:
    import asyncio

    from scale0.monitoring.agent.edge.lua_files import LuaSource

MAX_MESSAGE_BYTES: Final = 200_000
"""Of one message in either direction: what the kernel accepts as one packet."""
MAX_BATCH_BYTES: Final = 100_000
"""Of the arguments in one message."""


class LuaScript(msgspec.Struct, frozen=True, tag=0, array_like=True):
    """agent → process: the newest source of a check."""

    name: str
    source: bytes


class LuaTask(msgspec.Struct, frozen=True, array_like=True):
    """One run; `args` is a JSON object, or empty."""

    number: int
    name: str
    args: bytes


class LuaBatch(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """agent → process: execute these runs, in this order."""

    tasks: list[LuaTask]


class LuaHello(msgspec.Struct, frozen=True, array_like=True):
    """process → agent: the first message."""

    pid: int


class LuaAnswer(msgspec.Struct, frozen=True, array_like=True):
    """process → agent: the finding of a run."""

    number: int
    finding: CheckFinding


_encode: Final = msgspec.msgpack.Encoder().encode
_hello: Final = msgspec.msgpack.Decoder(LuaHello).decode
_answer: Final = msgspec.msgpack.Decoder(LuaAnswer).decode
receive_buffer: Final = memoryview(bytearray(MAX_MESSAGE_BYTES))
"""Shared by all connections of a process, which read one message at a time."""


def read_hello(data: memoryview) -> int:
    """The process id in a hello. Raises EOFError if it is none: the process is treated as dead."""
    try:
        return _hello(data).pid
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # ValueError: a text is not UTF-8
        raise EOFError from error


def read_answer(data: memoryview) -> LuaAnswer:
    """An answer. Raises EOFError if it is none: the process is treated as dead."""
    try:
        return _answer(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # ValueError: a text is not UTF-8
        raise EOFError from error


class LuaRun:
    __slots__ = ("args", "begun", "deadline", "ended", "name", "number", "source", "started", "timeout", "tries")

    def __init__(self, number: int, name: str, source: LuaSource, args: bytes, timeout: float) -> None:
        self.number = number
        self.name = name
        self.source = source
        self.args = args
        self.timeout = timeout
        self.tries = 0
        """Processes that died before they began with it."""
        self.begun = 0.0
        self.started = 0.0
        self.deadline = 0.0
        self.ended: asyncio.Future[CheckFinding]

    def end(self, finding: CheckFinding) -> None:
        if not self.ended.done():
            self.ended.set_result(finding)

    def fail(self, reason: str, now: float) -> None:
        """End it without an answer from the check."""
        self.end(CheckFinding(UNKNOWN, reason, (), self.started, now - self.begun))


class LuaConnection:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.runs: deque[LuaRun] = deque()
        """Requested and not answered; the first one is executing."""
        self.since = 0.0
        """When it began with the first of them."""
        self.idle_since = 0.0
        self.full = False
        """Its socket accepts no more for now."""
        self.closing = False
        """It is ended after the current run."""
        self._unsent: list[LuaRun] = []
        """The last ones of `runs`, not sent yet."""
        self._sent_versions: dict[str, int] = {}
        self._pidfd: int | None = None
        """A signal sent by it never hits another process."""

    @property
    def ready(self) -> bool:
        """It has sent its hello."""
        return self._pidfd is not None

    def add(self, run: LuaRun, now: float) -> None:
        """Queue a run; `flush` sends it."""
        if not self.runs:
            self.since = now
        self.runs.append(run)
        self._unsent.append(run)

    def flush(self) -> list[LuaRun]:
        """Send queued runs; returns those that cannot be sent now."""
        unsent, self._unsent = self._unsent, []
        sent = 0
        try:
            while sent < len(unsent):
                tasks: list[LuaTask] = []
                size = 0
                for run in unsent[sent:]:
                    self._send_source(run)
                    if tasks and size + len(run.args) > MAX_BATCH_BYTES:
                        break
                    size += len(run.args)
                    tasks.append(LuaTask(run.number, run.name, run.args))
                self.connection.send(_encode(LuaBatch(tasks)))
                sent += len(tasks)
        except OSError:  # it has not read for long, or it has died, which `receive` reports
            self.full = True
            back = unsent[sent:]
            for _ in back:
                self.runs.pop()
            return back
        return []

    def _send_source(self, run: LuaRun) -> None:
        if self._sent_versions.get(run.name) != run.source.version:
            self.connection.send(_encode(LuaScript(run.name, run.source.text)))
            self._sent_versions[run.name] = run.source.version

    def receive(self, now: float) -> bool:
        """Handle one message; False: there is none now. Raises EOFError if the process died or sent nonsense."""
        try:
            size = self.connection.recv_into(receive_buffer)
        except BlockingIOError:
            return False
        except OSError as error:
            raise EOFError from error
        if not size:
            raise EOFError
        try:
            if self._pidfd is None:
                self._pidfd = os.pidfd_open(read_hello(receive_buffer[:size]))
                self.since = now
                return True
        except (OSError, OverflowError) as error:  # no such process, or no number of one
            raise EOFError from error
        answer = read_answer(receive_buffer[:size])
        if not self.runs or self.runs[0].number != answer.number:
            raise EOFError
        self.since = now
        self.full = False
        self.runs.popleft().end(answer.finding)
        return True

    def take_back(self, keep: int) -> list[LuaRun]:
        """Withdraw all runs but the first `keep`, to run them elsewhere."""
        back = list(self.runs)[keep:]
        for _ in back:
            self.runs.pop()
        return back

    def kill(self) -> None:
        """Kill the process. Its reader must have been removed from the event loop."""
        self.connection.close()
        if self._pidfd is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.close(self._pidfd)
            self._pidfd = None
