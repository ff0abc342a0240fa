"""Parts are replaced, files are carved, ranges are covered: the arithmetic of the warehouse against plain models."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0.pipeline.reading import open_arrow
from scale0.pipeline.warehouse.records import Coverage, FileEntry, part_sums, restrict, restrict_all
from scale0.pipeline.warehouse.transaction import Transaction
from scale0.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline.warehouse_made import DAY, HOUR, NOW_US, add, begin, commit, hash_of, part_file

ROWS = st.lists(st.tuples(st.integers(HOUR, HOUR + 40), st.integers(0, 9)), max_size=12)


@pytest.mark.slow
@given(
    steps=st.lists(
        st.tuples(st.sets(st.integers(HOUR, HOUR + 40), min_size=1, max_size=12), ROWS, st.booleans()),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=15, deadline=None)
def test_replacing_parts_is_what_a_dictionary_does(tmp_path_factory, steps):
    warehouse = Warehouse(tmp_path_factory.mktemp("carving"))
    model: dict[int, list[int]] = {}
    staging = warehouse.begin()
    transaction = Transaction(None, warehouse, staging)
    for parts, found, commits in steps:
        mine = [(part, "x", count) for part, count in found if part in parts]
        entries = staging.register("tally", [part_file(staging, "tally", mine)])
        transaction.replace("tally", "hour", parts, entries)
        for part in parts:
            model.pop(part, None)
        for part, _, count in mine:
            model.setdefault(part, []).append(count)
        expected = {}
        for part, counts in model.items():
            mixed = 0
            for count in counts:
                mixed ^= hash_of((part, "x", count))
            expected[part] = (len(counts), mixed)
        assert transaction.sums("tally") == expected
        some = set(range(HOUR, HOUR + 40, 3))
        assert transaction.sums("tally", some) == {part: total for part, total in expected.items() if part in some}
        if commits:
            commit(transaction)
            staging = warehouse.begin()
            transaction = Transaction(warehouse.latest(), warehouse, staging)
    commit(transaction)
    warehouse.collect(NOW_US)
    assert sorted(open_arrow(warehouse, "tally")["count"].to_pylist()) == sorted(
        count for counts in model.values() for count in counts
    )


def test_a_file_that_spans_days_is_listed_in_each_with_its_own_parts(warehouse):
    with begin(warehouse) as transaction:
        add(transaction, "tally", [(HOUR, "a", 1), (HOUR + 24, "b", 2)])
        [one] = transaction.day_manifest(DAY).slabs["tally"]
        [other] = transaction.day_manifest(DAY + 1).slabs["tally"]
        assert (set(one.parts), set(other.parts), one.carved, other.carved) == ({HOUR}, {HOUR + 24}, True, True)
        [listed] = transaction.files("tally")
        assert listed.parts == {HOUR, HOUR + 24}


def test_a_part_may_become_empty(warehouse):
    with begin(warehouse) as transaction:
        add(transaction, "tally", [(HOUR, "a", 1)])
        transaction.replace("tally", "hour", {HOUR}, [])
        assert transaction.files("tally") == []
        manifest = commit(transaction)
    assert manifest.chapters == {}


@pytest.mark.parametrize("period", ["day", "month", "open"])
def test_every_period_has_its_place(warehouse, period):
    part = {"day": DAY, "month": 700, "open": 0}[period]
    with begin(warehouse) as transaction:
        for count in (1, 2):
            entries = transaction.staging.register(
                "tally", [part_file(transaction.staging, "tally", [(part, "a", count)])]
            )
            transaction.replace("tally", period, {part}, entries)
        assert [listed.parts for listed in transaction.files("tally")] == [{part}]
        assert [listed.parts for listed in transaction.files("tally", {part})] == [{part}]
        manifest = commit(transaction)
    again = Transaction(manifest, warehouse, transaction.staging)
    assert again.sums("tally") == {part: (1, hash_of((part, "a", 2)))}


def test_replacing_what_was_not_announced_is_a_mistake(warehouse):
    with begin(warehouse) as transaction:
        entries = transaction.staging.register("tally", [part_file(transaction.staging, "tally", [(HOUR, "a", 1)])])
        with pytest.raises(ValueError, match="files hold part"):
            transaction.replace("tally", "hour", {HOUR + 1}, entries)
        transaction.replace("tally", "hour", {HOUR}, entries)
        with pytest.raises(ValueError, match="has the period hour"):
            transaction.replace("tally", "day", {HOUR}, entries)


def test_a_file_of_somebody_else_cannot_be_registered(warehouse, tmp_path):
    with warehouse.begin() as staging, pytest.raises(ValueError, match="not in the staging directory"):
        staging.register("tally", [tmp_path / "x.parquet"])


@given(st.dictionaries(st.integers(0, 9), st.tuples(st.integers(1, 9), st.integers(-99, 99)), min_size=1))
def test_keeping_and_leaving_make_the_whole(parts):
    entry = FileEntry("x", 1, parts)
    even, odd = restrict(entry, lambda part: part % 2 == 0), restrict(entry, lambda part: part % 2 == 1)
    both = [left for left in (even, odd) if left is not None]
    assert part_sums(both) == parts
    assert all(left.carved for left in both) == (len(both) == 2)
    assert restrict_all([entry], lambda _: True) == (entry,)


# Coverage.


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(1, 30), st.integers(0, 6))))
def test_coverage_is_what_a_set_is(ranges):
    coverage = Coverage({})
    model: set[tuple[int, int]] = set()
    for boot, first, length in ranges:
        within = {
            seq for low, high in coverage.within("s", boot, first, first + length) for seq in range(low, high + 1)
        }
        wanted = {seq for b, seq in model if b == boot and first <= seq <= first + length}
        assert within == wanted
        assert coverage.holds("s", boot, first, first + length) == (len(wanted) == length + 1)
        coverage.add("s", boot, first, first + length)
        model |= {(boot, seq) for seq in range(first, first + length + 1)}
    frozen = coverage.frozen().get("s", ())
    assert {(boot, seq) for boot, low, high in frozen for seq in range(low, high + 1)} == model
    assert all(one[0] < other[0] or one[2] + 1 < other[1] for one, other in itertools.pairwise(frozen))
