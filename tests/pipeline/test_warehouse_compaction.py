"""Many small files become few, and nobody who reads them can tell."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scale0.pipeline.reading import open_arrow
from scale0.pipeline.time_ranges import DAY_US, HOUR_US
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
from tests.pipeline.warehouse_made import DAY, HOUR, NOW_US, START_US, add, begin, commit, part_file, put, rows, run

ORDER = [(name, "ascending") for name in ("at", "source", "boot", "seq")]


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
    before = everything(warehouse)
    with begin(warehouse) as transaction:
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
        with begin(warehouse) as transaction:
            compact_events(transaction, day)
            commit(transaction)
        assert everything(warehouse) == before
    warehouse.collect(NOW_US + 3 * DAY_US)
    assert everything(warehouse) == before


def test_events_that_come_again_after_compaction_are_still_known(warehouse, segments):
    fill(warehouse, segments, 4)
    with begin(warehouse) as transaction:
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
    with begin(warehouse) as transaction:
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
    with begin(warehouse) as transaction:
        assert compact(transaction, START_US + 2 * DAY_US) == [DAY]
        assert [len(transaction.day_manifest(day).events) for day in (DAY, DAY + 1)] == [1, 12]
        assert [len(transaction.day_manifest(day).pulses) for day in (DAY, DAY + 1)] == [1, 12]
        commit(transaction)
    assert everything(warehouse) == before
    with begin(warehouse) as transaction:
        assert compact(transaction, START_US + 2 * DAY_US) == []


def test_compacted_data_sets_have_the_same_parts_and_sums(warehouse):
    with begin(warehouse) as transaction:
        for number in range(9):
            add(
                transaction, "tally", [(HOUR + hour, f"n{number}", number) for hour in (number % 4, number % 4 + 1, 24)]
            )
        before, shown = transaction.sums("tally"), len(transaction.day_manifest(DAY).slabs["tally"])
        commit(transaction)
    rows_before = sorted(open_arrow(warehouse, "tally").to_pylist(), key=str)
    with begin(warehouse) as transaction:
        assert shown > 1
        assert compact_data_set(transaction, "tally", DAY)
        assert not compact_data_set(transaction, "tally", DAY)
        [entry] = transaction.day_manifest(DAY).slabs["tally"]
        assert not entry.carved
        assert transaction.sums("tally") == before
        commit(transaction)
    assert sorted(open_arrow(warehouse, "tally").to_pylist(), key=str) == rows_before


def test_files_of_another_shape_are_not_merged(warehouse):
    with begin(warehouse) as transaction:
        add(transaction, "tally", [(HOUR, "a", 1)])
        path = part_file(transaction.staging, "tally", [(HOUR + 1, "a", 1)])
        older = pq.read_table(path, partitioning=None).drop_columns(["name"])
        pq.write_table(older, path)
        transaction.replace("tally", "hour", {HOUR + 1}, transaction.staging.register("tally", [path]))
        assert not compact_data_set(transaction, "tally", DAY)
        commit(transaction)
    assert sorted(open_arrow(warehouse, "tally")["name"].to_pylist(), key=str) == [None, "a"]


def test_a_file_that_changed_is_not_merged(warehouse):
    with begin(warehouse) as transaction:
        add(transaction, "tally", [(HOUR, "a", 1)])
        [entry] = add(transaction, "tally", [(HOUR + 1, "a", 1)])
        path = part_file(transaction.staging, "tally", [(HOUR + 1, "b", 2)])
        path.rename(warehouse.path(entry.path))
        with pytest.raises(WarehouseError, match="changed their rows"):
            compact_data_set(transaction, "tally", DAY)


def test_compacted_liveness_samples_are_the_same(warehouse, segments):
    fill(warehouse, segments)

    def shown(transaction: Transaction) -> list:
        found = []
        for path, parts, _ in transaction.files("pulses"):
            found += [row for row in pq.read_table(path, partitioning=None).to_pylist() if row["part"] in parts]
        return sorted(found, key=str)

    with begin(warehouse) as transaction:
        before = shown(transaction)
        assert compact_liveness(transaction, DAY)
        assert len(transaction.day_manifest(DAY).pulses) == 1
        assert shown(transaction) == before


def test_the_restatement_log_only_grows_and_can_be_one_file(warehouse):
    with begin(warehouse) as transaction:
        for run_number in range(3):
            path = transaction.staging.new_file(RESTATEMENTS, "made")
            pq.write_table(pa.table({"run": [run_number], "table": ["x"]}), path)
            transaction.append_restatements([transaction.staging.register_whole(path)])
        assert len(transaction.files(RESTATEMENTS)) == 3
        assert compact_restatements(transaction)
        [listed] = transaction.files(RESTATEMENTS)
        assert transaction.sums(RESTATEMENTS) == {1: (3, 0)}
        assert pq.read_table(listed.path, partitioning=None)["run"].to_pylist() == [0, 1, 2]
