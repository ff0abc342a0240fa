"""Many small files become few, and nobody who reads them can tell."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scale0.pipeline.reading import open_arrow
from scale0.pipeline.time_ranges import HOUR_US
from scale0.pipeline.warehouse import compaction
from scale0.pipeline.warehouse.compaction import compact, compact_events
from scale0.pipeline.warehouse.errors import WarehouseError
from scale0.pipeline.warehouse.merging import compact_ledger, compact_pulses, compact_slabs
from scale0.pipeline.warehouse.records import LEDGER
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
    with warehouse.begin() as attempt:
        draft = Transaction(base, warehouse, attempt)
        hours = draft.hours_with_events()
        kinds = {hour: draft.kinds_in({hour}) for hour in hours}
        assert compact_events(draft, DAY)
        assert draft.hours_with_events() == hours
        assert {hour: draft.kinds_in({hour}) for hour in hours} == kinds
        [file] = draft.chapter(DAY).events
        at = pq.read_table(warehouse.path(file.path), partitioning=None)["at"].to_pylist()
        assert at == sorted(at)
        assert (file.source, file.days) == ("", (DAY,))
        commit(draft)
    assert everything(warehouse) == before


def test_every_day_can_be_compacted_in_any_order_and_no_event_is_lost_or_doubled(warehouse, segments):
    fill(warehouse, segments)
    before = everything(warehouse)
    for day in (DAY + 1, DAY - 3, DAY, DAY - 2):
        with warehouse.begin() as attempt:
            draft = Transaction(warehouse.latest(), warehouse, attempt)
            compact_events(draft, day)
            commit(draft)
        assert everything(warehouse) == before
    warehouse.collect(NOW_US + 3 * DAY_US)
    assert everything(warehouse) == before


def test_events_that_come_again_after_compaction_are_still_known(warehouse, segments):
    fill(warehouse, segments, 4)
    with warehouse.begin() as attempt:
        draft = Transaction(warehouse.latest(), warehouse, attempt)
        compact_events(draft, DAY)
        commit(draft)
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
    with warehouse.begin() as attempt:
        draft = Transaction(warehouse.latest(), warehouse, attempt)
        compact_events(draft, DAY)
        files = draft.chapter(DAY).events
        assert 3 <= len(files) <= 5
        read = pa.concat_tables([pq.read_table(warehouse.path(file.path), partitioning=None) for file in files])
        assert read.to_pylist() == before
        commit(draft)


def test_only_closed_days_with_many_files_are_compacted(warehouse, segments):
    for number in range(12):
        put(segments, rows(1 + number, 1 + number, at=START_US + number))
        put(segments, rows(100 + number, 100 + number, at=START_US + DAY_US + number))
        run(warehouse, segments)
    put(segments, rows(900, 900, at=START_US + 2 * DAY_US))
    run(warehouse, segments)
    before = everything(warehouse)
    with warehouse.begin() as attempt:
        draft = Transaction(warehouse.latest(), warehouse, attempt)
        assert compact(draft, START_US + 2 * DAY_US) == [DAY]
        assert [len(draft.chapter(day).events) for day in (DAY, DAY + 1)] == [1, 12]
        assert [len(draft.chapter(day).pulses) for day in (DAY, DAY + 1)] == [1, 12]
        manifest = commit(draft)
    assert everything(warehouse) == before
    with warehouse.begin() as attempt:
        assert compact(Transaction(manifest, warehouse, attempt), START_US + 2 * DAY_US) == []


def test_compacted_slabs_have_the_same_parts_and_sums(warehouse):
    with warehouse.begin() as attempt:
        draft = Transaction(None, warehouse, attempt)
        for number in range(9):
            add(draft, "tally", [(HOUR + hour, f"n{number}", number) for hour in (number % 4, number % 4 + 1, 24)])
        before, shown = draft.sums("tally"), len(draft.chapter(DAY).slabs["tally"])
        manifest = commit(draft)
    rows_before = sorted(open_arrow(warehouse, "tally").to_pylist(), key=str)
    with warehouse.begin() as attempt:
        draft = Transaction(manifest, warehouse, attempt)
        assert shown > 1
        assert compact_slabs(draft, "tally", DAY)
        assert not compact_slabs(draft, "tally", DAY)
        [entry] = draft.chapter(DAY).slabs["tally"]
        assert not entry.carved
        assert draft.sums("tally") == before
        commit(draft)
    assert sorted(open_arrow(warehouse, "tally").to_pylist(), key=str) == rows_before


def test_files_of_another_shape_are_not_merged(warehouse):
    with warehouse.begin() as attempt:
        draft = Transaction(None, warehouse, attempt)
        add(draft, "tally", [(HOUR, "a", 1)])
        path = slab_file(attempt, "tally", [(HOUR + 1, "a", 1)])
        older = pq.read_table(path, partitioning=None).drop_columns(["name"])
        pq.write_table(older, path)
        draft.replace("tally", "hour", {HOUR + 1}, attempt.register("tally", [path]))
        assert not compact_slabs(draft, "tally", DAY)
        commit(draft)
    assert sorted(open_arrow(warehouse, "tally")["name"].to_pylist(), key=str) == [None, "a"]


def test_a_file_that_changed_is_not_merged(warehouse):
    with warehouse.begin() as attempt:
        draft = Transaction(None, warehouse, attempt)
        add(draft, "tally", [(HOUR, "a", 1)])
        [entry] = add(draft, "tally", [(HOUR + 1, "a", 1)])
        path = slab_file(attempt, "tally", [(HOUR + 1, "b", 2)])
        path.rename(warehouse.path(entry.path))
        with pytest.raises(WarehouseError, match="changed their rows"):
            compact_slabs(draft, "tally", DAY)


def test_compacted_pulses_are_the_same(warehouse, segments):
    fill(warehouse, segments)

    def shown(draft: Transaction) -> list:
        found = []
        for path, parts, _ in draft.pulses():
            found += [row for row in pq.read_table(path, partitioning=None).to_pylist() if row["part"] in parts]
        return sorted(found, key=str)

    with warehouse.begin() as attempt:
        draft = Transaction(warehouse.latest(), warehouse, attempt)
        before = shown(draft)
        assert compact_pulses(draft, DAY)
        assert len(draft.chapter(DAY).pulses) == 1
        assert shown(draft) == before


def test_the_ledger_only_grows_and_can_be_one_file(warehouse):
    with warehouse.begin() as attempt:
        draft = Transaction(None, warehouse, attempt)
        for run_number in range(3):
            path = attempt.new_file(LEDGER, "made")
            pq.write_table(pa.table({"run": [run_number], "table": ["x"]}), path)
            draft.append_ledger([attempt.register_whole(path)])
        assert len(draft.files(LEDGER)) == 3
        assert compact_ledger(draft)
        [listed] = draft.files(LEDGER)
        assert draft.sums(LEDGER) == {1: (3, 0)}
        assert pq.read_table(listed.path, partitioning=None)["run"].to_pylist() == [0, 1, 2]
