"""Damaged, old, new and foreign segments: each is named, and stops its own source alone.

Promise: PIPE-2
"""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from scale0.history.segments.arrow import MARK, MARKED, SCHEMA, VERSION_KEY
from scale0.history.segments.names import parse
from scale0.pipeline.reading import open_arrow
from scale0.pipeline.warehouse.inspection import inspect
from scale0.pipeline.warehouse.segment_sources import ListedSegment
from tests.pipeline.warehouse_made import DAY, START_US, put, rows, run, table

pytestmark = pytest.mark.slow


def flipped(body: bytes) -> bytes:
    return body[:200] + bytes([body[200] ^ 0x10]) + body[201:]


def another_program(_: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1]}), sink)
    return bytes(sink.getvalue())


DAMAGES = {
    "empty": lambda body: b"",
    "truncated": lambda body: body[:-100],
    "half": lambda body: body[: len(body) // 2],
    "flipped": flipped,
    "another program": another_program,
    "text": lambda body: b"not a segment",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_segment_stops_its_source_and_nobody_else(warehouse, segments, damage):
    everything = rows(1, 60)
    put(segments, everything[:10])
    bad = put(segments, everything[10:20])
    put(segments, everything[20:30])
    put(segments, rows(31, 40), boot=9)
    put(segments, rows(1, 50), source="helen")
    bad.write_bytes(damage(bad.read_bytes()))
    taken, manifest = run(warehouse, segments)
    assert taken.failed
    assert manifest.covered == {"broker-1": ((7, 1, 10),), "helen": ((7, 1, 50),)}
    assert taken.waiting == 2
    [problem] = taken.problems
    assert problem.name == str(bad)
    assert "broker-1 is blocked before event 11" in problem.why
    assert taken.stopped == {"broker-1": str(bad)}

    again, _ = run(warehouse, segments)
    assert again.problems == [problem], "it is reported until it is replaced"
    put(segments, everything[10:20])
    healed, manifest = run(warehouse, segments)
    assert (healed.failed, healed.events) == (False, 30)
    assert manifest.covered["broker-1"] == ((7, 1, 30), (9, 31, 40))
    assert manifest.problems == ()


def test_a_damaged_copy_of_what_is_known_stops_nobody(warehouse, segments):
    put(segments, rows(1, 10))
    again = put(segments, rows(1, 10), day="2026-05-11")
    again.write_bytes(flipped(again.read_bytes()))
    put(segments, rows(11, 20), day="2026-05-11")
    taken, manifest = run(warehouse, segments)
    assert manifest.covered == {"broker-1": ((7, 1, 20),)}
    assert [problem.kind for problem in taken.problems] == ["damaged"]
    assert "known from other segments" in taken.problems[0].why
    assert not run(warehouse, segments)[0].problems


def found(path):
    segment = parse(path.name)
    assert segment is not None
    return ListedSegment("x", path.parent.name, path.name, segment)


def test_no_flipped_byte_is_read_as_something_else(segments):
    """Every page has a checksum; what has none (the footer) must be noticed, or change nothing that anybody reads."""
    path = put(segments, rows(1, 40))
    good = inspect(path, found(path))
    body = path.read_bytes()
    whole = pq.read_table(path, partitioning=None)
    missed = []
    draw = random.Random(1)
    for place in sorted(draw.sample(range(len(body)), 600)):
        flipped = bytearray(body)
        flipped[place] ^= 1 << draw.randrange(8)
        path.unlink()
        path.write_bytes(flipped)
        seen = inspect(path, found(path))
        if seen.fault:
            continue
        if (seen.hours, seen.samples) != (good.hours, good.samples) or pq.read_table(path, partitioning=None) != whole:
            missed.append(place)
    assert not missed


def statistics(path):
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    return {c.path_in_schema: c.statistics.to_dict() for c in columns if c.statistics is not None}


@pytest.mark.parametrize(
    ("true", "false"),
    [
        ((START_US + 12_345).to_bytes(8, "little"), START_US.to_bytes(8, "little")),
        ((40).to_bytes(8, "little"), (4).to_bytes(8, "little")),
        ((1_234_567).to_bytes(8, "little"), (7).to_bytes(8, "little")),
        (b"task.submitted", b"task.sorted___"),
    ],
    ids=["at and time", "seq", "boot", "kind"],
)
def test_a_footer_that_says_something_else_than_the_rows_is_damage(segments, true, false):
    """Readers pass over row groups by what the footer says, and no checksum covers it."""
    path = put(segments, rows(1, 40, at=START_US + 12_345, step=777), boot=1_234_567)
    true_statistics, body, noticed = statistics(path), path.read_bytes(), 0
    place = len(body) - 8 - int.from_bytes(body[-8:-4], "little")
    while (place := body.find(true, place + 1)) > 0:
        path.unlink()
        path.write_bytes(body[:place] + false + body[place + len(true) :])
        fault = inspect(path, found(path)).fault
        noticed += "the statistics of its column" in fault
        assert fault or statistics(path) == true_statistics, "the other place is an old form that nobody reads"
    assert noticed


def bad_rows(change):
    events = rows(1, 20)
    change(events)
    return events


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda e: e[5].update(seq=5), "not numbered"),
        (lambda e: e[5].update(time=START_US), "its times are not in order"),
        (lambda e: e[5].update(at=e[5]["time"] + 1), "after it was recorded"),
        (lambda e: e[5].update(boot=8), "another source or boot"),
        (lambda e: e[5].update(source="other"), "another source or boot"),
        (lambda e: e[5].update(at=-1), "before 1970"),
        (lambda e: e.pop(5), "has 19 events, but its name says 20"),
    ],
)
def test_a_segment_that_does_not_hold_what_it_promises_is_damaged(warehouse, segments, change, why):
    put(segments, bad_rows(change), name="seg-broker-1-7-1-20.parquet")
    taken, manifest = run(warehouse, segments)
    assert why in taken.problems[0].why
    assert manifest.covered == {}


