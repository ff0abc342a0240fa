"""Checks in hand: each ends, whatever it does.

Lives here: how many run at once, who waits, and the deadline of each. Never here: what a check measures, who asked for
it, or the wire. Invariants: each check that is given ends in exactly one Finding, at its deadline at the latest; a
check that hangs costs one place until it ends, and is not started a second time meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from scale0.kernel.log_context import about
from scale0.monitoring.agent.core.plugin_command import MAX_ARGS_BYTES
from scale0.monitoring.agent.edge.thread_pool import ThreadPool
from scale0.monitoring.protocol.results import UNKNOWN, CheckFinding

log = logging.getLogger("scale0.agent")

MAX_CHECKS: Final = 64
"""Checks that run at once."""
LEAST_CHECKS: Final = 8
"""An agent runs at least so many at once, whatever its file says."""
MAX_WAITING: Final = 1_000
"""Checks that wait for a place; more are answered at once, with the reason."""
MAX_WAITING_BYTES: Final = 4 * 1024 * 1024
"""Arguments of these, all together."""
KILL_SECONDS: Final = 0.5
"""A check in a process of its own is ended by its launcher at its deadline, who knows best how; after so much more we
stop waiting for that."""

Then = Callable[[CheckFinding], None]


class Inline(msgspec.Struct, frozen=True):
    """A check so quick that it is done on the spot."""

    run: Callable[[bytes, float], CheckFinding]


class InThread(msgspec.Struct, frozen=True):
    """A check that waits for something, in a thread."""

    run: Callable[[bytes, float], CheckFinding]


class InProcess(msgspec.Struct, frozen=True):
    """A check in a process of its own."""

    run: Callable[[bytes, float], Awaitable[CheckFinding]]


Run = Inline | InThread | InProcess


class _Asked:
    """A check that has not ended."""

    __slots__ = ("args", "begun", "name", "run", "started", "task", "then", "timeout", "timer")

    def __init__(self, name: str, args: bytes, timeout: float, run: InThread | InProcess, then: Then) -> None:
        self.name = name
        self.args = args
        self.timeout = timeout
        self.run = run
        self.then: Then | None = then
        """None: it has been answered."""
        self.begun = time.monotonic()
        self.started = time.time()
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None


class RunningChecks:
    """All checks that have not ended."""

    def __init__(self, find: Callable[[str], Run | None], loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._find = find
        self._loop = loop
        self._limit = max(LEAST_CHECKS, limit)
        self._threads = ThreadPool(self._limit, loop)
        self._running = 0
        self._waiting: deque[_Asked] = deque()
        self._waiting_bytes = 0
        self._hanging: set[tuple[str, bytes]] = set()
        """Checks that were answered at their deadline, and still hold a thread."""
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, name: str, args: bytes, timeout: float, then: Then) -> None:
        """Run a check; `then` gets its Finding, at once or later, and once only."""
        run = self._find(name)
        if run is None:
            then(now_unknown(f"this agent has no check {name}"))
        elif isinstance(run, Inline):
            then(self._done_inline(name, run, args, timeout))
        elif (name, args) in self._hanging:
            then(now_unknown("its last run has not ended yet: it hangs"))
        elif len(args) > MAX_ARGS_BYTES:
            then(now_unknown(f"the arguments have {len(args)} bytes, more than {MAX_ARGS_BYTES}"))
        elif len(self._waiting) >= MAX_WAITING or self._waiting_bytes + len(args) > MAX_WAITING_BYTES:
            then(now_unknown(f"{len(self._waiting)} checks wait already"))
        else:
            asked = _Asked(name, args, timeout, run, then)
            asked.timer = self._loop.call_later(timeout, self._expire, asked)
            self._waiting.append(asked)
            self._waiting_bytes += len(args)
            self._go_on()

    def close(self) -> None:
        """Stop everything; nobody is answered any more."""
        for asked in self._waiting:
            if asked.timer is not None:
                asked.timer.cancel()
        self._waiting.clear()
        self._waiting_bytes = 0
        for task in self._tasks:
            task.cancel()

    async def closed(self) -> None:
        """After `close`: until nothing runs but threads."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done_inline(self, name: str, run: Inline, args: bytes, timeout: float) -> CheckFinding:
        started, begun = time.time(), time.monotonic()
        try:
            finding = run.run(args, timeout)
        except Exception as error:
            finding = crashed(name, error)
        return dated(finding, started, time.monotonic() - begun)

    def _go_on(self) -> None:
        """Begin what there is room for."""
        while self._waiting and self._running < self._limit:
            asked = self._waiting.popleft()
            self._waiting_bytes -= len(asked.args)
            if asked.then is None:
                continue
            self._running += 1
            left = max(0.0, asked.begun + asked.timeout - time.monotonic())
            asked.started = time.time()
            if isinstance(asked.run, InThread):
                self._in_thread(asked, asked.run, left)
            else:
                asked.task = self._loop.create_task(self._elsewhere(asked, asked.run, left))
                self._tasks.add(asked.task)
                asked.task.add_done_callback(self._tasks.discard)

    def _in_thread(self, asked: _Asked, run: InThread, left: float) -> None:
        def done(value: CheckFinding, error: BaseException | None) -> None:
            self._hanging.discard((asked.name, asked.args))
            self._end(asked, value if error is None else crashed(asked.name, error))
            self._leave()

        self._threads.do(lambda: run.run(asked.args, left), done)

    async def _elsewhere(self, asked: _Asked, run: InProcess, left: float) -> None:
        try:
            finding = await run.run(asked.args, left)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            finding = crashed(asked.name, error)
        finally:
            self._leave()
        self._end(asked, finding)

    def _leave(self) -> None:
        self._running -= 1
        self._go_on()

    def _end(self, asked: _Asked, finding: CheckFinding) -> None:
        if asked.timer is not None:
            asked.timer.cancel()
            asked.timer = None
        then, asked.then = asked.then, None
        if then is not None:
            then(dated(finding, asked.started, time.monotonic() - asked.begun))

    def _expire(self, asked: _Asked) -> None:
        """Its time is over: answer, whatever it does."""
        if asked in self._waiting:
            self._waiting.remove(asked)
            self._waiting_bytes -= len(asked.args)
            self._end(asked, CheckFinding(UNKNOWN, f"no place to run in {asked.timeout:g} s: too many checks at once"))
        elif asked.task is None:
            self._hanging.add((asked.name, asked.args))
            self._end(asked, late(asked.timeout))
        elif asked.then is not None:
            # Whoever runs it ends it just now, and may know more than that it is late; but not for long.
            asked.timer = self._loop.call_later(KILL_SECONDS, self._give_up, asked)

    def _give_up(self, asked: _Asked) -> None:
        self._end(asked, late(asked.timeout))
        if asked.task is not None:
            asked.task.cancel()


def late(timeout: float) -> CheckFinding:
    """The answer of a check that outlasted its time."""
    return CheckFinding(UNKNOWN, f"no answer within {timeout:g} s")


def crashed(name: str, error: BaseException) -> CheckFinding:
    """The answer of a check that raised: a fault of ours, so it is also logged."""
    log.error("the check %s failed by itself", name, exc_info=error, extra=about(check=name))
    return CheckFinding(UNKNOWN, f"the check failed: {type(error).__name__}: {error}")


def now_unknown(reason: str) -> CheckFinding:
    """The answer of a check that was not begun."""
    return dated(CheckFinding(UNKNOWN, reason), time.time(), 0.0)


def dated(finding: CheckFinding, started: float, seconds: float) -> CheckFinding:
    """The finding with its times, where it has none of its own."""
    if finding.started is not None and finding.seconds is not None:
        return finding
    return msgspec.structs.replace(finding, started=round(started, 6), seconds=round(seconds, 6))
