"""The naive generator keeps its own promises: what it writes is what readers of segments expect."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from scale0.history.events.columns import COLUMN_NAMES
from scale0.history.segments import arrow, names
from tests.pipeline import naive_history
from tests.pipeline.naive_history import START, History, Planted, history


@pytest.fixture(scope="module")
def made() -> History:
    return history(seed=4, seconds=3 * 3600)


def seconds(us: int) -> float:
    return us / 1e6 - START


def test_events_have_the_keys_of_the_journal_in_order(made: History):
    assert all(tuple(event) == COLUMN_NAMES for event in made.events)


def test_the_same_seed_makes_the_same_history():
    assert history(9, 1800) == history(9, 1800)
    assert history(9, 1800) != history(10, 1800)


def test_numbers_have_no_gap_but_where_a_segment_was_lost(made: History):
    ((hole),) = [truth for truth in made.planted if truth.kind == "hole"]
    for source in {event["source"] for event in made.events}:
        every = sorted(event["seq"] for event in made.events + made.lost if event["source"] == source)
        assert every == list(range(1, len(every) + 1))
        kept = [event for event in made.events if event["source"] == source]
        jumps = [(a, b) for a, b in itertools.pairwise(kept) if b["seq"] != a["seq"] + 1]
        assert len(jumps) == (source == hole.subject)
        assert all(a["time"] <= b["time"] for a, b in itertools.pairwise(kept) if a["boot"] == b["boot"])
    assert {event["source"] for event in made.lost} == {hole.subject}
    assert all(hole.begin - hole.lost_seconds <= seconds(event["time"]) < hole.end for event in made.lost)


def test_nothing_happens_after_it_was_recorded(made: History):
    assert all(event["at"] <= event["time"] for event in made.events)


def of(made: History, kind: str, **columns: Any) -> list[dict[str, Any]]:
    return [e for e in made.events if e["kind"] == kind and all(e[k] == v for k, v in columns.items())]


def test_each_planted_truth_is_there(made: History):
    by_kind = {truth.kind: truth for truth in made.planted}
    out = by_kind["outage"]
    (lost,) = of(made, "client.lost", identity=out.subject)
    joined = [seconds(event["at"]) for event in of(made, "client.joined", identity=out.subject)]
    assert seconds(lost["at"]) == out.begin
    assert out.end in joined
    killed = by_kind["killed"]
    starts = [seconds(event["at"]) for event in of(made, "broker.started", identity=killed.subject)]
    assert starts == [0, killed.end]
    silent = [event for event in made.events if event["source"] == killed.subject]
    assert not [event for event in silent if killed.begin <= seconds(event["time"]) < killed.end]
    for kind, states in (("flapping", {"ok", "critical"}), ("critical", {"critical"})):
        truth = by_kind[kind]
        agent, check = truth.subject.split("/")
        answers = of(made, "check.answered", identity=agent, service=check)
        inside = [event["state"] for event in answers if truth.begin <= seconds(event["at"]) < truth.end]
        assert set(inside) == states
        assert len(inside) >= 4
        assert {e["state"] for e in answers if not truth.begin <= seconds(e["at"]) < truth.end} == {"ok"}


def test_truths_can_be_chosen():
    planted = [Planted("outage", "worker-a", 100, 400), Planted("killed", "broker-2", 600, 800)]
    made = history(1, 1200, planted)
    assert seconds(of(made, "client.lost")[0]["at"]) == 100
    assert [seconds(event["at"]) for event in of(made, "broker.started", identity="broker-2")] == [0, 800]
    assert not made.lost
    quiet = history(1, 600, [])
    assert len(of(quiet, "broker.started")) == 2
    assert {event["state"] for event in of(quiet, "check.answered")} == {"ok"}


def test_its_segments_are_segments_as_the_writer_makes_them(made: History, tmp_path: Path):
    paths = naive_history.write(made.events, tmp_path, roll_seconds=1800)
    rows: list[dict[str, Any]] = []
    for path in paths:
        assert arrow.open_segment(path).schema_arrow.equals(arrow.SCHEMA, check_metadata=True)
        table = pq.ParquetFile(path).read()
        segment = names.parse(path.name)
        assert segment is not None
        assert table["seq"].to_pylist() == list(range(segment.first_seq, segment.last_seq + 1))
        assert names.day_of(path.parent.name) is not None
        rows += table.to_pylist()
    key = ("source", "boot", "seq")
    written = {tuple(row[name] for name in key): row for row in rows}
    assert len(written) == len(rows) == len(made.events)
    for event in made.events:
        row = written[tuple(event[name] for name in key)]
        plain = {name for name in COLUMN_NAMES if name not in ("time", "at")}
        assert {name: row[name] for name in plain} == {name: event[name] for name in plain}
        assert round(row["at"].timestamp() * 1e6) == event["at"]


def test_requests_add_up_and_data_is_json(made: History):
    summed = of(made, "request.summed")
    assert summed
    assert all(sum(each["count"] for each in event["histogram"]) == event["code"] for event in summed)
    assert all(json.loads(event["data"]) for event in made.events if event["data"] is not None)
