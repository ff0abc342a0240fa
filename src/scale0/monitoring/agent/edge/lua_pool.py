"""Lua checks of the agent's `checks_dir`, run by pooled children.

Lives here: which child runs what, and when one is given up. Never here: Lua (`lua_child`), or the wire (`lua_line`).
Invariants: a run ends in one Finding, at its deadline at the latest; a run that takes too long is killed with its
child, and whatever waited behind it runs elsewhere, at once; only the run that a child was busy with is blamed for the
child's death.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from typing import Final

from scale0.kernel.errors import Refusal
from scale0.monitoring.agent.core.plugin_command import MAX_ARGS_BYTES
from scale0.monitoring.agent.edge.check_user import user_of
from scale0.monitoring.agent.edge.lua_connection import LuaConnection, LuaRun
from scale0.monitoring.agent.edge.lua_files import LuaFiles
from scale0.monitoring.agent.edge.process_launcher import ProcessLauncher
from scale0.monitoring.protocol.results import UNKNOWN, CheckFinding

WORKERS: Final = max(1, min(4, os.cpu_count() or 1))
"""Children that share the work as long as each run is quick."""
MAX_CHILDREN: Final = 64
"""With those whose run takes long."""
MAX_QUEUE: Final = 32
"""Runs that one child is given at once."""
LONG_SECONDS: Final = 0.1
"""A run that takes longer has its child for itself: who waits behind it goes elsewhere."""
TICK_SECONDS: Final = 0.02
"""How often children are looked at while they work."""
IDLE_SECONDS: Final = 60.0
"""A child that had nothing to do for so long ends."""
MAX_TRIES: Final = 3
"""Children that may die before they begin with a run."""
MAX_RECEIVED: Final = 64
"""Answers that are taken from one child before others get their turn."""


class LuaChecks:
    """The Lua checks that this agent may run."""

    def __init__(self, folder: str | os.PathLike[str], user: str = "", most: int = MAX_CHILDREN) -> None:
        """`user`: whom they run as where the agent is root; blank is nobody. `most`: children. Raises ConfigError."""
        self._most = most
        self._files = LuaFiles(folder)
        self._nursery = ProcessLauncher("lua", user_of(user))
        self._children: list[LuaConnection] = []
        self._waiting: deque[LuaRun] = deque()
        self._number = 0
        self._dispatching = False
        self._timer: asyncio.TimerHandle | None = None
        self._working = False
        """The timer is for children that work; otherwise for those at rest."""
        self._closed = False

    @property
    def names(self) -> tuple[str, ...]:
        """Of the files that are there now."""
        return self._files.names

    async def start(self) -> None:
        """Nothing yet: the launcher is started by the first run."""

    async def run(self, name: str, args: bytes, timeout: float) -> CheckFinding:
        """Run it once."""
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
        if not self._dispatching:  # all that is asked for in this turn of the loop goes out together
            self._dispatching = True
            loop.call_soon(self._dispatch, loop)
        return await run.ended

    def reload(self) -> None:
        """Read every file again, and let nothing old survive: each child ends after the run that it is busy with."""
        self._files.forget()
        loop = asyncio.get_running_loop()
        for child in list(self._children):
            self._waiting.extendleft(reversed(child.take_back(1)))
            child.last = True
            if not child.runs:
                self._end(child, loop)
        self._dispatch(loop)

    def close(self) -> None:
        """Kill every child, and end the launcher."""
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
                run.fail("the agent stops", loop.time())
            self._waiting.clear()
        self._nursery.close()

    def _dispatch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give what waits to children."""
        self._dispatching = False
        now = loop.time()
        given: list[LuaConnection] = []
        while self._waiting and not self._closed:
            child = self._choose(loop, now)
            if child is None:
                break
            child.give(self._waiting.popleft(), now)
            if child not in given:
                given.append(child)
        for child in given:
            self._waiting.extendleft(reversed(child.flush()))
        if not self._working and (given or self._waiting):
            self._look_after(loop, True)

    def _choose(self, loop: asyncio.AbstractEventLoop, now: float) -> LuaConnection | None:
        """An idle child, or a new one while there are few, or the one with the least to do; None: all are busy."""
        best: LuaConnection | None = None
        quick = 0
        for child in self._children:
            if child.last or child.full:
                continue
            if not child.runs:
                return child
            if now - child.since <= LONG_SECONDS or not child.ready:
                quick += 1
                if len(child.runs) < MAX_QUEUE and (best is None or len(child.runs) < len(best.runs)):
                    best = child
        if quick < WORKERS and len(self._children) < self._most:
            return self._begin(loop, now) or best
        return best

    def _begin(self, loop: asyncio.AbstractEventLoop, now: float) -> LuaConnection | None:
        try:
            child = LuaConnection(self._nursery.child())
        except OSError as error:
            if not self._children:  # nobody else will do it: say so instead of waiting
                while self._waiting:
                    self._waiting.popleft().fail(f"no process could be started: {error.strerror or error}", now)
            return None
        child.idle_since = now
        self._children.append(child)
        loop.add_reader(child.connection, self._hear, child, loop)
        return child

    def _hear(self, child: LuaConnection, loop: asyncio.AbstractEventLoop) -> None:
        """Answers of a child."""
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
        if child.last and not child.runs:
            self._end(child, loop)
        if self._waiting and not self._dispatching:
            self._dispatching = True
            loop.call_soon(self._dispatch, loop)

    def _lost(self, child: LuaConnection, loop: asyncio.AbstractEventLoop) -> None:
        """A child died by itself."""
        now = loop.time()
        if child.runs and child.ready:
            child.runs.popleft().fail("the process that ran it died: it may have needed too much memory", now)
        back = []
        for run in child.take_back(0):
            run.tries += 0 if child.ready else 1
            if run.tries >= MAX_TRIES:
                run.fail("no process could be started", now)
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
        """Look who takes too long."""
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
                first.fail(took if child.ready else f"no process was ready in {first.timeout:g} s", now)
                self._waiting.extendleft(reversed(child.take_back(1)))
                self._end(child, loop)
            elif child.ready and len(child.runs) > 1 and now - child.since > LONG_SECONDS:
                self._waiting.extendleft(reversed(child.take_back(1)))
                child.last = True  # it has read them already: it must not run them a second time
        while self._waiting and now >= min(run.deadline for run in self._waiting):
            late = min(self._waiting, key=lambda run: run.deadline)
            self._waiting.remove(late)
            late.fail(f"no place to run in {late.timeout:g} s", now)
        self._working = False
        if self._waiting:
            self._dispatch(loop)
        if not self._working:
            self._look_after(loop, busy)

    def _look_after(self, loop: asyncio.AbstractEventLoop, working: bool) -> None:
        """Look at them again: soon, or, at rest, only to see how long they have been."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._working = working
        if self._children or self._waiting:
            self._timer = loop.call_later(TICK_SECONDS if working else IDLE_SECONDS / 4, self._tick, loop)
