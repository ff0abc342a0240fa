"""The audit chain: a changed, removed or inserted audit event is found, over restarts, trimming and kill -9."""

from __future__ import annotations

from typing import Any

import pytest

from scale0.history.events.audit import PREVIOUS, AuditChain, AuditStart, hash_of, previous_of
from scale0.history.events.changes import ManagementCommanded
from scale0.history.events.journal import JournalRow, read
from scale0.history.events.sources import SourceAlive
from scale0.kernel.clock import Now
from scale0.storage.interface import AUDIT_HEAD, AUDIT_START, StoredJournal
from scale0.storage.memory.store import MemoryStore
from scale0.storage.rows import PutSetting, ReadJournal
from tests.fakes.broker import FakeBroker


def events_of(store: Any) -> list[dict[str, Any]]:
    rows: Any = store.read(ReadJournal(0, 10_000))
    return [event for row in rows for event in read(row.body) if previous_of(event) is not None]


def checked(events: list[dict[str, Any]]) -> AuditChain:
    chain = AuditChain()
    for event in events:
        chain.add(event)
    return chain


def commanded(count: int) -> list[Any]:
    return [ManagementCommanded(f"a{number}", "patch_config", 200, after=number) for number in range(count)]


def recorded(turns: int = 4) -> list[dict[str, Any]]:
    """Turns of two audit events and another one."""
    journal = StoredJournal("b", 5, MemoryStore().open())
    rows = [journal.append([*commanded(2), SourceAlive("b")], Now(0.0, 100.0 + turn))[0] for turn in range(turns)]
    return [event for row in rows if isinstance(row, JournalRow) for event in read(row.body)]


# Promise: AUDIT-1
def test_each_audit_event_contains_the_hash_of_the_one_before_it():
    events = recorded()
    audit = [event for event in events if event["kind"] == "management.commanded"]
    assert [previous_of(event) for event in audit] == ["", *map(hash_of, audit[:-1])]
    assert all(PREVIOUS not in (event["data"] or "") for event in events if event["kind"] == "source.alive")
    chain = checked(audit)
    assert (chain.rows, chain.broken, chain.starts, chain.head) == (8, None, True, hash_of(audit[-1]))


# Promise: AUDIT-1
@pytest.mark.parametrize(
    ("column", "value"), [("identity", "mallory"), ("code", 403), ("time", 1), ("at", 1), ("source", "c"), ("boot", 9)]
)
def test_a_changed_event_is_found_at_the_next_one(column, value):
    audit = [event for event in recorded() if event["kind"] == "management.commanded"]
    audit[3] = {**audit[3], column: value}
    broken = checked(audit).broken
    assert broken is not None
    assert (broken.seq, broken.reason) == (audit[4]["seq"], "the event before it was changed or removed")


# Promise: AUDIT-1
def test_a_removed_an_inserted_and_an_unchained_event_are_found():
    audit = [event for event in recorded() if event["kind"] == "management.commanded"]
    removed = checked(audit[:3] + audit[4:]).broken
    assert removed is not None
    assert removed.seq == audit[4]["seq"]
    twice = checked([*audit[:4], {**audit[3], "seq": 99}, *audit[4:]]).broken
    assert twice is not None
    assert twice.seq == 99
    plain = checked([*audit[:4], {**audit[3], "data": None}]).broken
    assert plain is not None
    assert "no hash" in plain.reason
    again = checked([*audit, audit[0]]).broken
    assert again is not None
    assert "begins again" in again.reason


# Promise: AUDIT-1
def test_the_first_event_of_a_store_records_that_nothing_was_removed_before_it():
    journal = StoredJournal("b", 5, MemoryStore().open())
    assert len(journal.append([SourceAlive("b")], Now(0.0, 100.0))) == 1
    first, second = (journal.append(commanded(1), Now(0.0, 101.0 + turn)) for turn in range(2))
    assert PutSetting(AUDIT_START, AuditStart("", "b").encode()) in first
    assert [write.key for write in second if isinstance(write, PutSetting)] == [AUDIT_HEAD]


# Promise: AUDIT-1
def test_a_removed_end_is_found_by_the_stored_head():
    audit = [event for event in recorded() if event["kind"] == "management.commanded"]
    assert checked(audit).holds(hash_of(audit[-1]))
    assert checked(audit).holds(hash_of(audit[3])), "the broker recorded more since the head was read"
    assert not checked(audit[:-1]).holds(hash_of(audit[-1]))


# Promise: AUDIT-1
def test_a_chain_must_begin_where_the_store_says():
    audit = [event for event in recorded() if event["kind"] == "management.commanded"]
    hashes = [hash_of(event) for event in audit]
    for beginning, first, recorded_start in (
        ("complete", 0, {""}),
        ("complete", 0, {hashes[4]}),
        ("recorded", 3, {hashes[2]}),
        ("recorded", 3, {hashes[4]}),
        ("recorded", 8, {hashes[7]}),
        ("unknown", 3, set()),
        ("unknown", 8, set()),
        ("", 3, {""}),
        ("", 3, {hashes[1]}),
    ):
        chain = checked(audit[first:])
        chain.judge_beginning(recorded_start, hashes[-1])
        assert (chain.beginning, chain.broken is None, chain.rows) == (beginning, bool(beginning), 8 - first)
        assert chain.holds(hashes[-1])


# Promise: AUDIT-1
@pytest.mark.parametrize("stored", [False, True])
def test_the_chain_continues_after_kill_9_at_either_side_of_a_commit(stored):
    broker = FakeBroker()
    broker.manage("issue_token", name="t1", role="viewer")
    broker.hold()
    broker.send("frontend-1", "MANAGEMENTREQ", {"command": "drain", "id": "1", "auth_token": "s0_test"})
    broker.crash(stored=stored)
    broker.manage("issue_token", name="t2", role="viewer")
    audit = events_of(broker.store)
    assert ("drain" in str(audit)) is stored
    chain = checked(audit)
    assert chain.broken is None
    assert chain.rows == len(audit) >= 2


# Promise: AUDIT-1
def test_the_chain_continues_after_the_journal_was_trimmed():
    broker = FakeBroker()
    broker.manage("issue_token", name="t1", role="viewer")
    before = events_of(broker.store)
    broker.store.trim_journal(before[-1]["seq"])
    assert events_of(broker.store) == []
    broker.crash()
    broker.manage("issue_token", name="t2", role="viewer")
    assert checked([*before, *events_of(broker.store)]).broken is None
