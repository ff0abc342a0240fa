"""The twins about agents, checks, incidents and notices: memory and SQLite say the same, over crashes and reopening.

Promise: STORE-5
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from scale0.storage.check_rows import (
    DropAgent,
    DropCheckState,
    DropNotice,
    DropSpool,
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
    SweepIncidents,
)
from scale0.storage.rows import PutSetting
from tests.fakes.examples import examples
from tests.unit.storage.test_twins import Twins

names = st.sampled_from(["", "a", "b", "b.c", "ü", "\uffff", "\U0001f40e"])
small = st.binary(max_size=3)
times = st.integers(0, 4) | st.just(2**63 - 1)
limits = st.integers(-1, 5)
far = st.sampled_from([2**64, -(2**64)])

check_writes = st.one_of(
    st.builds(PutAgent, names, small),
    st.builds(DropAgent, names),
    st.builds(PutCheckState, names, names, small),
    st.builds(PutCheckState, names, names, small),
    st.builds(DropCheckState, names, names),
    st.builds(PutSpool, names, names, small, times),
    st.builds(DropSpool, names, names),
    st.builds(PutIncident, names, names, names, times, st.none() | times, small),
    st.builds(PutIncident, names, names, names, times, st.none() | times, small),
    st.builds(SweepIncidents, times | far, st.integers(-1, 3)),
    st.builds(PutNotice, names, small),
    st.builds(DropNotice, names),
)
check_asks = st.one_of(
    st.builds(ReadAgents, names, limits),
    st.builds(ReadCheckStates, names, names, limits),
    st.builds(ReadSpools, names, names, limits),
    st.builds(ReadNotices, names, limits),
    st.builds(ReadIncidents, st.booleans(), st.none() | times | far, names, limits),
)
UNFIT = (
    PutSpool("a", "s", b"", 2**63),
    PutSpool("a", "s", b"", -1),
    PutIncident("i", "a", "c", 2**63, None, b""),
    PutIncident("i", "a", "c", 0, -1, b""),
)


class CheckTwins(Twins):
    """Both stores, fed alike."""

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
                store.commit([PutAgent("a", b"unfit"), unfit])

    @rule(open_only=st.booleans(), limit=st.integers(1, 3))
    def all_pages_of_incidents_together_are_everything(self, open_only, limit):
        whole: Any = self.sqlite.read(ReadIncidents(open_only, None, "", 100))
        seen: list[Any] = []
        place: tuple[int | None, str] = (None, "")
        while page := self.sqlite.read(ReadIncidents(open_only, *place, limit)):
            assert isinstance(page, tuple)
            seen += page
            place = (seen[-1].opened_us, seen[-1].id)
        assert seen == list(whole)

    @invariant()
    def all_rows_agree(self):
        for ask in (
            ReadAgents("", 100),
            ReadCheckStates("", "", 100),
            ReadSpools("", "", 100),
            ReadNotices("", 100),
            ReadIncidents(False, None, "", 100),
            ReadIncidents(True, None, "", 100),
        ):
            assert self.memory.read(ask) == self.sqlite.read(ask)


TestCheckTwins = CheckTwins.TestCase
TestCheckTwins.settings = examples(40, stateful_step_count=20, deadline=None)
