"""Segments come in: each event once, whatever is damaged, foreign, doubled, cut again or missing.

Promise: PIPE-1
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from scale0.pipeline.reading import open_arrow
from scale0.pipeline.time_ranges import HOUR_US
from scale0.pipeline.warehouse.ingestion import ingest_segments
from scale0.pipeline.warehouse.inspection import inspect_segments
from scale0.pipeline.warehouse.segment_sources import LocalSegmentSource, RemoteSegmentSource, list_segments
from scale0.pipeline.warehouse.transaction import horizon
from scale0.pipeline.warehouse.warehouse import Warehouse
from simulator.history import truths
from tests.pipeline.warehouse_made import DAY, HOUR, NOW_US, SECOND, START_US, begin, put, rows, run, seqs, table


def liveness_samples(warehouse: Warehouse) -> list[dict[str, Any]]:
    """All liveness samples, in order, without those that a file holds and nobody lists."""
    with begin(warehouse) as transaction:
        found = []
        for path, parts, _ in transaction.files("pulses"):
            found += [row for row in pq.read_table(path, partitioning=None).to_pylist() if row["part"] in parts]
    return sorted(found, key=lambda row: (row["source"], row["boot"], row["first_seq"], row["duplicates"]))


def test_good_segments_become_the_events(warehouse, segments):
    put(segments, rows(1, 100))
    put(segments, rows(101, 150, at=START_US + 100 * SECOND))
    put(segments, rows(1, 30), source="hëlen:1/x")
    taken, manifest = run(warehouse, segments)
    assert (taken.segments, taken.events, taken.duplicates, taken.rejected, taken.failed) == (3, 180, 0, 0, False)
    assert manifest.covered == {"broker-1": ((7, 1, 150),), "hëlen:1/x": ((7, 1, 30),)}
    assert manifest.newest_us == START_US + 149 * SECOND
    assert taken.hours == {HOUR: {"task.submitted": 90, "task.completed": 90}}
    events = open_arrow(warehouse, "events").sort_by([("source", "ascending"), ("seq", "ascending")])
    wanted = pa.concat_tables(
        [table(rows(1, 100)), table(rows(101, 150, at=START_US + 100 * SECOND)), table(rows(1, 30), "hëlen:1/x")]
    )
    assert events.to_pylist() == wanted.to_pylist()


def test_liveness_samples_are_the_minutes_of_a_source(warehouse, segments):
    put(segments, rows(1, 130))
    run(warehouse, segments)
    found = liveness_samples(warehouse)
    assert [(row["first_seq"], row["last_seq"], row["events"], row["part"]) for row in found] == [
        (1, 60, 60, HOUR),
        (61, 120, 60, HOUR),
        (121, 130, 10, HOUR),
    ]
    assert [row["last_time"].timestamp() - row["first_time"].timestamp() for row in found] == [59, 59, 9]


def test_a_segment_over_midnight_is_in_both_day_manifests_and_counts_once(warehouse, segments):
    put(segments, rows(1, 120, at=(DAY + 1) * 24 * HOUR_US - 60 * SECOND))
    _, manifest = run(warehouse, segments)
    assert sorted(manifest.chapters) == [DAY, DAY + 1]
    one, other = (warehouse.day_manifest(manifest, day) for day in (DAY, DAY + 1))
    assert one.events[0].path == other.events[0].path
    assert one.events[0].days == (DAY, DAY + 1)
    assert sum(sum(kinds.values()) for kinds in one.events[0].hours.values()) == 60
    assert seqs(warehouse) == list(range(1, 121))
    assert [len(day_manifest.pulses) for day_manifest in (one, other)] == [1, 1]
    assert one.pulses[0].carved
    assert sum(row["events"] for row in liveness_samples(warehouse)) == 120


def test_what_is_covered_is_not_read_again(warehouse, segments):
    path = put(segments, rows(1, 10))
    run(warehouse, segments)
    path.unlink()
    path.write_bytes(b"nobody looks at this again")
    taken, _ = run(warehouse, segments, rescan=True)
    assert (taken.segments, taken.failed) == (0, False)


def test_nothing_of_the_segments_folder_is_changed(warehouse, segments):
    paths = [put(segments, rows(1, 10)), put(segments, rows(5, 20), day="2026-05-11")]
    before = [(path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) for path in paths]
    run(warehouse, segments)
    assert [(path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) for path in paths] == before


def test_adoption_is_a_hard_link_where_it_can_be(warehouse, segments):
    path = put(segments, rows(1, 10))
    _, manifest = run(warehouse, segments)
    listed = warehouse.path(warehouse.day_manifest(manifest, DAY).events[0].path)
    assert listed.samefile(path)


def test_where_no_link_can_be_had_it_is_a_copy(warehouse, segments, monkeypatch):
    path = put(segments, rows(1, 10))

    def other_disk(*_: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    with monkeypatch.context() as patch:
        patch.setattr("scale0.pipeline.warehouse.segment_sources.os.link", other_disk)
        with begin(warehouse) as transaction:
            assert ingest_segments(transaction, str(segments), NOW_US).events == 10
            [listed] = transaction.event_files({HOUR})
            assert not path.samefile(listed)
            assert path.read_bytes() == Path(listed).read_bytes()


@pytest.mark.parametrize("settled", [True, False])
def test_a_folder_that_did_not_change_is_not_opened(segments, settled):
    put(segments, rows(1, 10))
    folder = "written=2026-05-10"
    stamp = (segments / folder).stat().st_mtime_ns
    now_us = stamp // 1000 + (10 * SECOND if settled else SECOND)
    place = LocalSegmentSource(segments, now_us)
    seen = {("broker-1", (7, 1, 10))}
    assert place.folders() == {folder: stamp if settled else 0}, "a folder that just changed may change again"
    look = list_segments("x", place, {folder: stamp}, lambda _: seen)
    assert look.passed == ({f"x/{folder}"} if settled else set())
    assert not list_segments("x", place, {folder: stamp}, lambda _: seen, rescan=True).passed


def test_a_run_that_changes_nothing_opens_no_folder(warehouse, segments):
    put(segments, rows(1, 10))
    run(warehouse, segments)
    stamp = (segments / "written=2026-05-10").stat().st_mtime_ns
    assert run(warehouse, segments)[1].listings == {str(segments): {"written=2026-05-10": stamp}}
    put(segments, rows(11, 12))
    assert run(warehouse, segments)[0].events == 2


def test_a_missing_segment_is_a_hole_and_may_come_later(warehouse, segments):
    put(segments, rows(1, 10))
    put(segments, rows(21, 30), day="2026-05-11")
    put(segments, rows(35, 40), boot=9)
    taken, manifest = run(warehouse, segments)
    assert not taken.failed
    assert manifest.covered == {"broker-1": ((7, 1, 10), (7, 21, 30), (9, 35, 40))}
    put(segments, rows(11, 20), day="2026-05-12")
    taken, manifest = run(warehouse, segments)
    assert (taken.events, manifest.covered["broker-1"]) == (10, ((7, 1, 30), (9, 35, 40)))


def test_a_rewind_is_another_history_and_both_count(warehouse, segments):
    put(segments, rows(1, 10))
    put(segments, rows(5, 8, ref="other"), boot=9)
    taken, manifest = run(warehouse, segments)
    assert (taken.events, taken.duplicates, taken.failed) == (14, 0, False)
    assert manifest.covered == {"broker-1": ((7, 1, 10), (9, 5, 8))}


# What is delivered twice.


@pytest.mark.parametrize(
    ("first", "last"),
    [(1, 100), (20, 40), (90, 130), (101, 120)],
    ids=["same name", "inside", "over the end", "behind"],
)
@pytest.mark.parametrize("together", [True, False])
def test_events_that_come_again_count_once(warehouse, segments, first, last, together):
    everything = rows(1, 200)
    put(segments, everything[:100])
    if not together:
        run(warehouse, segments)
    put(segments, everything[first - 1 : last], day="2026-05-11")
    taken, manifest = run(warehouse, segments)
    again = len({*range(1, 101)} & {*range(first, last + 1)})
    assert (taken.duplicates, taken.rejected, taken.failed) == (again, 0, False)
    assert manifest.covered == {"broker-1": ((7, 1, max(last, 100)),)}
    assert seqs(warehouse) == list(range(1, max(last, 100) + 1))
    assert sum(row["duplicates"] for row in liveness_samples(warehouse)) == again
    assert sum(row["events"] for row in liveness_samples(warehouse)) == max(last, 100)
    assert run(warehouse, segments, rescan=True)[0].segments == 0, "and they are not looked at again"


def test_a_segment_around_what_is_covered_gives_two_trimmed_copies(warehouse, segments):
    everything = rows(1, 100)
    put(segments, everything[39:60])
    run(warehouse, segments)
    put(segments, everything)
    taken, manifest = run(warehouse, segments)
    assert (taken.events, taken.duplicates) == (79, 21)
    files = warehouse.day_manifest(manifest, DAY).events
    assert sorted((file.first_seq, file.last_seq) for file in files) == [(1, 39), (40, 60), (61, 100)]
    assert seqs(warehouse) == list(range(1, 101))


@pytest.mark.parametrize("changed", ["ref", "at", "metrics"])
def test_the_same_key_with_other_content_is_rejected(warehouse, segments, changed):
    everything = rows(1, 100)
    put(segments, everything[:50])
    run(warehouse, segments)
    others = [dict(row) for row in everything]
    for seq in (20, 30, 31):
        other = {"ref": "another", "at": START_US - 30 * 24 * HOUR_US, "metrics": [{"name": "load", "value": -1.0}]}
        others[seq - 1][changed] = other[changed]
    put(segments, others[14:70])
    taken, manifest = run(warehouse, segments)
    assert (taken.events, taken.duplicates, taken.rejected, taken.failed) == (20, 33, 3, True)
    [problem] = taken.problems
    assert problem.kind == "rejected"
    assert "seg-broker-1-7-15-70.parquet" in problem.name
    assert "the first is 20" in problem.why
    assert manifest.problems == (problem,)
    events = open_arrow(warehouse, "events", columns=["seq", "ref", "at"]).sort_by("seq").to_pylist()
    assert [row["seq"] for row in events] == list(range(1, 71))
    assert events[19]["ref"] == "ref-20"
    assert sum(row["rejected"] for row in liveness_samples(warehouse)) == 3
    again, manifest = run(warehouse, segments, rescan=True)
    assert (again.failed, again.rejected) == (False, 0), "it is reported once"
    assert manifest.problems == (problem,), "and remembered"


# What is not ours.


def test_a_foreign_file_is_named_once_and_let_be(warehouse, segments):
    put(segments, rows(1, 5))
    (segments / "written=2026-05-10" / "notes.txt").write_text("hello")
    (segments / "written=2026-05-10" / ".seg-unfinished").write_text("not reported: a writer is at work")
    (segments / "written=2026-05-10" / "seg-broker-1-7-6-05.parquet").write_text("numbers are written in one way")
    (segments / "lost+found").mkdir()
    (segments / truths.FILE).write_text("not reported: `python -m simulator.history` puts it there")
    taken, manifest = run(warehouse, segments)
    assert not taken.failed
    assert [problem.name.removeprefix(f"{segments}/") for problem in taken.problems] == [
        "lost+found",
        "written=2026-05-10/notes.txt",
        "written=2026-05-10/seg-broker-1-7-6-05.parquet",
    ]
    assert {problem.kind for problem in taken.problems} == {"foreign"}
    assert len(manifest.problems) == 3
    assert run(warehouse, segments)[0].problems == []
    assert run(warehouse, segments, rescan=True)[0].problems == []


def test_a_folder_with_the_name_of_a_segment_is_damage(warehouse, segments):
    put(segments, rows(1, 5))
    (segments / "written=2026-05-10" / "seg-broker-1-7-6-9.parquet").mkdir()
    taken, manifest = run(warehouse, segments)
    assert taken.failed
    assert manifest.covered == {"broker-1": ((7, 1, 5),)}


def test_segments_that_are_gone_before_they_are_read_are_left_out(warehouse, segments):
    path = put(segments, rows(1, 5))
    with warehouse.begin() as staging:
        place = LocalSegmentSource(segments, NOW_US)
        look = list_segments("x", place, {}, lambda _: set())
        path.unlink()
        assert inspect_segments(place, look.new, staging) == []


def test_a_link_to_nowhere_hides_nothing_else(warehouse, segments):
    put(segments, rows(1, 5))
    (segments / "written=2026-05-09").symlink_to("nowhere")
    (segments / "written=2026-05-10" / "seg-broker-1-7-6-9.parquet").symlink_to("nowhere")
    taken, _ = run(warehouse, segments)
    assert (taken.events, taken.failed) == (5, False)


def test_no_segments_at_all_are_no_error(warehouse, segments):
    taken, manifest = run(warehouse, segments)
    assert (taken.segments, taken.failed, manifest.covered) == (0, False, {})


# Other places.


def test_any_file_system_of_pyarrow_can_hold_segments(warehouse, segments, monkeypatch):
    for day, first in (("2026-05-01", 1), ("2026-05-09", 11), ("2026-05-10", 21)):
        put(segments, rows(first, first + 9), day=day)
    remote = RemoteSegmentSource(pyarrow.fs.LocalFileSystem(), str(segments))
    assert remote.folders() == {"written=2026-05-01": 1, "written=2026-05-09": 0, "written=2026-05-10": 0}
    monkeypatch.setattr("scale0.pipeline.warehouse.ingestion.open_source", lambda *_: remote)
    taken, manifest = run(warehouse, "s3://bucket/segments")
    assert taken.events == 30
    assert manifest.listings == {"s3://bucket/segments": remote.folders()}
    listed = warehouse.path(warehouse.day_manifest(manifest, DAY).events[0].path)
    assert listed.stat().st_nlink == 1, "downloaded"
    assert run(warehouse, "s3://bucket/segments")[0].segments == 0


def test_file_urls_and_several_places_are_taken_together(warehouse, tmp_path):
    everything = rows(1, 20)
    put(tmp_path / "a b", everything[:10])
    put(tmp_path / "two", everything[10:])
    put(tmp_path / "two", everything[4:8], day="2026-05-11")
    with begin(warehouse) as transaction:
        urls = [(tmp_path / "a b").as_uri(), str(tmp_path / "two")]
        taken = ingest_segments(transaction, urls, NOW_US)
        assert (taken.events, taken.duplicates, taken.failed) == (20, 4, False)
        assert set(transaction.listings) == set(urls)


def test_a_symbolic_link_to_a_segment_is_followed(warehouse, segments, tmp_path):
    path = put(segments, rows(1, 10))
    moved = tmp_path / "elsewhere.parquet"
    shutil.move(path, moved)
    path.symlink_to(os.path.relpath(moved, path.parent))
    assert run(warehouse, segments)[0].events == 10
    assert seqs(warehouse) == list(range(1, 11))


# The horizon.


@pytest.mark.parametrize(
    ("newest", "now", "until", "horizon_s"), [(100, 200, None, 100), (600, 200, None, 500), (100, 200, 50, 50)]
)
def test_the_horizon_is_the_newest_time_that_can_have_passed(warehouse, newest, now, until, horizon_s):
    with begin(warehouse) as transaction:
        transaction.newest_us = newest * SECOND
        assert horizon(transaction, now * SECOND, None if until is None else until * SECOND) == horizon_s * SECOND


def test_events_of_the_future_are_adopted_and_wait(warehouse, segments):
    put(segments, rows(1, 10, at=START_US + 3 * HOUR_US))
    with begin(warehouse) as transaction:
        assert ingest_segments(transaction, str(segments), START_US).events == 10
        assert horizon(transaction, START_US) == START_US + 300 * SECOND
        assert transaction.hours_with_events() == [HOUR + 3]
