"""Each running check ends once, at its deadline at the latest, and one that hangs blocks no other."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from scale0.kernel.edge.thread_pool import ThreadPool
from scale0.monitoring.agent.core.plugin_command import MAX_ARGS_BYTES
from scale0.monitoring.agent.edge import running_checks as runs_module
from scale0.monitoring.agent.edge.running_checks import LEAST_CHECKS, Inline, InProcess, InThread, Run, RunningChecks
from scale0.monitoring.protocol.results import OK, CheckFinding
from tests.fakes.waiting import eventually

FINE = CheckFinding(OK, "fine")


class Findings:
    """By name, in the order in which they came."""

    def __init__(self) -> None:
        self.found: list[tuple[str, CheckFinding]] = []

    def take(self, name: str) -> Callable[[CheckFinding], None]:
        return lambda finding: self.found.append((name, finding))

    def names(self) -> list[str]:
        return [name for name, _ in self.found]

    async def wait(self, count: int) -> list[tuple[str, CheckFinding]]:
        await eventually(lambda: len(self.found) >= count)
        return self.found


@pytest.fixture
def findings() -> Findings:
    return Findings()


def new_runs(most: int = 8, **checks: Run) -> RunningChecks:
    return RunningChecks(checks.get, asyncio.get_running_loop(), most)


async def test_a_quick_check_answers_on_the_spot_with_its_times(findings: Findings):
    runs = new_runs(load=Inline(lambda args, timeout: CheckFinding(OK, f"{args!r} {timeout:g}")))
    runs.start("load", b"{}", 3.0, findings.take("load"))
    ((_, finding),) = findings.found
    assert finding.message == "b'{}' 3"
    assert finding.started is not None
    assert finding.started == pytest.approx(time.time(), abs=5)
    assert finding.seconds is not None


# Promise: CHECK-1
async def test_unknown_names_and_checks_that_raise_still_answer(findings: Findings):
    def raises(args: bytes, timeout: float) -> CheckFinding:
        raise ZeroDivisionError("by zero")

    async def raises_later(args: bytes, timeout: float) -> CheckFinding:
        raise ZeroDivisionError("by zero, later")

    runs = new_runs(a=Inline(raises), b=InThread(raises), c=InProcess(raises_later))
    for name in "abcd":
        runs.start(name, b"{}", 5.0, findings.take(name))
    found = dict(await findings.wait(4))
    assert {finding.state for finding in found.values()} == {"unknown"}
    assert "no check d" in found["d"].message
    assert "by zero" in found["a"].message
    assert "by zero" in found["b"].message
    assert "later" in found["c"].message


# Promise: CHECK-1
async def test_a_check_that_hangs_is_answered_at_its_deadline_and_not_begun_again(findings: Findings):
    let_go = threading.Event()

    def hangs(args: bytes, timeout: float) -> CheckFinding:
        let_go.wait(10)
        return FINE

    runs = new_runs(nfs=InThread(hangs))
    runs.start("nfs", b"{}", 0.05, findings.take("first"))
    await findings.wait(1)
    assert "within 0.05 s" in findings.found[0][1].message
    runs.start("nfs", b"{}", 0.05, findings.take("second"))
    assert "hangs" in findings.found[1][1].message
    runs.start("nfs", b'{"path": "/other"}', 0.05, findings.take("other"))
    await findings.wait(3)
    let_go.set()
    await eventually(lambda: not runs._hanging)
    runs.start("nfs", b"{}", 5.0, findings.take("third"))
    await findings.wait(4)
    assert findings.found[3][1].message == "fine"
    assert len(findings.found) == 4, "each is answered once"


async def test_at_least_eight_run_at_once_and_more_wait_their_turn(findings: Findings):
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

    runs = new_runs(1, slow=InProcess(waits), quick=Inline(lambda args, timeout: FINE))
    for number in range(LEAST_CHECKS + 4):
        runs.start("slow", b"%d" % number, 5.0, findings.take(f"slow {number}"))
    runs.start("quick", b"{}", 5.0, findings.take("quick"))
    assert findings.names() == ["quick"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(running) == LEAST_CHECKS
    gate.set()
    await findings.wait(LEAST_CHECKS + 5)
    assert most == LEAST_CHECKS
    assert len(set(findings.names())) == LEAST_CHECKS + 5


# Promise: CHECK-1
async def test_a_check_without_a_place_answers_so_at_its_deadline(findings: Findings):
    async def waits(args: bytes, timeout: float) -> CheckFinding:
        await asyncio.sleep(timeout + 5)
        return FINE

    runs = new_runs(slow=InProcess(waits))
    for number in range(9):
        runs.start("slow", b"%d" % number, 0.05, findings.take(str(number)))
    found = dict(await findings.wait(9))
    assert "not started" in found["8"].message
    assert all("within" in found[str(number)].message for number in range(8))
    runs.close()
    await runs.closed()


async def test_too_many_that_wait_are_answered_at_once(findings: Findings, monkeypatch):
    monkeypatch.setattr(runs_module, "MAX_WAITING", 3)

    async def waits(args: bytes, timeout: float) -> CheckFinding:
        await asyncio.sleep(60)
        return FINE

    runs = new_runs(slow=InProcess(waits))
    for number in range(8 + 3 + 1):
        runs.start("slow", b"%d" % number, 30.0, findings.take(str(number)))
    assert findings.names() == ["11"]
    assert "waiting: 3" in findings.found[0][1].message
    runs.close()
    await runs.closed()
    assert len(findings.found) == 1


# Promise: CHECK-1
async def test_a_launcher_that_hangs_with_its_check_is_not_waited_for(findings: Findings):
    ended: list[bool] = []

    async def hangs(args: bytes, timeout: float) -> CheckFinding:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)
        return FINE

    runs = new_runs(plugin=InProcess(hangs))
    begun = time.monotonic()
    runs.start("plugin", b"{}", 0.05, findings.take("plugin"))
    await findings.wait(1)
    assert time.monotonic() - begun < 2
    await asyncio.sleep(0)
    assert ended == [True]


async def test_threads_are_bounded_and_everything_is_done_in_the_end(findings: Findings):
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

    threads = ThreadPool(3, asyncio.get_running_loop())
    done: list[int] = []
    for _ in range(50):
        threads.do(work, lambda value, error: done.append(value))
    await eventually(lambda: len(done) == 50)
    assert most == 3
    assert sum(done) == 50


async def test_arguments_of_checks_that_wait_are_bounded_all_together(findings: Findings, monkeypatch):
    """Whoever asks for many checks at once, with long arguments each, must not fill this machine's memory."""
    monkeypatch.setattr(runs_module, "MAX_WAITING_BYTES", 100_000)

    go = asyncio.Event()

    async def wait(_args: bytes, _timeout: float) -> CheckFinding:
        await go.wait()
        return FINE

    runs = new_runs(LEAST_CHECKS, slow=InProcess(wait))
    runs.start("slow", b"x" * (MAX_ARGS_BYTES + 1), 10.0, findings.take("long"))
    assert "more than" in findings.found.pop()[1].message
    for number in range(LEAST_CHECKS + 12):
        runs.start("slow", b"x" * 10_000, 10.0, findings.take(str(number)))
    assert [name for name, _ in findings.found] == ["18", "19"]
    assert "too many checks are waiting" in findings.found[0][1].message
    go.set()
    await findings.wait(LEAST_CHECKS + 12)
    runs.start("slow", b"x" * 10_000, 10.0, findings.take("last"))
    await findings.wait(LEAST_CHECKS + 13)
    assert findings.found[-1][1].message == "fine"
    runs.close()
