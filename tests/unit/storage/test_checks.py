"""What every store promises of agents and checks."""

from __future__ import annotations

from typing import Any

import pytest

from scale0.storage.check_rows import (
    AgentRow,
    CheckQuery,
    CheckStateRow,
    DropAgent,
    DropCheckState,
    DropNotice,
    DropSpool,
    IncidentRow,
    NoticeRow,
    PutAgent,
    PutCheckState,
    PutIncident,
    PutNotice,
    PutSpool,
    ReadAgents,
    ReadCheckStates,
    ReadIncidents,
    ReadNotices,
    ReadSpools,
    SpoolRow,
    SweepIncidents,
)
from scale0.storage.sqlite.store import DATABASE_NAME, SqliteStore
from scale0.storage.sqlite.tasks import ROWS_AT_ONCE
from tests.unit.storage.stores import database_of_version, statements_of, stores

EVERY_ASK: tuple[CheckQuery, ...] = (
    ReadAgents("", 9),
    ReadCheckStates("", "", 9),
    ReadSpools("", "", 9),
    ReadNotices("", 9),
    *(ReadIncidents(open_only, before, "x", 9) for open_only in (False, True) for before in (None, 5)),
)


@pytest.fixture(params=["memory", "sqlite"])
def make(request, tmp_path):
    """What a Helen keeps is hers alone: no store that brokers share has it."""
    yield from stores(request, tmp_path / "data")


# Promise: CHECK-10
def test_of_several_writes_about_one_row_the_last_counts(make, store):
    store.commit(
        [
            *(PutAgent("a", b"1"), DropAgent("a"), PutAgent("a", b"2"), PutAgent("gone", b""), DropAgent("gone")),
            *(PutCheckState("a", "c", b"1"), PutCheckState("a", "c", b"2"), DropCheckState("a", "never")),
            *(PutSpool("a", "s", b"1", 5), DropSpool("a", "s"), PutSpool("a", "s", b"2", 6)),
            *(PutNotice("n", b"1"), PutNotice("m", b""), DropNotice("m")),
        ]
    )
    store = make()
    store.open()
    assert store.read(ReadAgents("", 9)) == (AgentRow("a", b"2"),)
    assert store.read(ReadCheckStates("", "", 9)) == (CheckStateRow("a", "c", b"2"),)
    assert store.read(ReadSpools("", "", 9)) == (SpoolRow("a", "s", b"2", 6),)
    assert store.read(ReadNotices("", 9)) == (NoticeRow("n", b"1"),)


def test_states_are_paged_by_agent_and_then_by_check(store):
    store.commit([PutCheckState(agent, check, b"") for agent in ("b", "a", "a.b") for check in ("z", "y")])
    seen = []
    place = ("", "")
    while page := store.read(ReadCheckStates(*place, 4)):
        seen += [(row.agent, row.check) for row in page]
        place = seen[-1]
    assert seen == [("a", "y"), ("a", "z"), ("a.b", "y"), ("a.b", "z"), ("b", "y"), ("b", "z")]


def test_incidents_are_newest_first_and_the_open_ones_can_be_asked_for_alone(store):
    store.commit([PutIncident(f"i{n}", "a", "c", n // 2, None, b"") for n in range(5)])
    store.commit([PutIncident("i3", "a", "c", 1, 9, b"over")])
    everything = store.read(ReadIncidents(False, None, "", 9))
    assert [row.id for row in everything] == ["i4", "i3", "i2", "i1", "i0"]
    assert everything[1] == IncidentRow("i3", "a", "c", 1, 9, b"over")
    assert [row.id for row in store.read(ReadIncidents(True, None, "", 9))] == ["i4", "i2", "i1", "i0"]
    assert [row.id for row in store.read(ReadIncidents(False, 1, "i3", 2))] == ["i2", "i1"]
    assert [row.id for row in store.read(ReadIncidents(True, 1, "i3", 9))] == ["i2", "i1", "i0"]


# Promise: CHECK-10
def test_a_sweep_forgets_the_first_closed_first_and_never_an_open_one(store):
    ends = {"a": 5, "b": 3, "c": None, "d": 7, "e": 3}
    store.commit([*(PutIncident(name, "a", "c", 1, end, b"") for name, end in ends.items()), SweepIncidents(5, 2)])
    assert [row.id for row in store.read(ReadIncidents(False, None, "", 9))] == ["d", "c", "a"]
    store.commit([SweepIncidents(2**64, 9)])
    assert [row.id for row in store.read(ReadIncidents(False, None, "", 9))] == ["c"]


# Promise: CHECK-10
@pytest.mark.parametrize("count", [1, ROWS_AT_ONCE[1] + 3, 2 * ROWS_AT_ONCE[0] + ROWS_AT_ONCE[1] + 1])
def test_many_rows_at_once_are_all_there(store, count):
    for body in (b"first", b"second"):
        store.commit([PutCheckState(f"agent-{n:05}", "load", body) for n in range(count)])
    rows = store.read(ReadCheckStates("", "", 10_000))
    assert [(row.agent, row.body) for row in rows] == [(f"agent-{n:05}", b"second") for n in range(count)]


def test_no_statement_about_checks_walks_over_a_table_or_sorts_it(tmp_path):
    store = SqliteStore(tmp_path)
    store.open()
    writes: list[Any] = [
        *(PutAgent("a", b""), DropAgent("b"), PutCheckState("a", "c", b""), DropCheckState("b", "c")),
        *(PutSpool("a", "s", b"", 1), DropSpool("b", "s"), PutNotice("n", b""), DropNotice("m")),
        *(PutIncident("i", "a", "c", 1, None, b""), SweepIncidents(5, 5)),
    ]
    statements = set(statements_of(store, writes, scans=EVERY_ASK))
    counting = 1  # each commit is counted
    assert len(statements) == 10 + counting + len(EVERY_ASK)
    bad = []
    writer = store._writer
    assert writer is not None
    for statement in statements:
        steps = [row[3] for row in writer.execute(f"EXPLAIN QUERY PLAN {statement}") if "CONSTANT ROW" not in row[3]]
        # From the newest on, an index is walked from its end, and the limit stops it.
        newest = "WHERE true" in statement or "WHERE closed_us IS NULL ORDER" in statement
        bad += [(statement, step) for step in steps if "TEMP B-TREE" in step or ("SCAN" in step and not newest)]
    store.close()
    assert bad == []


# Promise: STORE-4
def test_a_database_of_the_second_version_keeps_what_it_had_and_gets_checks(tmp_path, monkeypatch):
    connection = database_of_version(tmp_path / DATABASE_NAME, 2, monkeypatch)
    connection.execute("INSERT INTO settings VALUES ('k', x'01')")
    connection.close()
    store = SqliteStore(tmp_path)
    assert store.open().settings == {"k": b"\x01"}
    assert all(store.read(ask) == () for ask in EVERY_ASK)
    store.commit([PutAgent("a", b"")])
    assert store.read(ReadAgents("", 9)) == (AgentRow("a", b""),)
    store.close()
