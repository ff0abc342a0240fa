"""Runs that need no Spark: problems are reported wherever somebody asks, and nothing stands in a stream's way.

Promise: PIPE-2
"""

from __future__ import annotations

from pathlib import Path

import pytest

from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.engine import runs
from scale0.pipeline.engine.backfill_queue import QUEUE, REFUSED, QueuedBackfill, enqueue
from scale0.pipeline.time_ranges import HOUR_US
from scale0.pipeline.warehouse.retention import TooFewDays
from tests.pipeline.engine_runs import ignore
from tests.pipeline.idle_runs import DAMAGED, FOREIGN, Place, never
from tests.pipeline.warehouse_made import NOW_US, START_US

OTHER = Parameters(flapping="nagios")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# What is wrong.


def test_damage_that_an_idle_run_meets_is_in_the_status(place: Place):
    (place.segments / DAMAGED).write_bytes(b"PAR1")
    outcome = place.run()
    assert outcome.number is None
    (problem,) = outcome.problems
    assert problem.startswith(f"{place.segments}/{DAMAGED}: ")
    assert place.status().problems == (problem,)
    known = place.numbers()
    assert place.run().problems == (problem,), "until it is replaced"
    assert place.numbers() == known, "and that is no news"
    (place.segments / DAMAGED).unlink()
    assert place.run().problems == ()
    assert place.status().problems == ()


def test_a_foreign_file_is_named_by_a_run_once_and_by_the_status_while_it_is_there(place: Place):
    (place.segments / FOREIGN).write_text("hello")
    outcome = place.run()
    assert outcome.problems == ()
    (named,) = outcome.ignored
    assert named.startswith(f"{place.segments}/{FOREIGN}: not a segment")
    assert place.run().ignored == ()
    assert (place.status().problems, place.status().ignored) == ((), (named,))
    (place.segments / FOREIGN).unlink()
    place.run()
    assert place.status().ignored == ()


def test_a_stream_names_a_foreign_file(place: Place):
    (place.segments / FOREIGN).write_text("hello")
    assert [len(outcome.ignored) for outcome in place.stream()] == [1]
    assert place.stream() == []


# Requests that cannot be done.


def test_a_request_that_cannot_be_done_is_reported_and_put_away(place: Place):
    enqueue(place.warehouse, QueuedBackfill(START_US + 9 * HOUR_US, None, OTHER))
    (outcome,) = place.stream()
    (problem,) = outcome.problems
    assert "changed parameters require a backfill" in problem
    (kept,) = place.queue()
    assert kept.endswith(f".json{REFUSED}")
    assert kept in problem
    assert outcome.horizon_us == START_US + 9 * HOUR_US
    assert place.stream() == [], "and it stands in nobody's way"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"first_us": "x", "end_us": null}', b"[" * 100_000])
def test_a_request_that_cannot_be_read_is_reported_and_put_away(place: Place, body: bytes):
    (place.warehouse / QUEUE).mkdir()
    (place.warehouse / QUEUE / "1.json").write_bytes(body)
    enqueue(place.warehouse, QueuedBackfill(START_US + 9 * HOUR_US, None, OTHER))
    unread, refused = place.stream()
    assert "not a valid request" in unread.problems[0]
    assert "changed parameters" in refused.problems[0], "what waits behind it has its turn"
    assert place.queue()[0] == f"1.json{REFUSED}"
    assert place.stream() == []


def test_a_request_that_is_a_folder_is_put_away_too(place: Place):
    (place.warehouse / QUEUE / "1.json").mkdir(parents=True)
    (outcome,) = place.stream()
    assert "it cannot be read" in outcome.problems[0]
    assert place.stream() == []


def test_requests_wait_while_there_are_no_tables(tmp_path: Path):
    place = Place(tmp_path / "made")
    place.warehouse = tmp_path / "empty"
    place.segments = tmp_path / "nothing"
    enqueue(place.warehouse, QueuedBackfill(START_US, None))
    assert place.stream() == []
    assert [name.endswith(".json") for name in place.queue()] == [True]


# Retention.


def test_too_few_days_are_refused_before_anything_is_done(place: Place):
    with pytest.raises(TooFewDays, match="keep 62 days or more"):
        runs.run(place.job(keep_days=30), never, lambda: NOW_US, ignore)
