"""The journal: gapless numbers, times that never go back within a boot, and nothing lost silently."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.history.events.clients import ClientLost, ClientRefused, ClientSeen
from scale0.history.events.columns import Event, EventMetric, EventRow
from scale0.history.events.journal import STEP_TOLERANCE_US, Journal, read
from scale0.history.events.sources import SourceAlive
from scale0.kernel.clock import Now
from scale0.kernel.errors import StoreError
from tests.unit.events.samples import SAMPLES


class Planted(Event, frozen=True):
    """An event that is the row that a test wants."""

    kind: ClassVar[str] = "test.planted"
    planted: EventRow

    def row(self) -> EventRow:
        return self.planted


def journal(last_time_us=0):
    return Journal("east-1", 5, 1, last_time_us)


def rows(entered):
    return [row for entry in entered if entry is not None for row in read(entry.body)]


turns = st.lists(
    st.tuples(st.lists(st.sampled_from([event for event, _ in SAMPLES]), max_size=4), st.floats(0, 4e9)), max_size=20
)


# Promise: JOUR-1
@given(turns, st.integers(1, 10**12), st.integers(0, 4 * 10**15))
def test_numbers_are_gapless_and_rows_say_which_they_hold(turns, next_seq, last_time_us):
    journal_writer = Journal("east-1", 5, next_seq, last_time_us)
    entered = [entry for events, wall in turns if (entry := journal_writer.append(events, Now(0.0, wall))) is not None]
    assert [row["seq"] for row in rows(entered)] == list(range(next_seq, journal_writer.next_seq))
    for entry in entered:
        assert [row["seq"] for row in read(entry.body)] == list(range(entry.first_seq, entry.last_seq + 1))


# Promise: JOUR-1
@given(turns, st.integers(0, 4 * 10**15))
def test_time_never_goes_back_within_a_boot_and_at_is_never_after_it(turns, last_time_us):
    journal_writer = journal(last_time_us)
    found = rows([journal_writer.append(events, Now(0.0, wall)) for events, wall in turns])
    times = [row["time"] for row in found]
    assert times == sorted(times)
    assert all(row["at"] <= row["time"] for row in found)


# Promise: JOUR-2
@given(turns)
def test_no_event_is_lost_or_moved(turns):
    journal_writer = journal()
    found = rows([journal_writer.append(events, Now(0.0, wall)) for events, wall in turns])
    given_kinds = [event.kind for events, _ in turns for event in events]
    kept = iter(row["kind"] for row in found)
    assert all(kind in kept for kind in given_kinds)
    assert len(found) >= len(given_kinds)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


# Promise: JOUR-2
@given(st.text(), st.dictionaries(st.text(), plain, max_size=4))
def test_what_an_event_says_comes_back_as_it_was(identity, data):
    entry = journal().append([ClientRefused(identity, 400, data)], Now(0.0, 100.0))
    (row,) = rows([entry])
    assert row["identity"] == identity
    assert msgspec.json.decode(row["data"]) == data


def test_metrics_come_back_by_name():
    metrics = [EventMetric("load", 0.5, warn=2.0), EventMetric("n", 1, "s", 1, 2, 0, 9)]
    (row,) = rows([journal().append([Planted(EventRow(kind="test.planted", metrics=metrics))], Now(0.0, 1.0))])
    first = {"name": "load", "value": 0.5, "unit": None, "warn": 2.0, "crit": None, "min": None, "max": None}
    assert row["metrics"] == [
        first,
        {"name": "n", "value": 1.0, "unit": "s", "warn": 1.0, "crit": 2.0, "min": 0.0, "max": 9.0},
    ]


def test_a_turn_without_events_is_no_row():
    journal_writer = journal()
    assert journal_writer.append([], Now(0.0, 100.0)) is None
    assert journal_writer.next_seq == 1


def test_what_happened_in_the_future_happened_now():
    (row,) = rows([journal().append([ClientLost("w", 500.0, "backend")], Now(0.0, 100.0))])
    assert row["at"] == row["time"] == 100_000_000


def kinds_and_times(journal_writer, walls):
    found = rows([journal_writer.append([SourceAlive("east-1")], Now(0.0, wall)) for wall in walls])
    return [(row["kind"].partition(".")[2], row["time"] // 1_000_000) for row in found]


def test_a_step_back_is_entered_once_and_time_waits_for_the_clock():
    assert kinds_and_times(journal(), [1000, 400, 401, 999, 1001]) == [
        ("alive", 1000),
        ("clock_stepped", 1000),
        ("alive", 1000),
        ("alive", 1000),
        ("alive", 1000),
        ("alive", 1001),
    ]


def test_a_second_step_back_is_entered_too():
    kinds = [kind for kind, _ in kinds_and_times(journal(), [1000, 400, 900, 300, 301])]
    assert kinds == ["alive", "clock_stepped", "alive", "alive", "clock_stepped", "alive", "alive"]


def test_a_clock_that_creeps_back_is_noticed_beyond_the_tolerance():
    step = STEP_TOLERANCE_US / 1e6 * 0.75
    kinds = [kind for kind, _ in kinds_and_times(journal(), [1000, 1000 - step, 1000 - 2 * step])]
    assert kinds == ["alive", "alive", "clock_stepped", "alive"]


def test_a_small_correction_is_no_step():
    step = STEP_TOLERANCE_US / 1e6 * 0.9
    assert kinds_and_times(journal(), [1000, 1000 - step]) == [("alive", 1000), ("alive", 1000)]


def test_a_new_boot_says_that_the_clock_went_back_and_starts_from_the_clock():
    assert kinds_and_times(journal(last_time_us=2000 * 10**6), [1000, 1001]) == [
        ("clock_stepped", 1000),
        ("alive", 1000),
        ("alive", 1001),
    ]


UNFIT: dict[str, dict[str, Any]] = {
    "surrogate": {"identity": "\ud800"},
    "no JSON": {"data": {"x": object()}},
    "surrogate in data": {"data": {"x": "\ud800"}},
    "code": {"code": 2**31},
    "attempt": {"attempt": -(2**31) - 1},
    "NaN": {"seconds": float("nan")},
    "infinity": {"at": float("inf")},
    "bytes": {"bytes": 2**63},
    "negative": {"bytes": -1},
    "metric": {"metrics": [EventMetric("load", float("nan"))]},
}


@pytest.mark.parametrize("columns", UNFIT.values(), ids=UNFIT)
def test_an_event_that_cannot_be_kept_raises_and_changes_nothing(columns):
    journal_writer = journal()
    planted = Planted(EventRow(kind="test.planted", **columns))
    with pytest.raises((ValueError, TypeError, OverflowError)):
        journal_writer.append([SourceAlive("east-1"), planted], Now(0.0, 900.0))
    assert journal_writer.next_seq == 1
    (row,) = rows([journal_writer.append([ClientSeen("w", 1, 1.0)], Now(0.0, 100.0))])
    assert (row["seq"], row["time"]) == (1, 100_000_000)


@given(st.binary(max_size=60))
def test_foreign_bytes_are_a_damaged_row(body):
    with pytest.raises(StoreError):
        read(body)


@pytest.mark.parametrize(
    "body",
    [
        b"\x96\x01\xa2\xff\xff\x05\x01\x64\x90",  # a source that is no UTF-8
        b"\x96\x01\xa1e\x05\x01\x64\x91\x91\xa1\xff",  # a kind that is none
        b"\x96\x01\xa1e\x05\x01\x64" + b"\x91" * 100_000 + b"\x90",  # a nest
    ],
)
def test_bytes_that_the_decoder_itself_stumbles_over_are_a_damaged_row(body):
    with pytest.raises(StoreError, match="damaged"):
        read(body)


# Promise: JOUR-2
def test_every_cut_of_a_row_is_a_damaged_row():
    entry = journal().append([ClientSeen("w", 1, 1.0)], Now(0.0, 100.0))
    assert entry is not None
    for length in range(len(entry.body)):
        with pytest.raises(StoreError):
            read(entry.body[:length])


def test_a_newer_schema_is_refused_by_name():
    with pytest.raises(StoreError, match="schema 2"):
        read(msgspec.msgpack.encode([2, "east-1", 5, 1, 100, [["new.shape"]]]))


def test_a_row_of_fewer_columns_is_readable():
    (row,) = read(msgspec.msgpack.encode([1, "east-1", 5, 1, 100, [["source.alive", None, "east-1"]]]))
    assert (row["identity"], row["data"]) == ("east-1", None)


def test_events_that_make_their_own_cells_store_what_their_rows_say():
    for event, _ in SAMPLES:
        if not hasattr(event, "cells"):
            continue
        clock = Now(1.0, 5.0)
        quick = Journal("b", 1, 1, 0).append([event], clock)
        slow = Journal("b", 1, 1, 0).append([Planted(event.row())], clock)
        assert quick is not None
        assert slow is not None
        assert read(quick.body) == read(slow.body)
