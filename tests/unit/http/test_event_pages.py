"""Events page by page: each once, the newest first, wherever they are and however clocks jump."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from scale0.history.events.changes import ConfigChanged, ManagementCommanded
from scale0.history.segments.catalog import SegmentCatalog
from scale0.history.segments.reader import EventFilter
from scale0.http.events import pages
from scale0.http.events.event_index import EventIndex, parse_cursor
from scale0.http.events.pages import SHOWN_KINDS, page_of
from tests.fakes.examples import seeds
from tests.processes.http.event_folders import ALL, export, folder_at
from tests.processes.segments.folders import Folder, segment_files


class Shown:
    """An index for a test."""

    def __init__(self, *folders: Path) -> None:
        self.index = EventIndex(folders, [SegmentCatalog(folder) for folder in folders])

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *_: object) -> None:
        self.index.close()

    def pages(self, choice: EventFilter, limit: int) -> list[list[dict[str, Any]]]:
        """All pages, to the last."""
        found, at = [], None
        while True:
            page = page_of(self.index, choice, at, limit)
            assert len(page.lines) <= limit
            found.append([json.loads(line.text) for line in page.lines])
            if page.next is None:
                return found
            at = parse_cursor(page.next)


def keys(found: list[list[dict[str, Any]]]) -> list[tuple[str, int]]:
    return [(event["source"], event["seq"]) for page in found for event in page]


# Promise: FEED-4
@pytest.mark.parametrize("exported", [0, 20, 59, 60])
@pytest.mark.parametrize("trim", [True, False])
def test_all_pages_hold_each_event_once_the_newest_first(folder, exported, trim):
    if exported:
        folder.fill(exported)
        export(folder, trim)
    folder.fill(60 - exported)
    with Shown(folder.path) as shown:
        for limit in (1, 7, 60, 100):
            found = shown.pages(ALL, limit)
            assert keys(found) == [("east-1", seq) for seq in range(60, 0, -1)]


# Promise: FEED-4
@pytest.mark.parametrize("seed", seeds(6))
def test_two_sources_are_merged_by_time_and_what_comes_meanwhile_disturbs_nothing(tmp_path, seed):
    dice = random.Random(seed)
    folders = [folder_at(tmp_path / name, name) for name in ("a", "b")]
    for _ in range(12):
        folder: Folder = dice.choice(folders)
        folder.wall = max(one.wall for one in folders)
        folder.fill(dice.randrange(1, 8), events=dice.randrange(1, 4))
        if dice.random() < 0.3:
            export(folder, trim=dice.random() < 0.7, events=dice.choice([5, 40]))
    wanted = {(one.source, seq) for one in folders for seq in range(1, one.last_seq + 1)}
    with Shown(*(one.path for one in folders)) as shown, patch.object(pages, "MAX_SCANNED", dice.choice([3, 10**6])):
        first = page_of(shown.index, ALL, None, 5)
        found = [[json.loads(line.text) for line in first.lines]]
        at = first.next
        while at is not None:
            if dice.random() < 0.3:
                export(dice.choice(folders))
            if dice.random() < 0.3:
                dice.choice(folders).fill(1)
            page = page_of(shown.index, ALL, parse_cursor(at), 5)
            found.append([json.loads(line.text) for line in page.lines])
            at = page.next
    got = keys(found)
    assert len(got) == len(set(got))
    assert set(got) == wanted
    times = [event["time"] for page in found for event in page]
    assert times == sorted(times, reverse=True)
    for one in folders:
        one.store.close()


# Promise: FEED-4
def test_a_clock_that_went_back_loses_no_event(folder):
    folder.fill(10)
    folder.restart()
    folder.wall -= 3_600
    folder.journal = type(folder.journal)(folder.source, int(folder.wall * 1e6) + 10**10, folder.journal.next_seq, 0)
    folder.fill(10)
    with Shown(folder.path) as shown:
        assert keys(shown.pages(ALL, 3)) == [("east-1", seq) for seq in range(20, 0, -1)]


# Promise: FEED-4
def test_filters_choose_and_a_page_that_looked_enough_goes_on_later(folder):
    folder.enter([ManagementCommanded("anna", "reload", 200, "loopback")])
    folder.fill(100)
    folder.enter([ConfigChanged(2, "h", "p", "anna")])
    folder.fill(100)
    export(folder)
    folder.fill(100)
    with Shown(folder.path) as shown:
        assert keys(shown.pages(EventFilter(kind="config.*"), 10)) == [("east-1", 102)]
        with patch.object(pages, "MAX_SCANNED", 30):
            found = shown.pages(EventFilter(kinds=SHOWN_KINDS), 10)
            assert keys(found) == [("east-1", 102), ("east-1", 1)]
            assert len(found) > 3, "short pages, each with a next one"
        assert keys(shown.pages(EventFilter(identity="an*", service="", ref=""), 1)) == [("east-1", 102), ("east-1", 1)]
        newest = shown.pages(EventFilter(since_us=int(folder.wall * 1e6) - 10_500), 4)
        assert keys(newest) == [("east-1", seq) for seq in range(302, 291, -1)]


# Promise: FEED-2
def test_what_cannot_be_read_is_reported_beside_the_page(folder):
    folder.fill(30)
    export(folder, events=10)
    _, middle, _ = segment_files(folder.path / "segments")
    middle.write_bytes(b"PAR1 and nothing else")
    with Shown(folder.path) as shown:
        page = page_of(shown.index, ALL, None, 100)
        assert [line.seq for line in page.lines] == [*range(30, 20, -1), *range(10, 0, -1)]
        assert [(one.first_seq, one.last_seq, one.reason) for one in page.gaps] == [(11, 20, "damaged")]
        middle.unlink()
        page = page_of(shown.index, ALL, None, 100)
        assert [(one.first_seq, one.last_seq, one.reason) for one in page.gaps] == [(11, 20, "retention")]


def test_a_large_turn_is_paged_within(folder):
    folder.fill(1, events=500)
    with Shown(folder.path) as shown:
        assert keys(shown.pages(ALL, 33)) == [("east-1", seq) for seq in range(500, 0, -1)]


def test_a_place_with_nothing_in_it_has_no_events(tmp_path):
    with Shown(tmp_path / "nowhere") as shown:
        assert shown.pages(ALL, 10) == [[]]


def test_a_journal_that_is_no_journal_does_not_hide_the_others(tmp_path, folder, caplog):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "scale0.db").write_bytes(b"this is no database, and was none" * 100)
    folder.fill(3)
    with Shown(tmp_path / "bad", folder.path) as shown:
        assert keys(shown.pages(ALL, 10)) == [("east-1", 3), ("east-1", 2), ("east-1", 1)]
    assert "cannot read events" in caplog.text
