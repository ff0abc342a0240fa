"""Many small files become few, and nobody who reads them can tell."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scale0.pipeline.reading import open_arrow
from scale0.pipeline.time_ranges import HOUR_US
from scale0.pipeline.warehouse import compaction
from scale0.pipeline.warehouse.compaction import (
    compact,
    compact_data_set,
    compact_events,
    compact_liveness,
    compact_restatements,
)
from scale0.pipeline.warehouse.records import RESTATEMENTS, WarehouseError
from scale0.pipeline.warehouse.transaction import Transaction
from scale0.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.warehouse_made import DAY, HOUR, NOW_US, START_US, add, commit, put, rows, run, slab_file

DAY_US = 24 * HOUR_US
ORDER = [(name, "ascending") for name in ("at", "source", "boot", "seq")]


@pytest.fixture
def warehouse(tmp_path):
    return Warehouse(tmp_path / "warehouse")


@pytest.fixture
def segments(tmp_path):
    return tmp_path / "segments"


def everything(warehouse: Warehouse) -> Any:
    return open_arrow(warehouse, "events").sort_by(ORDER).to_pylist()


def fill(warehouse: Warehouse, segments, count: int = 12) -> None:
    """Segments of two sources over an evening and a night; some events happened long before they were recorded."""
    for number in range(count):
        first = 1 + number * 10
        events = rows(first, first + 9, at=(DAY + 1) * DAY_US - 6 * HOUR_US + number * HOUR_US, step=HOUR_US // 5)
        events[3]["at"] -= 3 * DAY_US
        put(segments, events, source="ab"[number % 2])
        run(warehouse, segments)


def test_compacted_events_are_the_same_sorted_and_in_few_files(warehouse, segments):
    fill(warehouse, segments)
    before, base = everything(warehouse), warehouse.latest()
    with warehouse.begin() as staging:
        transaction = Transaction(base, warehouse, staging)
        hours = transaction.hours_with_events()
        kinds = {hour: transaction.kinds_in({hour}) for hour in hours}
        assert compact_events(transaction, DAY)
        assert transaction.hours_with_events() == hours
        assert {hour: transaction.kinds_in({hour}) for hour in hours} == kinds
        [file] = transaction.day_manifest(DAY).events
        at = pq.read_table(warehouse.path(file.path), partitioning=None)["at"].to_pylist()
        assert at == sorted(at)
        assert (file.source, file.days) == ("", (DAY,))
        commit(transaction)
    assert everything(warehouse) == before


def test_every_day_can_be_compacted_in_any_order_and_no_event_is_lost_or_doubled(warehouse, segments):
    fill(warehouse, segments)
    before = everything(warehouse)
    for day in (DAY + 1, DAY - 3, DAY, DAY - 2):
        with warehouse.begin() as staging:
            transaction = Transaction(warehouse.latest(), warehouse, staging)
            compact_events(transaction, day)
            commit(transaction)
        assert everything(warehouse) == before
    warehouse.collect(NOW_US + 3 * DAY_US)
    assert everything(warehouse) == before


def test_events_that_come_again_after_compaction_are_still_known(warehouse, segments):
    fill(warehouse, segments, 4)
    with warehouse.begin() as staging:
        transaction = Transaction(warehouse.latest(), warehouse, staging)
        compact_events(transaction, DAY)
        commit(transaction)
    before = everything(warehouse)
    events = rows(1, 10, at=(DAY + 1) * DAY_US - 6 * HOUR_US, step=HOUR_US // 5)
    events[3]["at"] -= 3 * DAY_US
    events[4]["ref"] = "another"
    put(segments, events, source="a", day="2026-05-30")
    taken, _ = run(warehouse, segments)
    assert (taken.duplicates, taken.rejected, taken.events) == (9, 1, 0)
    assert everything(warehouse) == before


def test_an_hour_with_very_many_events_is_sorted_in_pieces(warehouse, segments, monkeypatch):
    monkeypatch.setattr(compaction, "SORT_ROWS", 7)
    monkeypatch.setattr(compaction, "FILE_ROWS", 20)
    put(segments, rows(1, 50), source="a")
    put(segments, rows(1, 50), source="b")
    run(warehouse, segments)
    before = everything(warehouse)
    with warehouse.begin() as staging:
        transaction = Transaction(warehouse.latest(), warehouse, staging)
        compact_events(transaction, DAY)
        files = transaction.day_manifest(DAY).events
        assert 3 <= len(files) <= 5
        read = pa.concat_tables([pq.read_table(warehouse.path(file.path), partitioning=None) for file in files])
        assert read.to_pylist() == before
        commit(transaction)


def test_only_closed_days_with_many_files_are_compacted(warehouse, segments):
    for number in range(12):
        put(segments, rows(1 + number, 1 + number, at=START_US + number))
        put(segments, rows(100 + number, 100 + number, at=START_US + DAY_US + number))
        run(warehouse, segments)
    put(segments, rows(900, 900, at=START_US + 2 * DAY_US))
    run(warehouse, segments)
    before = everything(warehouse)
    with warehouse.begin() as staging:
        transaction = Transaction(warehouse.latest(), warehouse, staging)
        assert compact(transaction, START_US + 2 * DAY_US) == [DAY]
        assert [len(transaction.day_manifest(day).events) for day in (DAY, DAY + 1)] == [1, 12]
        assert [len(transaction.day_manifest(day).pulses) for day in (DAY, DAY + 1)] == [1, 12]
        manifest = commit(transaction)
    assert everything(warehouse) == before
    with warehouse.begin() as staging:
        assert compact(Transaction(manifest, warehouse, staging), START_US + 2 * DAY_US) == []


def test_compacted_slabs_have_the_same_parts_and_sums(warehouse):
    with warehouse.begin() as staging:
        transaction = Transaction(None, warehouse, staging)
        for number in range(9):
            add(
                transaction, "tally", [(HOUR + hour, f"n{number}", number) for hour in (number % 4, number % 4 + 1, 24)]
            )
        before, shown = transaction.sums("tally"), len(transaction.day_manifest(DAY).slabs["tally"])
        manifest = commit(transaction)
    rows_before = sorted(open_arrow(warehouse, "tally").to_pylist(), key=str)
    with warehouse.begin() as staging:
        transaction = Transaction(manifest, warehouse, staging)
        assert shown > 1
        assert compact_data_set(transaction, "tally", DAY)
        assert not compact_data_set(transaction, "tally", DAY)
        [entry] = transaction.day_manifest(DAY).slabs["tally"]
        assert not entry.carved
        assert transaction.sums("tally") == before
        commit(transaction)
    assert sorted(open_arrow(warehouse, "tally").to_pylist(), key=str) == rows_before


def test_files_of_another_shape_are_not_merged(warehouse):
    with warehouse.begin() as staging:
        transaction = Transaction(None, warehouse, staging)
        add(transaction, "tally", [(HOUR, "a", 1)])
        path = slab_file(staging, "tally", [(HOUR + 1, "a", 1)])
        older = pq.read_table(path, partitioning=None).drop_columns(["name"])
        pq.write_table(older, path)
        transaction.replace("tally", "hour", {HOUR + 1}, staging.register("tally", [path]))
        assert not compact_data_set(transaction, "tally", DAY)
        commit(transaction)
    assert sorted(open_arrow(warehouse, "tally")["name"].to_pylist(), key=str) == [None, "a"]


def test_a_file_that_changed_is_not_merged(warehouse):
    with warehouse.begin() as staging:
        transaction = Transaction(None, warehouse, staging)
        add(transaction, "tally", [(HOUR, "a", 1)])
        [entry] = add(transaction, "tally", [(HOUR + 1, "a", 1)])
        path = slab_file(staging, "tally", [(HOUR + 1, "b", 2)])
        path.rename(warehouse.path(entry.path))
        with pytest.raises(WarehouseError, match="changed their rows"):
            compact_data_set(transaction, "tally", DAY)


def test_compacted_pulses_are_the_same(warehouse, segments):
    fill(warehouse, segments)

    def shown(transaction: Transaction) -> list:
        found = []
        for path, parts, _ in transaction.liveness_files():
            found += [row for row in pq.read_table(path, partitioning=None).to_pylist() if row["part"] in parts]
        return sorted(found, key=str)

    with warehouse.begin() as staging:
        transaction = Transaction(warehouse.latest(), warehouse, staging)
        before = shown(transaction)
        assert compact_liveness(transaction, DAY)
        assert len(transaction.day_manifest(DAY).pulses) == 1
        assert shown(transaction) == before


def test_the_ledger_only_grows_and_can_be_one_file(warehouse):
    with warehouse.begin() as staging:
        transaction = Transaction(None, warehouse, staging)
        for run_number in range(3):
            path = staging.new_file(RESTATEMENTS, "made")
            pq.write_table(pa.table({"run": [run_number], "table": ["x"]}), path)
            transaction.append_restatements([staging.register_whole(path)])
        assert len(transaction.files(RESTATEMENTS)) == 3
        assert compact_restatements(transaction)
        [listed] = transaction.files(RESTATEMENTS)
        assert transaction.sums(RESTATEMENTS) == {1: (3, 0)}
        assert pq.read_table(listed.path, partitioning=None)["run"].to_pylist() == [0, 1, 2]
