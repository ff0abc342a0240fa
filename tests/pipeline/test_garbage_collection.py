"""What goes, and what stays: collection removes files that nobody may want, retention drops days."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scale0.pipeline.reading import open_arrow
from scale0.pipeline.time_ranges import DAY_US, days_of_month, month_of
from scale0.pipeline.warehouse.records import WarehouseBusy, WarehouseDamaged
from scale0.pipeline.warehouse.retention import LEAST_KEEP_DAYS, TooFewDays, drop_before, retention, whole_parts
from scale0.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.warehouse_made import (
    DAY,
    HOUR,
    NOW_US,
    START_US,
    add,
    begin,
    commit,
    part_file,
    put,
    rows,
    run,
    seqs,
)


def files(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in (root / "data").rglob("*") if path.is_file()}


def test_what_no_manifest_of_the_last_day_names_is_collected(warehouse):
    hour = DAY_US // 24
    for at in (0, 1, 2):
        with begin(warehouse) as transaction:
            add(transaction, "tally", [(HOUR, "a", at)])
            commit(transaction, NOW_US + at * hour)
    everything = files(warehouse.root)
    assert warehouse.collect(NOW_US + 24 * hour).files == 0, "the first was replaced 23 hours ago"
    assert files(warehouse.root) == everything
    gone = warehouse.collect(NOW_US + 25 * hour)
    assert (gone.manifests, gone.files, warehouse.numbers()) == (1, 2, [2, 3])
    warehouse.collect(NOW_US + 100 * hour)
    assert warehouse.numbers() == [3]
    assert len(files(warehouse.root)) == 2, "a day manifest and a data set"
    assert len(list((warehouse.root / "data").iterdir())) == 1, "empty folders go too"
    assert open_arrow(warehouse, "tally")["count"].to_pylist() == [2]


def test_collection_leaves_a_live_staging_directory_of_its_own_and_no_dead_one(warehouse):
    dead = Warehouse(warehouse.root).begin()
    part_file(dead, "tally", [(HOUR, "dead", 1)])
    with warehouse.lock("stream"), begin(warehouse) as transaction:
        add(transaction, "tally", [(HOUR, "a", 1)])
        warehouse.collect(NOW_US)
        assert not dead.folder.exists()
        commit(transaction)
    assert open_arrow(warehouse, "tally")["count"].to_pylist() == [1]


def test_who_has_no_lock_does_not_collect(warehouse):
    with warehouse.lock("stream"), pytest.raises(WarehouseBusy):
        Warehouse(warehouse.root).collect(NOW_US)


def test_a_day_manifest_that_is_gone_stops_collection_and_it_says_what_helps(warehouse, segments):
    put(segments, rows(1, 5))
    _, manifest = run(warehouse, segments)
    warehouse.path(manifest.chapters[DAY].path).unlink()
    everything = files(warehouse.root)
    with pytest.raises(
        WarehouseDamaged, match="nothing was deleted: restore it from a backup; or move the whole"
    ) as met:
        Warehouse(warehouse.root).collect(NOW_US)
    assert "backfill" not in str(met.value), "it would read the same day manifest"
    assert files(warehouse.root) == everything


# Retention.


def test_retention_drops_old_days_and_old_segments_stay_known(warehouse, segments):
    for day in range(6):
        put(segments, rows(1 + day * 10, 10 + day * 10, at=START_US + day * DAY_US), day=f"2026-05-1{day}")
    run(warehouse, segments)
    with begin(warehouse) as transaction:
        assert drop_before(transaction, DAY + 3) == [DAY, DAY + 1, DAY + 2]
        manifest = commit(transaction)
    assert sorted(manifest.chapters) == [DAY + 3, DAY + 4, DAY + 5]
    assert seqs(warehouse) == list(range(31, 61))
    assert run(warehouse, segments, rescan=True)[0].segments == 0
    put(segments, rows(1, 20), day="2026-05-17")
    taken, manifest = run(warehouse, segments)
    assert (taken.duplicates, taken.failed) == (20, False), "what cannot be compared any more came again"
    assert sorted(manifest.chapters)[0] >= DAY + 3
    put(segments, rows(90, 95, at=START_US), day="2026-05-18")
    taken, manifest = run(warehouse, segments)
    assert (taken.events, taken.hours, taken.liveness_hours) == (6, {}, set()), "too late for a day that is gone"
    assert sorted(manifest.chapters)[0] >= DAY + 3


def test_what_was_seen_of_a_folder_is_forgotten_only_when_both_are_gone(warehouse, segments):
    for day in range(3):
        put(segments, rows(1 + day, 1 + day, at=START_US + day * DAY_US), day=f"2026-05-1{day}")
    shutil.rmtree(segments / "written=2026-05-10")
    put(segments, rows(9, 9, at=START_US), day="2026-05-09")
    run(warehouse, segments)
    shutil.rmtree(segments / "written=2026-05-09")
    run(warehouse, segments)
    with begin(warehouse) as transaction:
        drop_before(transaction, DAY + 3)
        manifest = commit(transaction)
    assert [*manifest.seen] == ["written=2026-05-11", "written=2026-05-12"]
    assert manifest.covered["broker-1"] == ((7, 2, 3), (7, 9, 9)), "what was covered stays so"


def test_rows_of_a_dropped_day_in_a_file_that_stays_are_not_shown(warehouse, segments):
    put(segments, rows(1, 20, at=(DAY + 1) * DAY_US - 10_000_000))
    put(segments, rows(21, 21, at=(DAY + 2) * DAY_US))
    run(warehouse, segments)
    with begin(warehouse) as transaction:
        assert drop_before(transaction, DAY + 1) == [DAY]
        commit(transaction)
    assert seqs(warehouse) == list(range(11, 22))


@pytest.mark.parametrize("keep_days", [0, 1, 30, LEAST_KEEP_DAYS - 1])
def test_too_few_days_are_refused_and_it_says_why(warehouse, segments, keep_days):
    put(segments, rows(1, 5))
    put(segments, rows(6, 10, at=START_US + 400 * DAY_US))
    run(warehouse, segments)
    with begin(warehouse) as transaction:
        with pytest.raises(TooFewDays, match=r"computed from their days.*keep 62 days or more"):
            retention(transaction, keep_days)
        assert (transaction.days(), transaction.floor_day) == ([DAY, DAY + 400], 0)
        assert retention(transaction, LEAST_KEEP_DAYS) == [DAY]


@pytest.mark.parametrize("day", range(DAY, DAY + 400, 13))
def test_the_least_that_is_kept_has_this_month_and_the_last_one_whole(day):
    floor = day - LEAST_KEEP_DAYS
    assert days_of_month(month_of(day) - 1).start >= floor
    assert day - floor >= 8 * 7, "and what anomalies look back at"


def test_a_month_of_which_a_day_is_gone_is_not_computed_again(warehouse):
    month = month_of(DAY)
    first = days_of_month(month).start
    with begin(warehouse) as transaction:
        months = frozenset({month - 1, month, month + 1})
        assert whole_parts(transaction, "month", months) == months
        transaction.floor_day = first
        assert whole_parts(transaction, "month", months) == {month, month + 1}
        transaction.floor_day = first + 1
        assert whole_parts(transaction, "month", months) == {month + 1}
        assert whole_parts(transaction, "day", {first, first + 1}) == {first, first + 1}
