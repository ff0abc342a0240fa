"""Segments and journal are one history: every event once and in order, while one becomes the other."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scale0.history.segments.reader import EventFilter, HistoryReader, events_of, open_history
from tests.fakes.examples import seeds
from tests.processes.segments.folders import Folder, segment_files

ALL = EventFilter()


def silent(what: str) -> None:
    raise AssertionError(f"everything here can be read: {what}")


@pytest.fixture
def folder(tmp_path):
    made = Folder(tmp_path / "data", wall=time.time())
    yield made
    made.store.close()


def seqs_of(tables) -> list[int]:
    return [event["seq"] for table in tables for event in events_of(table)]


def all_of(history: HistoryReader) -> list[int]:
    tables = [table for pieces in history.list_segments(None).values() for table in history.read_segments(pieces, ALL)]
    return seqs_of([*tables, *history.read_journal(ALL)])


@pytest.mark.parametrize("trim", [True, False])
def test_what_is_in_a_segment_and_in_the_journal_comes_once(folder, trim):
    folder.fill(30, events=3)
    folder.export(trim=trim, events=40)
    folder.restart()
    folder.fill(10)
    history = open_history(folder.path, None, silent)
    assert all_of(history) == list(range(1, 101))
    assert seqs_of(history.read_journal(ALL)) == []
    history.close()


def test_segments_that_overlap_give_each_event_once(folder):
    folder.fill(10)
    folder.export(trim=False, events=40)
    (path,) = segment_files(folder.path / "segments")
    path.rename(path.with_name("kept"))
    folder.fill(10)
    folder.export(trim=False, events=40)
    path.with_name("kept").rename(path)
    assert len(segment_files(folder.path / "segments")) == 2
    history = open_history(folder.path, None, silent)
    assert all_of(history) == list(range(1, 21))
    assert [event["seq"] for event in history.last(15, ALL)] == list(range(6, 21))
    history.close()


@pytest.mark.parametrize("seed", seeds(12))
def test_nothing_is_missed_or_read_twice_while_events_move_to_segments(tmp_path, seed):
    dice = random.Random(seed)
    folder = Folder(tmp_path / "data", wall=time.time())
    folder.fill(dice.randrange(1, 50))
    if dice.random() < 0.7:
        folder.export(trim=dice.random() < 0.5, events=40)
    moves: list[Callable[[], None]] = [
        lambda: folder.fill(dice.randrange(1, 30), events=dice.randrange(1, 4)),
        lambda: folder.export(events=40),
        lambda: folder.export(trim=False, events=40),
        folder.restart,
    ]
    history = open_history(folder.path, None, silent)
    listed = history.list_segments(None)
    read: list[int] = []
    for pieces in listed.values():
        dice.choice(moves)()
        read += seqs_of(history.read_segments(pieces, ALL))
    for _ in range(12):
        dice.choice(moves)()
        read += seqs_of(history.read_journal(ALL))
    read += seqs_of(history.read_journal(ALL))
    assert read == list(range(1, folder.last_seq + 1))
    history.close()
    folder.store.close()


@pytest.mark.parametrize("trim", [True, False])
@pytest.mark.parametrize("exported", [0, 20, 59, 60])
def test_the_last_events_are_the_last_wherever_they_are(folder, exported, trim):
    if exported:
        folder.fill(exported)
        folder.export(trim=trim, events=40)
    folder.fill(60 - exported)
    for count in (1, 2, 20, 21, 39, 40, 41, 59, 60, 70):
        history = open_history(folder.path, None, silent)
        assert [event["seq"] for event in history.last(count, ALL)] == list(range(1, 61))[-count:]
        history.close()
    history = open_history(folder.path, None, silent)
    history.last(5, ALL)
    folder.fill(3)
    folder.export(events=40)
    folder.fill(1)
    assert seqs_of(history.read_journal(ALL)) == [61, 62, 63, 64], "what happens then goes on behind them"
    history.close()


def test_a_choice_takes_what_it_says_and_nothing_else(folder):
    folder.beat()
    folder.fill(5)
    folder.export(events=40)
    folder.beat()
    folder.fill(5)

    def found(**which) -> list[int]:
        history = open_history(folder.path, None, silent)
        pieces = history.list_segments(None)["east-1"]
        choice = EventFilter(**which)
        try:
            return seqs_of([*history.read_segments(pieces, choice), *history.read_journal(choice)])
        finally:
            history.close()

    assert found(kind="source.*") == [1, 7]
    assert found(kind="task.submitted", identity="c") == [2, 3, 4, 5, 6, 8, 9, 10, 11, 12]
    assert found(service="thumbs.*", ref="t9") == [9]
    assert found(ref="t*") == []
    assert found(source="west-*") == []
    assert found(source="eas[st]-1", kind="*.alive") == [1, 7]
    middle = int((folder.wall - 0.0065) * 1e6)
    assert found(since_us=middle) == list(range(6, 13))
    assert found(until_us=middle) == list(range(1, 6))
    assert found(clock="at", since_us=middle, kind="source.alive") == [7]


def test_a_segment_that_cannot_be_read_is_named_and_the_others_come(folder):
    folder.fill(50)
    folder.export(events=40)
    damaged, good = segment_files(folder.path / "segments")
    damaged.write_bytes(damaged.read_bytes()[:-100])
    problems: list[str] = []
    history = open_history(folder.path, None, problems.append)
    assert all_of(history) == list(range(41, 51))
    assert len(problems) == 1
    assert damaged.name in problems[0]
    history.close()
    assert Path(good).exists()
