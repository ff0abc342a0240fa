"""The twins: the same commands give the same answers from memory and from SQLite, over reopening and crashes.

Promise: STORE-5
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from scale0.history.events.journal import Journal
from scale0.history.events.sources import SourceAlive
from scale0.kernel.clock import Now
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
    st.builds(PutToken, keys, st.text(max_size=4), st.sampled_from(["frontend", "peer"]), numbers),
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
    """Both stores, fed alike."""

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
