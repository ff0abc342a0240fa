"""The Lua checks in the agent's `checks_dir`, run by a pool of Lua processes.

Invariants: a run ends in one CheckFinding, at its deadline at the latest; a run that takes too long is killed with its
process, and the runs queued behind it are executed elsewhere at once; only the run that a process was executing fails
when the process dies.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from typing import Final

from scale0.kernel.errors import Refusal
from scale0.monitoring.agent.core.plugin_command import MAX_ARGS_BYTES
from scale0.monitoring.agent.edge.lua_connection import LuaConnection, LuaRun
from scale0.monitoring.agent.edge.lua_files import LuaFiles
from scale0.monitoring.agent.edge.process_launcher import ProcessLauncher
from scale0.monitoring.protocol.results import UNKNOWN, CheckFinding

WORKERS: Final = max(1, min(4, os.cpu_count() or 1))
"""Processes that share the work as long as each run is quick."""
MAX_CHILDREN: Final = 64
"""Processes, including those with a long run."""
MAX_QUEUE: Final = 32
"""Runs that one process has at once."""
LONG_SECONDS: Final = 0.1
"""A run that takes longer keeps its process for itself: the runs queued behind it are moved elsewhere."""
TICK_SECONDS: Final = 0.02
"""How often processes are checked while they work."""
IDLE_SECONDS: Final = 60.0
"""A process that was idle for this long is ended."""
MAX_TRIES: Final = 3
"""Processes that may die before they begin with a run; then it fails."""
MAX_RECEIVED: Final = 64
"""Answers read from one process before other events are handled."""


class LuaChecks:
    def __init__(self, folder: str | os.PathLike[str], user: str = "", most: int = MAX_CHILDREN) -> None:
        """`user`: runs them if the agent is root; blank is nobody. `most`: processes at once. Raises ConfigError."""
        self._most = most
        self._files = LuaFiles(folder)
        self._launcher = ProcessLauncher("lua", user)
        self._children: list[LuaConnection] = []
        self._waiting: deque[LuaRun] = deque()
        self._number = 0
        self._dispatching = False
        self._timer: asyncio.TimerHandle | None = None
        self._working = False
        """The timer is for busy processes; otherwise for idle ones."""
        self._closed = False

    @property
    def names(self) -> tuple[str, ...]:
        return self._files.names

    async def run(self, name: str, args: bytes, timeout: float) -> CheckFinding:
        started = time.time()
        try:
            source = self._files.source(name)
        except Refusal as refusal:
            return CheckFinding(UNKNOWN, refusal.message, (), started, 0.0)
        if len(args) > MAX_ARGS_BYTES:
            return CheckFinding(UNKNOWN, f"the arguments have more than {MAX_ARGS_BYTES} bytes", (), started, 0.0)
        loop = asyncio.get_running_loop()
        self._number += 1
        run = LuaRun(self._number, name, source, args, timeout)
        run.started = started
        run.begun = loop.time()
        run.deadline = run.begun + timeout
        run.ended = loop.create_future()
        self._waiting.append(run)
        if not self._dispatching:  # all requests of this iteration of the event loop are sent together
            self._dispatching = True
            loop.call_soon(self._dispatch, loop)
        return await run.ended

    def reload(self) -> None:
        """Read every file again, and end each process after its current run."""
        self._files.forget()
        loop = asyncio.get_running_loop()
        for child in list(self._children):
            self._waiting.extendleft(reversed(child.take_back(1)))
            child.closing = True
            if not child.runs:
                self._end(child, loop)
        self._dispatch(loop)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._children or self._waiting:
            loop = asyncio.get_running_loop()
            for child in list(self._children):
                self._waiting.extend(child.runs)
                self._end(child, loop)
            for run in self._waiting:
                run.fail("the agent is stopping", loop.time())
            self._waiting.clear()
        self._launcher.close()

    def _dispatch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._dispatching = False
        now = loop.time()
        given: list[LuaConnection] = []
        while self._waiting and not self._closed:
            child = self._choose(loop, now)
            if child is None:
                break
            child.add(self._waiting.popleft(), now)
            if child not in given:
                given.append(child)
        for child in given:
            self._waiting.extendleft(reversed(child.flush()))
        if not self._working and (given or self._waiting):
            self._set_timer(loop, True)

    def _choose(self, loop: asyncio.AbstractEventLoop, now: float) -> LuaConnection | None:
        """An idle process, a new one while there are few, or the one with the shortest queue; None: all are busy."""
        best: LuaConnection | None = None
        quick = 0
        for child in self._children:
            if child.closing or child.full:
                continue
            if not child.runs:
                return child
            if now - child.since <= LONG_SECONDS or not child.ready:
                quick += 1
                if len(child.runs) < MAX_QUEUE and (best is None or len(child.runs) < len(best.runs)):
                    best = child
        if quick < WORKERS and len(self._children) < self._most:
            return self._start_child(loop, now) or best
        return best

    def _start_child(self, loop: asyncio.AbstractEventLoop, now: float) -> LuaConnection | None:
        try:
            child = LuaConnection(self._launcher.start_child())
        except OSError as error:
            if not self._children:  # no process will ever take them: fail at once
                while self._waiting:
                    self._waiting.popleft().fail(f"no Lua process could be started: {error.strerror or error}", now)
            return None
        child.idle_since = now
        self._children.append(child)
        loop.add_reader(child.connection, self._receive, child, loop)
        return child

    def _receive(self, child: LuaConnection, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        try:
            for _ in range(MAX_RECEIVED):
                if not child.receive(now):
                    break
        except EOFError:
            self._lost(child, loop)
            return
        if not child.runs:
            child.idle_since = now
        if child.closing and not child.runs:
            self._end(child, loop)
        if self._waiting and not self._dispatching:
            self._dispatching = True
            loop.call_soon(self._dispatch, loop)

    def _lost(self, child: LuaConnection, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        if child.runs and child.ready:
            child.runs.popleft().fail("the Lua process died during the run: it may have run out of memory", now)
        back = []
        for run in child.take_back(0):
            run.tries += 0 if child.ready else 1
            if run.tries >= MAX_TRIES:
                run.fail("no Lua process could be started", now)
            else:
                back.append(run)
        self._waiting.extendleft(reversed(back))
        self._end(child, loop)
        self._dispatch(loop)

    def _end(self, child: LuaConnection, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(child.connection)
        child.kill()
        self._children.remove(child)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """End idle processes, and runs that take too long."""
        now = loop.time()
        busy = False
        for child in list(self._children):
            if not child.runs:
                if now - child.idle_since > IDLE_SECONDS:
                    self._end(child, loop)
                continue
            busy = True
            first = child.runs[0]
            if now >= first.deadline:
                took = f"killed: it took longer than {first.timeout:g} s"
                first.fail(took if child.ready else f"no Lua process was ready within {first.timeout:g} s", now)
                self._waiting.extendleft(reversed(child.take_back(1)))
                self._end(child, loop)
            elif child.ready and len(child.runs) > 1 and now - child.since > LONG_SECONDS:
                self._waiting.extendleft(reversed(child.take_back(1)))
                child.closing = True  # it has received them already, and must not execute them too
        while self._waiting and now >= min(run.deadline for run in self._waiting):
            late = min(self._waiting, key=lambda run: run.deadline)
            self._waiting.remove(late)
            late.fail(f"not started within {late.timeout:g} s", now)
        self._working = False
        if self._waiting:
            self._dispatch(loop)
        if not self._working:
            self._set_timer(loop, busy)

    def _set_timer(self, loop: asyncio.AbstractEventLoop, working: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._working = working
        if self._children or self._waiting:
            self._timer = loop.call_later(TICK_SECONDS if working else IDLE_SECONDS / 4, self._tick, loop)
