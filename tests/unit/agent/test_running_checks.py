"""Each running check ends once, at its deadline at the latest, and one that hangs blocks no other."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from scale0.kernel.edge.thread_pool import ThreadPool
from scale0.monitoring.agent.core.plugin_command import MAX_ARGS_BYTES
from scale0.monitoring.agent.edge import running_checks as runs_module
from scale0.monitoring.agent.edge.running_checks import LEAST_CHECKS, Inline, InProcess, InThread, Run, RunningChecks
from scale0.monitoring.protocol.results import OK, CheckFinding
from tests.fakes.waiting import eventually

FINE = CheckFinding(OK, "fine")


class Book:
    """Findings by name, as they come."""

    def __init__(self) -> None:
        self.found: list[tuple[str, CheckFinding]] = []

    def take(self, name: str) -> Callable[[CheckFinding], None]:
        return lambda finding: self.found.append((name, finding))

    def names(self) -> list[str]:
        return [name for name, _ in self.found]

    async def wait(self, count: int) -> list[tuple[str, CheckFinding]]:
        await eventually(lambda: len(self.found) >= count)
        return self.found


def told(story: Callable[[asyncio.AbstractEventLoop, Book], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        await story(asyncio.get_running_loop(), Book())

    asyncio.run(run())


def table(**checks: Run) -> Callable[[str], Run | None]:
    return checks.get


def test_a_quick_check_answers_on_the_spot_with_its_times():
    async def story(loop: asyncio.AbstractEventLoop, book: Book) -> None:
        runs = RunningChecks(
            table(load=Inline(lambda args, timeout: CheckFinding(OK, f"{args!r} {timeout:g}"))), loop, 8
        )
        runs.start("load", b"{}", 3.0, book.take("load"))
        ((_, finding),) = book.found
        assert finding.message == "b'{}' 3"
        assert finding.started is not None
        assert finding.started == pytest.approx(time.time(), abs=5)
        assert finding.seconds is not None

    told(story)


# Promise: CHECK-1
def test_unknown_names_and_checks_that_raise_still_answer():
    def raises(args: bytes, timeout: float) -> CheckFinding:
        raise ZeroDivisionError("by zero")

    async def raises_later(args: bytes, timeout: float) -> CheckFinding:
        raise ZeroDivisionError("by zero, later")

    async def story(loop: asyncio.AbstractEventLoop, book: Book) -> None:
        checks = table(a=Inline(raises), b=InThread(raises), c=InProcess(raises_later))
        runs = RunningChecks(checks, loop, 8)
        for name in "abcd":
            runs.start(name, b"{}", 5.0, book.take(name))
        found = dict(await book.wait(4))
        assert {finding.state for finding in found.values()} == {"unknown"}
        assert "no check d" in found["d"].message
        assert "by zero" in found["a"].message
        assert "by zero" in found["b"].message
        assert "later" in found["c"].message

    told(story)


# Promise: CHECK-1
def test_a_check_that_hangs_is_answered_at_its_deadline_and_not_begun_again():
    let_go = threading.Event()

    def hangs(args: bytes, timeout: float) -> CheckFinding:
        let_go.wait(10)
        return FINE

    async def story(loop: asyncio.AbstractEventLoop, book: Book) -> None:
        runs = RunningChecks(table(nfs=InThread(hangs)), loop, 8)
        runs.start("nfs", b"{}", 0.05, book.take("first"))
        await book.wait(1)
        assert "within 0.05 s" in book.found[0][1].message
        runs.start("nfs", b"{}", 0.05, book.take("second"))
        assert "hangs" in book.found[1][1].message
        runs.start("nfs", b'{"path": "/other"}', 0.05, book.take("other"))
        await book.wait(3)
        let_go.set()
        await eventually(lambda: not runs._hanging)
        runs.start("nfs", b"{}", 5.0, book.take("third"))
        await book.wait(4)
        assert book.found[3][1].message == "fine"
        assert len(book.found) == 4, "each is answered once"

    told(story)


def test_at_least_eight_run_at_once_and_more_wait_their_turn():
    gate = asyncio.Event()
    running: set[bytes] = set()
    most = 0

    async def waits(args: bytes, timeout: float) -> CheckFinding:
        nonlocal most
        running.add(args)
        most = max(most, len(running))
        await gate.wait()
        running.discard(args)
        return FINE

    async def story(loop: asyncio.AbstractEventLoop, book: Book) -> None:
        runs = RunningChecks(table(slow=InProcess(waits), quick=Inline(lambda args, timeout: FINE)), loop, 1)
        for number in range(LEAST_CHECKS + 4):
            runs.start("slow", b"%d" % number, 5.0, book.take(f"slow {number}"))
        runs.start("quick", b"{}", 5.0, book.take("quick"))
        assert book.names() == ["quick"]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(running) == LEAST_CHECKS
        gate.set()
        await book.wait(LEAST_CHECKS + 5)
        assert most == LEAST_CHECKS
        assert len(set(book.names())) == LEAST_CHECKS + 5

    told(story)


# Promise: CHECK-1
def test_a_check_without_a_place_answers_so_at_its_deadline():
    async def waits(args: bytes, timeout: float) -> CheckFinding:
        await asyncio.sleep(timeout + 5)
        return FINE

    async def story(loop: asyncio.AbstractEventLoop, book: Book) -> None:
        runs = RunningChecks(table(slow=InProcess(waits)), loop, 8)
        for number in range(9):
            runs.start("slow", b"%d" % number, 0.05, book.take(str(number)))
        found = dict(await book.wait(9))
        assert "not started" in found["8"].message
        assert all("within" in found[str(number)].message for number in range(8))
        runs.close()
        await runs.closed()

    told(story)


def test_too_many_that_wait_are_answered_at_once(monkeypatch):
    monkeypatch.setattr(runs_module, "MAX_WAITING", 3)

    async def waits(args: bytes, timeout: float) -> CheckFinding:
        await asyncio.sleep(60)
        return FINE

    async def story(loop: asyncio.AbstractEventLoop, book: Book) -> None:
        runs = RunningChecks(table(slow=InProcess(waits)), loop, 8)
        for number in range(8 + 3 + 1):
            runs.start("slow", b"%d" % number, 30.0, book.take(str(number)))
        assert book.names() == ["11"]
        assert "waiting: 3" in book.found[0][1].message
        runs.close()
        await runs.closed()
        assert len(book.found) == 1

    told(story)


# Promise: CHECK-1
def test_a_launcher_that_hangs_with_its_check_is_not_waited_for():
    ended: list[bool] = []

    async def hangs(args: bytes, timeout: float) -> CheckFinding:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)
        return FINE

    async def story(loop: asyncio.AbstractEventLoop, book: Book) -> None:
        runs = RunningChecks(table(plugin=InProcess(hangs)), loop, 8)
        begun = loop.time()
        runs.start("plugin", b"{}", 0.05, book.take("plugin"))
        await book.wait(1)
        assert loop.time() - begun < 2
        await asyncio.sleep(0)
        assert ended == [True]

    told(story)


def test_threads_are_bounded_and_everything_is_done_in_the_end():
    lock = threading.Lock()
    running = most = 0

    def work() -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= 1
        return 1

    async def story(loop: asyncio.AbstractEventLoop, book: Book) -> None:
        threads = ThreadPool(3, loop)
        done: list[int] = []
        for _ in range(50):
            threads.do(work, lambda value, error: done.append(value))
        await eventually(lambda: len(done) == 50)
        assert most == 3
        assert sum(done) == 50

    told(story)


def test_arguments_of_checks_that_wait_are_bounded_all_together(monkeypatch):
    """Whoever asks for many checks at once, with long arguments each, must not fill this machine's memory."""
    monkeypatch.setattr(runs_module, "MAX_WAITING_BYTES", 100_000)

    async def story(loop: asyncio.AbstractEventLoop, book: Book) -> None:
        go = asyncio.Event()

        async def wait(_args: bytes, _timeout: float) -> CheckFinding:
            await go.wait()
            return FINE

        runs = RunningChecks(table(slow=InProcess(wait)), loop, LEAST_CHECKS)
        runs.start("slow", b"x" * (MAX_ARGS_BYTES + 1), 10.0, book.take("long"))
        assert "more than" in book.found.pop()[1].message
        for number in range(LEAST_CHECKS + 12):
            runs.start("slow", b"x" * 10_000, 10.0, book.take(str(number)))
        assert [name for name, _ in book.found] == ["18", "19"]
        assert "too many checks are waiting" in book.found[0][1].message
        go.set()
        await book.wait(LEAST_CHECKS + 12)
        runs.start("slow", b"x" * 10_000, 10.0, book.take("last"))
        await book.wait(LEAST_CHECKS + 13)
        assert book.found[-1][1].message == "fine"
        runs.close()

    told(story)
