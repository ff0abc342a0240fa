"""What `scale0 demo` counts, and that every promise of it can be broken."""

# Promise: CLI-2
from __future__ import annotations

from typing import Any

import pytest

from scale0.cli.demo.audit import LoadRecord, RecordedRuns, RepeatedTasks, SubmittedTask, TaskEnd, longest_gap
from scale0.cli.demo.output import last_screen
from scale0.cli.demo.promises import (
    DemoObservations,
    DemoTimes,
    ObservedIncident,
    Promise,
    network_notes,
    network_promises,
    spark_notes,
    spark_promises,
)
from scale0.cli.demo.report import Computed, count

MARKS = DemoTimes(
    10.0, 15.0, broker_killed=15.0, broker_back=20.0, home=22.0, broker_killed_wall=1_015.0, broker_back_wall=1_020.0
)


def record() -> LoadRecord:
    """A call and a task every half second, from 0 to 25 s."""
    made = LoadRecord()
    for number in range(50):
        at = number / 2
        made.calls += 1
        made.call_answered(number, {"who": f"worker-{number % 3 + 1}", "number": number}, at - 0.1, at)
        entry = SubmittedTask(number, at)
        entry.id, entry.accepted_at, entry.ended_at = f"t{number}", at, at + 0.4
        entry.result = TaskEnd("finished", {"number": number})
        made.tasks.append(entry)
        made.accepted += 1
        made.finished += 1
    return made


def seen(**changes: Any) -> DemoObservations:
    made = DemoObservations(
        record(), MARKS, RepeatedTasks(2, ()), ObservedIncident(1_017.0, 1_021.0), first_calls_right=True
    )
    return made._replace(**changes)


def broken(these: Any) -> list[str]:
    return [promise.text for promise in these if not promise.kept]


def test_a_network_that_did_all_it_should_has_kept_every_promise():
    assert broken(network_promises(seen())) == []


def forget_a_task(it: LoadRecord) -> None:
    it.tasks[7].result = None


def swap_a_result(it: LoadRecord) -> None:
    it.tasks[7].result = TaskEnd("finished", {"number": 8})


def drop_a_call(it: LoadRecord) -> None:
    it.calls += 1


def be_silent(it: LoadRecord) -> None:
    it.answered_at = [at for at in it.answered_at if not 14.9 < at < 24.0]


def let_one_wait(it: LoadRecord) -> None:
    it.waits.append((14.0, 9.0))


def stop_counting(it: LoadRecord) -> None:
    it.tasks, it.accepted = [], 0


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (forget_a_task, "50 tasks acknowledged, 49 finished, 1 lost"),
        (swap_a_result, "50 tasks acknowledged, 49 finished, 1 lost"),
        (drop_a_call, "50 of 51 calls answered"),
        (be_silent, "the longest gap was 9.5 s"),
        (let_one_wait, "none waited longer than 9.0 s"),
        (stop_counting, "0 tasks acknowledged"),
    ],
)
def test_what_clients_saw_can_break_a_promise(spoil, words):
    found = seen()
    spoil(found.record)
    assert [words in text for text in broken(network_promises(found))].count(True) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"repeated": RepeatedTasks(2, (17,))}, "tasks ran twice although no process died with them: 17"),
        ({"incident": None}, "Helen did not open an incident"),
        ({"incident": ObservedIncident(1_017.0, None)}, "Helen opened an incident and did not close it"),
        ({"times": MARKS._replace(home=None)}, "not all of its clients returned"),
        ({"first_calls_right": False}, "50 of 50 calls answered"),
    ],
)
def test_what_else_was_seen_can_break_a_promise(changes, words):
    [text] = broken(network_promises(seen(**changes)))
    assert words in text


def test_a_task_that_a_dead_broker_had_may_run_twice_and_that_is_reported():
    found = seen(repeated=RepeatedTasks(2, (30,)))  # submitted at 15.0 s, when the broker was killed
    assert broken(network_promises(found)) == []
    [text] = [promise.text for promise in network_promises(found) if "ran twice" in promise.text]
    assert text == "3 ran twice: in flight at worker-1 when it was killed, and 1 in flight at demo-1"


