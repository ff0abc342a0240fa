"""`scale0 chaos`: what it would notice, and that a killed network keeps what it acknowledged."""

# Promise: CLI-2
# Promise: CLI-4
from __future__ import annotations

import itertools
import json
import signal
from collections import Counter
from typing import Any

import psutil
import pytest

from scale0.cli.demo.audit import (
    ChaosReport,
    JournalFacts,
    Killed,
    RecordedRuns,
    SubmittedTask,
    TaskEnd,
    duration_stats,
    judge,
)
from scale0.cli.demo.chaos import BROKER, FEW, KINDS, kills, kinds
from tests.fakes.shell import Shell
from tests.fakes.waiting import until

pytestmark = pytest.mark.extended

GOOD = TaskEnd("finished", {"number": 0, "run": "r"})
COMPLETED = {"kind": "task.completed", "ref": "a", "time": 5_000_000, "state": "finished", "identity": "w"}
RUN = ("begun 0 r 1 1.0 7", "ended 0 r 1 2.0 7")


def entry(kind: str = "quick", number: int = 0, **changes: Any) -> SubmittedTask:
    made = SubmittedTask(number, 0.0, kind, KINDS[kind].ends, KINDS[kind].max_attempts)
    made.id, made.result, made.stored = "a", GOOD, GOOD
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def judged(
    *entries: SubmittedTask,
    events: tuple[dict[str, Any], ...] = (COMPLETED,),
    lines: tuple[str, ...] = RUN,
    **more: Any,
) -> ChaosReport:
    return judge(entries, JournalFacts(events), RecordedRuns(lines), more.get("killed", ()), more.get("crashed", ()))


def test_a_task_on_whose_end_everybody_agrees_is_finished():
    report = judged(entry())
    assert report.kept
    assert (report.accepted, report.finished, report.lost, report.duplicated) == (1, 1, 0, 0)


@pytest.mark.parametrize(
    ("changes", "events"),
    [
        ({"result": None}, (COMPLETED,)),
        ({"stored": None}, (COMPLETED,)),
        ({"stored": TaskEnd("unknown", None, -32020)}, (COMPLETED,)),
        ({}, ()),
    ],
)
def test_an_acknowledged_task_that_somebody_does_not_know_is_lost(changes, events):
    report = judged(entry(**changes), events=events)
    assert (report.lost, report.kept) == (1, False)
    assert len(report.examples["lost"]) == 1


def test_what_nobody_acknowledged_is_not_lost():
    report = judged(entry(id=None, result=None, stored=None), events=())
    assert (report.unanswered, report.lost, report.kept) == (1, 0, True)


@pytest.mark.parametrize(
    ("changes", "events", "lines"),
    [
        ({"stored": TaskEnd("finished", {"number": 0, "run": "other"})}, (COMPLETED,), RUN),
        ({"stored": TaskEnd("failed", None, -32000)}, (COMPLETED,), RUN),
        ({}, (COMPLETED, COMPLETED), RUN),
        ({"other_id": "b"}, (COMPLETED,), RUN),
        ({}, (COMPLETED,), ()),
        ({}, (COMPLETED,), ("begun 0 r 1 1.0 7",)),
    ],
)
def test_a_task_with_two_ends_or_one_that_nobody_gave_is_noticed(changes, events, lines):
    report = judged(entry(**changes), events=events, lines=lines)
    assert (report.duplicated, report.kept) == (1, False)


def test_a_failure_is_expected_or_not():
    failed = TaskEnd("failed", None, -32000)
    assert judged(entry("failing", result=failed, stored=failed)).failed_as_expected == 1
    report = judged(entry("quick", result=failed, stored=failed))
    assert (report.failed, report.kept) == (1, False)


def test_a_follower_that_began_too_soon_is_out_of_order():
    lines = ("begun 1 s 1 1.5 7", *RUN)
    first, second = entry(), entry("chained", 1, after=0, result=TaskEnd("finished", {"number": 1, "run": "s"}))
    assert judged(first, second, lines=lines).out_of_order == 1
    assert judged(first, second, lines=("begun 1 s 1 2.5 7", *RUN)).out_of_order == 0


