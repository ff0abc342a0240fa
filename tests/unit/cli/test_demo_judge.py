"""What `scale0 demo` counts, and that every promise of it can be broken."""

# Promise: CLI-2
from __future__ import annotations

from typing import Any

import pytest

from scale0.cli.demo.counts import CountedTask, DemoCounts, RepeatedTasks, longest_gap, ran_twice
from scale0.cli.demo.judge import (
    DemoObservations,
    DemoTimes,
    ObservedIncident,
    judged,
    notes,
    spark_is_right,
    spark_notes,
)
from scale0.cli.demo.output import Promise, last_screen
from scale0.cli.demo.report import Computed, count

MARKS = DemoTimes(
    10.0, 15.0, broker_killed=15.0, broker_back=20.0, home=22.0, broker_killed_wall=1_015.0, broker_back_wall=1_020.0
)


def ledger() -> DemoCounts:
    """A call and a task every half second, from 0 to 25 s."""
    made = DemoCounts()
    for number in range(50):
        at = number / 2
        made.asked += 1
        made.answered(number, {"who": f"worker-{number % 3 + 1}", "number": number}, at - 0.1, at)
        entry = CountedTask(number, at)
        entry.id, entry.accepted, entry.ended = f"t{number}", at, at + 0.4
        entry.result = {"number": number}
        made.entries.append(entry)
        made.accepted += 1
        made.finished += 1
    return made


def seen(**changes: Any) -> DemoObservations:
    made = DemoObservations(ledger(), MARKS, RepeatedTasks(2, ()), ObservedIncident(1_017.0, 1_021.0), greeted=True)
    return made._replace(**changes)


def broken(these: Any) -> list[str]:
    return [promise.text for promise in these if not promise.kept]


def test_a_network_that_did_all_it_should_has_kept_every_promise():
    assert broken(judged(seen())) == []


def forget_a_task(it: DemoCounts) -> None:
    it.entries[7].ended = None


def swap_a_result(it: DemoCounts) -> None:
    it.entries[7].result = {"number": 8}


def drop_a_call(it: DemoCounts) -> None:
    it.asked += 1


def be_silent(it: DemoCounts) -> None:
    it.answers = [at for at in it.answers if not 14.9 < at < 24.0]


def let_one_wait(it: DemoCounts) -> None:
    it.waits.append((14.0, 9.0))


def stop_counting(it: DemoCounts) -> None:
    it.entries, it.accepted = [], 0


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
    spoil(found.ledger)
    assert [words in text for text in broken(judged(found))].count(True) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"twice": RepeatedTasks(2, (17,))}, "tasks ran twice though nobody died with them: 17"),
        ({"incident": None}, "Helen never opened an incident"),
        ({"incident": ObservedIncident(1_017.0, None)}, "Helen opened an incident, and never closed it"),
        ({"marks": MARKS._replace(home=None)}, "not everybody came home"),
        ({"greeted": False}, "50 of 50 calls answered"),
    ],
)
def test_what_else_was_seen_can_break_a_promise(changes, words):
    [text] = broken(judged(seen(**changes)))
    assert words in text


def test_a_task_that_a_dead_broker_had_may_run_twice_and_that_is_said():
    found = seen(twice=RepeatedTasks(2, (30,)))  # submitted at 15.0 s, when the broker was killed
    assert broken(judged(found)) == []
    [text] = [promise.text for promise in judged(found) if "ran twice" in promise.text]
    assert text == "3 ran twice: worker-1 had them in hand when killed, and 1 that demo-1 had"


def test_the_longest_gap_is_that_around_a_kill():
    times = [0.0, 1.0, 2.0, 6.5, 7.0, 20.0]
    assert longest_gap(times, 2.5, 6.0) == 4.5
    assert longest_gap(times, 0.5, 1.5) == 1.0
    assert longest_gap([], 1.0, 4.0) == 3.0


def test_only_a_run_that_a_kill_broke_off_explains_another():
    pages = ["begun 1 w 7", "ended 1 w 7", "begun 2 w 7", "begun 2 x 8", "ended 2 x 8", "begun 3 w 7", "begun 3"]
    assert ran_twice(pages, frozenset({7})) == RepeatedTasks(1, ())
    assert ran_twice([*pages, "begun 1 x 8", "ended 1 x 8"], frozenset({7})) == RepeatedTasks(1, (1,))
    assert ran_twice(pages, frozenset()) == RepeatedTasks(0, (2,))


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
    said = count(rows, sessions)
    assert said == Computed(50, 2, 48, frozenset({"demo-1", "worker-1"}), {"demo/demo-1-answers": 5.0})
    assert broken(spark_is_right(said, seen())) == []
    for spoiled, words in (
        (said._replace(finished=49), "49 tasks finished"),
        (said._replace(retried=0), "50 tasks finished, 0 handed out again"),
        (said._replace(died=frozenset({"demo-1"})), "who was killed: demo-1"),
        (said._replace(incidents={}), "is missing"),
    ):
        [text] = broken(spark_is_right(spoiled, seen()))
        assert words in text
    assert "Spark counts 48 of those 50 calls" in next(spark_notes(said, seen()))


def test_the_last_screen_fits_a_terminal_whatever_the_numbers_are():
    busy = ledger()
    for number in range(200_000):
        busy.asked += 1
        busy.answered(number, {"who": f"worker-{number % 3 + 1}", "number": number}, 12.0, 12.5)
    found = seen(ledger=busy)
    said = count(*tables())
    promises = [*judged(found), *spark_is_right(said, found)]
    lines = last_screen(promises, [*notes(found), *spark_notes(said, found)], (45.6, 131.2), "/tmp/page.html", "/tmp/x")
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert lines[0] == "== Summary: every promise was kept (10 of 10; network 46 s, Spark 131 s)"
    lines = last_screen([*promises, Promise("it flies", False)], [], (45.6, 0.0), "", "")
    assert lines[0] == "== Summary: A PROMISE WAS BROKEN (10 of 11; network 46 s)"
    assert "BROKEN  it flies" in lines
