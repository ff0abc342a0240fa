"""What every store promises."""

from __future__ import annotations

import pytest

from scale0.history.events.journal import Journal, JournalRow
from scale0.history.events.sources import SourceAlive
from scale0.kernel.clock import Now
from scale0.storage.interface import FAILPOINTS, StoreFailed, StoreRefused
from scale0.storage.memory.store import MemoryStore
from scale0.storage.rows import (
    MAX_READ_ROWS,
    DocumentRow,
    DropSetting,
    PutDocument,
    PutSetting,
    ReadDocument,
    ReadDocuments,
    ReadJournal,
    bounded,
)


def document(version, name, current=True, author="root", time_us=7):
    return PutDocument(version, name, "00", f"{version}{name}".encode(), time_us, current, author)


def kept(store, ask):
    return [(each.version, each.hash, each.current) for each in store.read(ask)]


def entries(opened, count, events=2):
    journal_writer = Journal("east-1", opened.last_boot_us + 5, opened.next_seq, opened.last_time_us)
    start = opened.last_time_us / 1e6 + 100.0
    made = [journal_writer.append([SourceAlive("east-1")] * events, Now(0.0, start + n)) for n in range(count)]
    return [entry for entry in made if entry is not None]


def test_a_new_store_is_empty_and_starts_at_one(make):
    opened = make().open()
    assert (opened.settings, opened.document, opened.tokens) == ({}, None, ())
    assert (opened.next_seq, opened.last_time_us, opened.last_boot_us, opened.boots) == (1, 0, 0, 1)


def test_writes_of_one_commit_count_in_their_order(make, store):
    store.commit(
        [PutSetting("k", b"1"), DropSetting("k"), PutSetting("k", b"2"), PutSetting("gone", b""), DropSetting("gone")]
    )
    assert make().open().settings == {"k": b"2"}


def test_the_loser_of_a_conflict_is_kept_and_is_not_current(make, store):
    store.commit([document(1, "aa"), document(2, "bb"), document(2, "cc"), document(2, "aa", current=False)])
    assert kept(store, ReadDocuments(9)) == [(2, "cc", True), (2, "bb", False), (2, "aa", False), (1, "aa", False)]
    found = make().open().document
    assert found == DocumentRow(2, "cc", "00", b"2cc", 7, True, "root")


def test_the_same_document_twice_is_the_same(store):
    store.commit([document(1, "aa"), document(1, "aa", author="west-1", time_us=9)])
    store.commit([document(1, "aa", current=False)])
    assert store.read(ReadDocuments(9)) == (DocumentRow(1, "aa", "00", b"1aa", 7, True, "root"),)


def test_a_document_can_become_current_again(store):
    store.commit([document(2, "aa"), document(2, "bb"), document(2, "aa")])
    assert kept(store, ReadDocuments(9)) == [(2, "bb", False), (2, "aa", True)]


def test_history_pages_through_versions_with_several_documents(store):
    store.commit([document(version, name) for version in (1, 2, 3) for name in ("aa", "bb")])
    seen, ask = [], ReadDocuments(1)
    while page := store.read(ask):
        seen += page
        ask = ReadDocuments(1, page[-1].version, page[-1].hash)
    assert [(each.version, each.hash) for each in seen] == [(v, h) for v in (3, 2, 1) for h in ("bb", "aa")]
    assert kept(store, ReadDocuments(9, 2)) == [(1, "bb", False), (1, "aa", False)]


def test_a_version_without_a_hash_is_its_current_document_or_the_largest_hash(store):
    store.commit([document(1, "cc"), document(1, "aa", current=False), document(2, "bb", current=False)])
    assert store.read(ReadDocument(1)).hash == "cc"
    store.commit([document(1, "aa")])
    assert store.read(ReadDocument(1)).hash == "aa"
    assert store.read(ReadDocument(2)).hash == "bb"
    assert store.read(ReadDocument(1, "cc")).body == b"1cc"
    assert store.read(ReadDocument(1, "dd")) is None
    assert store.read(ReadDocument(9)) is None


def test_the_journal_is_read_from_the_row_that_holds_the_next_event(make):
    store = make()
    rows = entries(store.open(), 4)
    store.commit(rows)
    assert store.read(ReadJournal(0, 9)) == tuple(rows)
    assert store.read(ReadJournal(3, 9)) == tuple(rows[1:])
    assert store.read(ReadJournal(4, 1)) == (rows[2],)
    assert store.read(ReadJournal(8, 9)) == ()


# Promise: JOUR-1
def test_numbers_go_on_after_everything_was_trimmed(make):
    store = make()
    rows = entries(store.open(), 3)
    store.commit(rows)
    store.trim_journal(3)
    assert store.read(ReadJournal(0, 9)) == tuple(rows[1:])
    store.trim_journal(100)
    again = make()
    opened = again.open()
    assert (opened.next_seq, opened.last_time_us, opened.last_boot_us, opened.boots) == (7, 102_000_000, 5, 2)
    again.commit(entries(opened, 1))
    assert make().open().next_seq == 9


# Promise: STORE-3
@pytest.mark.parametrize("point", FAILPOINTS[:3])
def test_nothing_of_a_commit_that_failed_is_there_and_no_other_follows(make, point):
    def break_at(name):
        if name == point:
            raise OSError("planted")

    store = make(break_at)
    rows = entries(store.open(), 1)
    with pytest.raises(OSError, match="planted"):
        store.commit([PutSetting("k", b"v"), *rows])
    with pytest.raises(StoreFailed):
        store.commit([PutSetting("k", b"v")])
    with pytest.raises(StoreFailed):
        store.trim_journal(1)
    opened = make().open()
    assert (opened.settings, opened.next_seq) == ({}, 1)


def test_failpoints_are_reached_in_their_order(make):
    reached: list[str] = []
    store = make(reached.append)
    store.open()
    store.commit([PutSetting("k", b"v")])
    assert tuple(reached) == FAILPOINTS


def test_a_row_that_ends_before_it_begins_is_refused(store):
    with pytest.raises(ValueError, match="expected from 1"):
        store.commit([JournalRow(1, 0, 5, 5, b"")])


def test_an_ask_gets_no_more_than_the_limit():
    assert [bounded(n) for n in (-5, 0, 7, 10**9)] == [0, 0, 7, MAX_READ_ROWS]


def test_a_store_is_opened_once_and_closed_any_number_of_times(store):
    with pytest.raises(StoreRefused):
        store.open()
    store.close()
    store.close()
    with pytest.raises(StoreRefused):
        store.read(ReadDocument(1))
    with pytest.raises(StoreFailed):
        store.commit([])


def test_an_old_disk_that_comes_back_has_what_it_had():
    store = MemoryStore()
    rows = entries(store.open(), 3)
    store.commit(rows[:1])
    old = store.snapshot()
    store.commit([*rows[1:], PutSetting("k", b"v")])
    back = store.restore(old)
    opened = back.open()
    assert (opened.next_seq, opened.settings) == (3, {})
    assert back.read(ReadJournal(0, 9)) == (rows[0],)
    with pytest.raises(StoreFailed):
        store.commit([])


def test_a_full_disk_can_be_simulated_and_outlives_a_crash():
    store = MemoryStore(free_bytes=10)
    assert store.free_bytes() == 10
    assert store.crash().free_bytes() == 10