def test_executions_beyond_max_attempts_are_counted_and_half_a_line_is_not():
    lines = [f"begun 0 r{number} {number} 1.0 7" for number in range(1, FEW + 2)]
    failed = TaskEnd("failed", None, -32000)
    report = judged(entry("failing", result=failed, stored=failed), lines=(*lines, "begun 0"))
    assert (report.beyond_max_attempts, report.executions) == (1, FEW + 1)


def test_a_process_that_ends_by_itself_breaks_the_promise():
    assert not judged(entry(), crashed=("broker ended by itself with 1",)).kept


def test_recovery_is_counted_from_the_kill_to_what_was_recorded_next():
    lost = {"kind": "task.attempt_ended", "ref": "a", "state": "lost", "identity": "worker-1.1", "time": 4_500_000}
    report = judged(
        entry(), events=(lost, COMPLETED), killed=(Killed("worker", "worker-1.1", 2.0), Killed("broker", BROKER, 4.0))
    )
    assert report.kills == {"worker": 1, "broker": 1}
    assert report.recovery["worker"].max == 3.0
    assert report.recovery["broker"].max == 1.0
    assert report.recovery["taken_back"].max == 2.5
    assert duration_stats([]) == (0, None, None, None)
    assert duration_stats(list(range(101))) == (101, 50, 99, 100)


def test_the_same_seed_makes_the_same_plan_and_kills_both_parts():
    assert kills(7, 60, 3, 3.0) == kills(7, 60, 3, 3.0) != kills(8, 60, 3, 3.0)
    for seed in range(50):
        plan = kills(seed, 10, 2, 3.0)
        assert BROKER in [kill.victim for kill in plan]
        assert any(kill.victim != BROKER for kill in plan)
        assert all(0 <= kill.at <= 10 for kill in plan)
    seen = Counter(itertools.islice(kinds(7), 1_000))
    assert seen.keys() == KINDS.keys()
    assert seen == Counter(itertools.islice(kinds(7), 1_000))


def chaos(shell: Shell, seconds: float, *words: str) -> dict[str, Any]:
    done = shell.run("chaos", "--seconds", str(seconds), "--json", *words, seconds=seconds + 120)
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 0, json.dumps(report, indent=1)
    return report


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("seed", [3])
def test_a_network_that_is_killed_for_a_while_loses_nothing(confined, tmp_path, seed):
    report = chaos(confined, 8, "--seed", str(seed), "--kill-every", "1.5")
    assert (report["seed"], report["kept"], report["lost"], report["duplicated"]) == (seed, True, 0, 0)
    assert report["accepted"] > 300
    assert report["finished"] + report["failed_as_expected"] == report["accepted"]
    assert report["kills"]["broker"] >= 1
    assert report["kills"]["worker"] >= 1
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(240)
def test_a_network_that_is_killed_for_a_minute_loses_nothing(tmp_path):
    report = chaos(Shell(tmp_path), 60, "--keep", str(tmp_path / "kept"))
    assert report["kept"]
    assert report["accepted"] > 3_000
    assert (tmp_path / "kept" / "data" / "scale0.db").exists()


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("count", [1, 3, 4])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 1)])
def test_chaos_that_is_ended_takes_its_processes_and_its_folder_with_it(confined, tmp_path, number, code, count):
    with confined.background("chaos", "--workers", "2") as running:
        children = until(lambda: started(running.process.pid, count), "its processes have started")
        running.signal(number)
        assert running.wait() == code, running.output
    until(lambda: not any(child.is_running() for child in children), "the children are gone")
    assert list((tmp_path / "tmp").iterdir()) == []


def started(pid: int, count: int) -> list[psutil.Process]:
    """A broker, the child with which it writes segments, and two workers: four are all of them."""
    children = psutil.Process(pid).children(recursive=True)
    return children if len(children) >= count else []


@pytest.mark.processes
def test_a_folder_that_is_in_use_is_wrong_usage(tmp_path):
    assert "is not empty" in Shell(tmp_path).refuses("chaos", "--keep", str(tmp_path.parent), status=2)