def test_a_segment_without_a_key_is_damaged(warehouse, segments):
    path = put(segments, rows(1, 3))
    plain = table(rows(1, 3)).cast(pa.schema([field.with_nullable(True) for field in SCHEMA], SCHEMA.metadata))
    for name in ("source", "boot", "seq", "time", "at", "kind"):
        column = pa.chunked_array([plain[name].slice(0, 2).combine_chunks(), pa.nulls(1, plain[name].type)])
        path.unlink()
        pq.write_table(plain.set_column(plain.schema.get_field_index(name), plain.schema.field(name), column), path)
        assert inspect(path, found(path)).fault, name


def test_a_segment_of_an_older_version_reads_as_null_where_it_has_no_column(warehouse, segments):
    path = put(segments, rows(1, 5))
    put(segments, rows(6, 9))
    older = table(rows(1, 5)).drop_columns(["data", "metrics"])
    path.unlink()
    pq.write_table(older.replace_schema_metadata({MARK: MARKED, VERSION_KEY: b"0"}), path, write_page_checksum=True)
    taken, manifest = run(warehouse, segments)
    assert not taken.failed
    assert sorted(file.columns for file in warehouse.day_manifest(manifest, DAY).events) == [16, 18]
    events = open_arrow(warehouse, "events").sort_by("seq").to_pylist()
    assert [row["seq"] for row in events] == list(range(1, 10))
    assert [row["metrics"] for row in events[:5]] == [None] * 5
    assert [row["ref"] for row in events] == [f"ref-{seq}" for seq in range(1, 10)]


@pytest.mark.parametrize(("version", "why"), [(b"1", "its columns differ"), (b"2", "it has schema 2")])
def test_a_segment_of_a_newer_version_is_named_and_stops_its_source(warehouse, segments, version, why):
    path = put(segments, rows(1, 5))
    newer = table(rows(1, 5)).append_column("weather", pa.nulls(5, pa.string()))
    path.unlink()
    pq.write_table(newer.replace_schema_metadata({MARK: MARKED, VERSION_KEY: version}), path)
    taken, manifest = run(warehouse, segments)
    assert why in taken.problems[0].why
    assert taken.problems[0].name == str(path)
    assert manifest.covered == {}


def test_a_column_of_another_type_is_damage(warehouse, segments):
    path = put(segments, rows(1, 5))
    odd = table(rows(1, 5))
    odd = odd.set_column(odd.schema.get_field_index("code"), "code", pa.nulls(5, pa.int64()))
    path.unlink()
    pq.write_table(odd.replace_schema_metadata(SCHEMA.metadata), path)
    assert "its columns differ" in inspect(path, found(path)).fault
