"""The agent's end of a Lua child: what it was given, what it answered, how it is ended.

Lives here: one connection and its runs in order. Never here: which child gets what (`lua_pool`). Invariant: a child
answers in order, so that the first of its runs is the one that it is busy with.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections import deque
from typing import Final

import msgspec

from scale0.monitoring.agent.edge.lua_files import LuaSource
from scale0.monitoring.agent.edge.lua_messages import (
    MAX_MESSAGE_BYTES,
    LuaAnswer,
    LuaBatch,
    LuaHello,
    LuaScript,
    LuaTask,
)
from scale0.monitoring.protocol.results import UNKNOWN, CheckFinding

MAX_BATCH_BYTES: Final = 100_000
"""Of arguments in one message."""

_encode: Final = msgspec.msgpack.Encoder().encode
_hello: Final = msgspec.msgpack.Decoder(LuaHello).decode
_answer: Final = msgspec.msgpack.Decoder(LuaAnswer).decode
_room: Final = memoryview(bytearray(MAX_MESSAGE_BYTES))
"""Where every message is read into: one loop, one reader at a time."""


class LuaRun:
    """A run that has not ended."""

    __slots__ = ("args", "begun", "deadline", "ended", "name", "number", "source", "started", "timeout", "tries")

    def __init__(self, number: int, name: str, source: LuaSource, args: bytes, timeout: float) -> None:
        self.number = number
        self.name = name
        self.source = source
        self.args = args
        self.timeout = timeout
        self.tries = 0
        """Children that died before they began with it."""
        self.begun = 0.0
        self.started = 0.0
        self.deadline = 0.0
        self.ended: asyncio.Future[CheckFinding]

    def end(self, finding: CheckFinding) -> None:
        """Tell whoever still waits."""
        if not self.ended.done():
            self.ended.set_result(finding)

    def fail(self, reason: str, now: float) -> None:
        """End it without an answer of its own."""
        self.end(CheckFinding(UNKNOWN, reason, (), self.started, now - self.begun))


class LuaConnection:
    """A child."""

    __slots__ = ("_fresh", "_handle", "_known", "connection", "full", "idle_since", "last", "runs", "since")

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.runs: deque[LuaRun] = deque()
        """Given and not answered; the first is running."""
        self.since = 0.0
        """When it began with the first of them."""
        self.idle_since = 0.0
        self.full = False
        """It takes no more for now."""
        self.last = False
        """It ends after the run that it is busy with."""
        self._fresh: list[LuaRun] = []
        """The last of `runs`: not sent yet."""
        self._known: dict[str, int] = {}
        self._handle: int | None = None
        """A pidfd: a signal by it never hits somebody else."""

    @property
    def ready(self) -> bool:
        """It has begun to serve."""
        return self._handle is not None

    def give(self, run: LuaRun, now: float) -> None:
        """One more; `flush` sends it."""
        if not self.runs:
            self.since = now
        self.runs.append(run)
        self._fresh.append(run)

    def flush(self) -> list[LuaRun]:
        """Send what was given; what cannot be sent now comes back."""
        fresh, self._fresh = self._fresh, []
        sent = 0
        try:
            while sent < len(fresh):
                tasks: list[LuaTask] = []
                size = 0
                for run in fresh[sent:]:
                    self._introduce(run)
                    if tasks and size + len(run.args) > MAX_BATCH_BYTES:
                        break
                    size += len(run.args)
                    tasks.append(LuaTask(run.number, run.name, run.args))
                self.connection.send(_encode(LuaBatch(tasks)))
                sent += len(tasks)
        except OSError:  # it has not read for long, or is dead, which is told elsewhere
            self.full = True
            back = fresh[sent:]
            for _ in back:
                self.runs.pop()
            return back
        return []

    def _introduce(self, run: LuaRun) -> None:
        if self._known.get(run.name) != run.source.version:
            self.connection.send(_encode(LuaScript(run.name, run.source.text)))
            self._known[run.name] = run.source.version

    def receive(self, now: float) -> bool:
        """Take one message; False: there is none now. Raises EOFError when the child is gone, or makes no sense."""
        try:
            size = self.connection.recv_into(_room)
        except BlockingIOError:
            return False
        except OSError as error:
            raise EOFError from error
        if not size:
            raise EOFError
        try:
            if self._handle is None:
                self._handle = os.pidfd_open(_hello(_room[:size]).pid)
                self.since = now
                return True
            answer = _answer(_room[:size])
        except (msgspec.DecodeError, OSError) as error:
            raise EOFError from error
        if not self.runs or self.runs[0].number != answer.number:
            raise EOFError
        self.since = now
        self.full = False
        self.runs.popleft().end(answer.finding)
        return True

    def take_back(self, keep: int) -> list[LuaRun]:
        """Its runs but the first `keep`, to be run elsewhere."""
        back = list(self.runs)[keep:]
        for _ in back:
            self.runs.pop()
        return back

    def kill(self) -> None:
        """End the child, whatever it is doing. Its reader must be gone from the loop."""
        self.connection.close()
        if self._handle is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            os.close(self._handle)
            self._handle = None
