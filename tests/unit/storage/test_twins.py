"""The same commands give the same answers from memory and from SQLite, over reopening and crashes.

Promise: STORE-5
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from scale0.history.events.journal import Journal
from scale0.history.events.sources import SourceAlive
from scale0.kernel.clock import Now
from scale0.storage import check_rows as rows
from scale0.storage.interface import OpenedStore
from scale0.storage.memory.store import MemoryStore
from scale0.storage.rows import (
    DropSetting,
    DropToken,
    PutDocument,
    PutSetting,
    PutToken,
    ReadDocument,
    ReadDocuments,
    ReadJournal,
    Write,
)
from scale0.storage.sqlite.store import SqliteStore
from tests.fakes.examples import examples

keys = st.sampled_from(["a", "b", "ü", ""])
hashes = st.sampled_from(["aa", "bb", "ff"])
versions = st.integers(1, 4)
numbers = st.integers(0, 2**63 - 1)
writes = st.one_of(
    st.builds(PutSetting, keys, st.binary(max_size=8)),
    st.builds(DropSetting, keys),
    st.builds(PutToken, keys, st.text(max_size=4), st.sampled_from(["frontend", "peer"]), numbers, keys),
    st.builds(DropToken, keys),
    st.builds(PutDocument, versions, hashes, hashes, st.binary(max_size=8), numbers, st.booleans(), keys),
)
asks = st.one_of(
    st.builds(ReadDocuments, st.integers(-1, 6), st.none() | st.integers(-1, 5), st.just("") | hashes),
    st.builds(ReadDocument, st.integers(-1, 5), st.none() | hashes),
    st.builds(ReadJournal, st.integers(-1, 30), st.integers(-1, 20)),
    st.sampled_from([ReadDocument(2**64), ReadDocuments(9, 2**64), ReadDocuments(9, -(2**64)), ReadJournal(2**64, 9)]),
)


class Twins(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="scale0-twins-"))
        self.memory = MemoryStore()
        self.sqlite = SqliteStore(self.folder)
        self.wall = 1000.0

    @initialize()
    def start(self):
        self.take(self.memory.open(), self.sqlite.open())

    def take(self, memory: OpenedStore, sqlite: OpenedStore):
        assert memory == sqlite
        self.journal = Journal("east-1", memory.last_boot_us + 1, memory.next_seq, memory.last_time_us)

    @rule(batch=st.lists(writes, max_size=6), events=st.integers(0, 3))
    def commit(self, batch, events):
        self.wall += 1
        entry = self.journal.append([SourceAlive("east-1")] * events, Now(0.0, self.wall))
        whole = [*batch[:2], *([entry] if entry else []), *batch[2:]]
        self.memory.commit(whole)
        self.sqlite.commit(whole)

    @rule(row=st.sampled_from(["gap", "repetition", "number"]))
    def unfit_commits_are_refused_whole(self, row):
        entry = Journal("east-1", 9, self.journal.next_seq + {"gap": 1}.get(row, 0), 0).append(
            [SourceAlive("east-1")], Now(0.0, self.wall)
        )
        assert entry is not None
        by_name: dict[str, list[Write]] = {
            "gap": [entry],
            "repetition": [entry, entry],
            "number": [PutToken("a", "", "", 2**63)],
        }
        for store in (self.memory, self.sqlite):
            with pytest.raises(ValueError):
                store.commit([PutSetting("a", b"unfit"), *by_name[row]])

    @rule(ask=asks)
    def read(self, ask):
        assert self.memory.read(ask) == self.sqlite.read(ask)

    @rule(back=st.integers(0, 12))
    def trim(self, back):
        for store in (self.memory, self.sqlite):
            store.trim_journal(self.journal.next_seq - 1 - back)

    @rule()
    def reopen(self):
        self.memory = self.memory.crash()
        self.sqlite.close()
        self.sqlite = SqliteStore(self.folder)
        self.take(self.memory.open(), self.sqlite.open())

    @invariant()
    def all_reads_agree(self):
        found = self.sqlite.read(ReadDocuments(100))
        assert isinstance(found, tuple)
        assert found == self.memory.read(ReadDocuments(100))
        current = [each for each in found if getattr(each, "current", False)]
        assert len(current) <= 1
        assert self.memory.read(ReadJournal(0, 1000)) == self.sqlite.read(ReadJournal(0, 1000))

    def teardown(self):
        self.sqlite.close()
        shutil.rmtree(self.folder)


TestTwins = Twins.TestCase
TestTwins.settings = examples(25, stateful_step_count=20)


# Agents, checks, incidents and notices.


row_names = st.sampled_from(["", "a", "b", "b.c", "ü", "\uffff", "\U0001f40e"])
small = st.binary(max_size=3)
times = st.integers(0, 4) | st.just(2**63 - 1)
limits = st.integers(-1, 5)
far = st.sampled_from([2**64, -(2**64)])

check_writes = st.one_of(
    st.builds(rows.PutAgent, row_names, small),
    st.builds(rows.DropAgent, row_names),
    st.builds(rows.PutCheckState, row_names, row_names, small),
    st.builds(rows.PutCheckState, row_names, row_names, small),
    st.builds(rows.DropCheckState, row_names, row_names),
    st.builds(rows.PutSpool, row_names, row_names, small, times),
    st.builds(rows.DropSpool, row_names, row_names),
    st.builds(rows.PutIncident, row_names, row_names, row_names, times, st.none() | times, small),
    st.builds(rows.PutIncident, row_names, row_names, row_names, times, st.none() | times, small),
    st.builds(rows.SweepIncidents, times | far, st.integers(-1, 3)),
    st.builds(rows.PutNotice, row_names, small),
    st.builds(rows.DropNotice, row_names),
)
check_asks = st.one_of(
    st.builds(rows.ReadAgents, row_names, limits),
    st.builds(rows.ReadCheckStates, row_names, row_names, limits),
    st.builds(rows.ReadSpools, row_names, row_names, limits),
    st.builds(rows.ReadNotices, row_names, limits),
    st.builds(rows.ReadIncidents, st.booleans(), st.none() | times | far, row_names, limits),
)
UNFIT = (
    rows.PutSpool("a", "s", b"", 2**63),
    rows.PutSpool("a", "s", b"", -1),
    rows.PutIncident("i", "a", "c", 2**63, None, b""),
    rows.PutIncident("i", "a", "c", 0, -1, b""),
)


class CheckTwins(Twins):
    @rule(batch=st.lists(check_writes, max_size=40))
    def commit_checks(self, batch):
        whole = [*batch[:3], PutSetting("k", b"v"), *batch[3:]]
        self.memory.commit(whole)
        self.sqlite.commit(whole)

    @rule(ask=check_asks)
    def ask_of_checks(self, ask):
        expected = self.memory.read(ask)
        assert self.sqlite.read(ask) == expected == self.sqlite.scan(ask)

    @rule(unfit=st.sampled_from(UNFIT))
    def numbers_that_do_not_fit_are_refused_whole(self, unfit):
        for store in (self.memory, self.sqlite):
            with pytest.raises(ValueError):
                store.commit([rows.PutAgent("a", b"unfit"), unfit])

    @rule(open_only=st.booleans(), limit=st.integers(1, 3))
    def all_pages_of_incidents_together_are_everything(self, open_only, limit):
        whole: Any = self.sqlite.read(rows.ReadIncidents(open_only, None, "", 100))
        seen: list[Any] = []
        place: tuple[int | None, str] = (None, "")
        while page := self.sqlite.read(rows.ReadIncidents(open_only, *place, limit)):
            assert isinstance(page, tuple)
            seen += page
            place = (seen[-1].opened_us, seen[-1].id)
        assert seen == list(whole)

    @invariant()
    def all_rows_agree(self):
        for ask in (
            rows.ReadAgents("", 100),
            rows.ReadCheckStates("", "", 100),
            rows.ReadSpools("", "", 100),
            rows.ReadNotices("", 100),
            rows.ReadIncidents(False, None, "", 100),
            rows.ReadIncidents(True, None, "", 100),
        ):
            assert self.memory.read(ask) == self.sqlite.read(ask)


TestCheckTwins = CheckTwins.TestCase
TestCheckTwins.settings = examples(40, stateful_step_count=20, deadline=None)