def test_the_longest_gap_is_that_around_a_kill():
    times = [0.0, 1.0, 2.0, 6.5, 7.0, 20.0]
    assert longest_gap(times, 2.5, 6.0) == 4.5
    assert longest_gap(times, 0.5, 1.5) == 1.0
    assert longest_gap([], 1.0, 4.0) == 3.0


def test_only_a_run_that_a_kill_broke_off_explains_another():
    runs = ["begun 1 a 1 0.1 7", "ended 1 a 1 0.2 7", "begun 2 b 1 0.1 7", "begun 2 c 2 0.3 8", "ended 2 c 2 0.4 8"]
    runs += ["begun 3 d 1 0.1 7", "begun 3"]
    again = [*runs, "begun 1 e 2 0.3 8", "ended 1 e 2 0.4 8"]
    assert RecordedRuns(runs).repeated(frozenset({7})) == RepeatedTasks(1, ())
    assert RecordedRuns(again).repeated(frozenset({7})) == RepeatedTasks(1, (1,))
    assert RecordedRuns(runs).repeated(frozenset()) == RepeatedTasks(0, (2,))


def tables() -> tuple[dict[str, Any], list[Any]]:
    subjects = [
        ("broker", "demo-1", 1, 4.0),
        ("broker", "demo-2", 0, 0.0),
        ("client", "worker-1", 2, 9.0),
        ("check", "demo/demo-1-answers", 1, 5.0),
        ("check", "demo/memory", 0, 0.0),
    ]
    rows = {
        "tasks": [{"finished": 50, "retried": 2}],
        "requests": [{"service": "demo.work", "answered": 48}, {"service": "helen.check", "answered": 9}],
        "availability": [
            {"subject_kind": kind, "subject": name, "incidents": incidents, "down_seconds": down}
            for kind, name, incidents, down in subjects
        ],
    }
    ends = [("worker-1", "lost"), ("worker-1", "broker_lost"), ("worker-2", "broker_lost")]
    return rows, [{"identity": name, "role": "backend", "reason": reason} for name, reason in ends]


def test_what_spark_says_is_held_against_what_was_seen():
    rows, sessions = tables()
    computed = count(rows, sessions)
    assert computed == Computed(50, 2, 48, frozenset({"demo-1", "worker-1"}), {"demo/demo-1-answers": 5.0})
    assert broken(spark_promises(computed, seen())) == []
    for spoiled, words in (
        (computed._replace(finished=49), "49 tasks finished"),
        (computed._replace(retried=0), "50 tasks finished, 0 handed out again"),
        (computed._replace(died=frozenset({"demo-1"})), "the killed processes: demo-1"),
        (computed._replace(incidents={}), "is missing"),
    ):
        [text] = broken(spark_promises(spoiled, seen()))
        assert words in text
    assert "Spark counts 48 of those 50 calls" in next(spark_notes(computed, seen()))


def test_the_last_screen_fits_a_terminal_whatever_the_numbers_are():
    busy = record()
    for number in range(200_000):
        busy.calls += 1
        busy.call_answered(number, {"who": f"worker-{number % 3 + 1}", "number": number}, 12.0, 12.5)
    found = seen(record=busy)
    computed = count(*tables())
    promises = [*network_promises(found), *spark_promises(computed, found)]
    lines = last_screen(
        promises, [*network_notes(found), *spark_notes(computed, found)], (45.6, 131.2), "/tmp/page.html", "/tmp/x"
    )
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert lines[0] == "== Summary: every promise was kept (10 of 10; network 46 s, Spark 131 s)"
    lines = last_screen([*promises, Promise("it flies", False)], [], (45.6, 0.0), "", "")
    assert lines[0] == "== Summary: A PROMISE WAS BROKEN (10 of 11; network 46 s)"
    assert "BROKEN  it flies" in lines
