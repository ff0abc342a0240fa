"""The event stream: every event once and in order, for live subscribers and for those that resume."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from scale0.history.events.changes import ConfigChanged
from scale0.history.segments.reader import EventFilter
from scale0.http.events import event_index, stream
from scale0.http.events.event_index import parse_cursor
from scale0.http.events.stream import MAX_USER_STREAMS, EventStream, TooManySubscribers
from tests.fakes.examples import seeds
from tests.processes.http.event_folders import ALL, export, folder_at, rest_of, seqs, taken
from tests.processes.segments.folders import Folder, segment_files


@contextlib.asynccontextmanager
async def streaming(*folders: Path) -> AsyncIterator[EventStream]:
    events = EventStream(folders, poll_seconds=0.02)
    try:
        yield events
    finally:
        await events.close()


# Promise: FEED-1
async def test_a_subscriber_receives_what_happens_from_now_on(folder):
    folder.fill(5)
    async with streaming(folder.path) as events:
        one = await events.subscribe(ALL)
        folder.fill(3, events=2)
        items = await taken(one, 6)
        assert seqs(items) == list(range(6, 12))
        assert [item.id for item in items] == [f"east-1:{n}" for n in range(6, 12)]
        event = json.loads(items[0].data)
        assert event["kind"] == "task.submitted"
        assert event["time"].endswith("Z")
        assert event["data"] == {"group": "", "priority": 4}


# Promise: FEED-1
@pytest.mark.parametrize("trim", [True, False])
async def test_a_subscriber_that_resumes_receives_all_that_came_after(folder, trim):
    folder.fill(30, events=3)
    async with streaming(folder.path) as events:
        export(folder, trim)
        folder.fill(5)
        back = await events.subscribe(ALL, parse_cursor("east-1:10"))
        folder.fill(1)
        items = await rest_of(back, [folder])
        assert seqs(items) == list(range(11, 97))
        folder.fill(2)
        assert seqs(await taken(back, 2)) == [97, 98], "and it goes on live"


# Promise: FEED-1
@pytest.mark.parametrize("seed", seeds(8))
async def test_whatever_moves_meanwhile_each_event_is_sent_once_and_in_order(tmp_path, seed):
    dice = random.Random(seed)
    east = folder_at(tmp_path / "east", "east-1")
    helen = folder_at(tmp_path / "helen", "helen:1")

    def move() -> None:
        folder: Folder = dice.choice([east, helen])
        moves: list[Callable[[], None]] = [
            lambda: folder.fill(dice.randrange(1, 30), events=dice.randrange(1, 4)),
            lambda: export(folder),
            lambda: export(folder, trim=False),
            folder.restart,
        ]
        dice.choice(moves)()

    with patch.object(event_index, "PAGE_EVENTS", 7):
        items = []
        async with streaming(east.path, helen.path) as events:
            at = ""
            for _ in range(4):
                one = await events.subscribe(ALL, parse_cursor(at))
                for _ in range(dice.randrange(1, 6)):
                    move()
                    items += await one.take(0.02)
                events.unsubscribe(one)
                at = items[-1].id if items else ""
                move()
            one = await events.subscribe(ALL, parse_cursor(at))
            items += await rest_of(one, [east, helen])
        assert not [item for item in items if item.kind != "event"]
        for folder in (east, helen):
            assert seqs(items, folder.source) == list(range(1, folder.last_seq + 1))
    east.store.close()
    helen.store.close()


# Promise: FEED-2
async def test_what_is_too_old_is_sent_as_a_gap(folder):
    folder.fill(50)
    export(folder, events=10)
    folder.fill(10)
    first, second, *_ = segment_files(folder.path / "segments")
    first.unlink()
    second.unlink()
    async with streaming(folder.path) as events:
        back = await events.subscribe(ALL, {"east-1": 3})
        items = await rest_of(back, [folder])
        assert [item.kind for item in items].count("gap") == 1
        assert json.loads(items[0].data) == {"source": "east-1", "first": 4, "last": 20, "reason": "retention"}
        assert items[0].id == "east-1:20"
        assert seqs(items) == list(range(21, 61))


# Promise: FEED-2
async def test_a_subscriber_that_was_away_too_long_receives_the_newest_only(folder):
    with patch.object(event_index, "MAX_RESUME_EVENTS", 30):
        folder.fill(10, events=10)
        async with streaming(folder.path) as events:
            back = await events.subscribe(ALL, {"east-1": 7})
            items = await rest_of(back, [folder])
            assert json.loads(items[0].data) == {"source": "east-1", "first": 8, "last": 70, "reason": "limit"}
            assert seqs(items) == list(range(71, 101))


# Promise: FEED-2
async def test_a_new_store_is_reported_as_such(tmp_path):
    folder = folder_at(tmp_path / "data")
    folder.fill(20)
    async with streaming(folder.path) as events:
        one = await events.subscribe(ALL)
        folder.store.close()
        shutil.rmtree(folder.path)
        fresh = folder_at(folder.path)
        fresh.fill(3)
        items = await taken(one, 4)
        fresh.store.close()
    assert json.loads(items[0].data)["reason"] == "renumbered"
    assert seqs(items) == [1, 2, 3]


# Promise: FEED-2
async def test_a_damaged_segment_is_a_gap_and_the_rest_is_sent(folder):
    folder.fill(30)
    export(folder, events=10)
    folder.fill(1)
    _, middle, _ = segment_files(folder.path / "segments")
    middle.write_bytes(b"PAR1 and nothing else")
    async with streaming(folder.path) as events:
        items = await rest_of(back := await events.subscribe(ALL, {}), [folder])
        assert back.id == "east-1:31"
        gaps = [json.loads(item.data) for item in items if item.kind == "gap"]
        assert gaps == [{"source": "east-1", "first": 11, "last": 20, "reason": "damaged"}]
        assert seqs(items) == [*range(1, 11), *range(21, 32)]


# Promise: FEED-3
async def test_a_subscriber_that_does_not_read_is_dropped_and_nobody_waits_for_it(folder):
    with patch.object(stream, "MAX_BACKLOG_EVENTS", 100):
        async with streaming(folder.path) as events:
            slow, quick = await events.subscribe(ALL), await events.subscribe(ALL)
            folder.fill(4)
            assert seqs(await taken(slow, 4)) == [1, 2, 3, 4]
            got = []
            for _ in range(10):
                folder.fill(1, events=20)
                got += await taken(quick, 20)
            assert seqs(await taken(quick, 0) + got)[-1] == 204
            assert not quick.dropped
            assert slow.dropped == "slow"
            (last,) = await slow.take(1.0)
            assert last.kind == "dropped"
            assert json.loads(last.data)["reason"] == "slow"
            assert last.id == "east-1:4", "it can come back from what it had"
            assert slow.is_over
            back = await events.subscribe(ALL, parse_cursor(last.id))
            assert seqs(await rest_of(back, [folder])) == list(range(5, 205))


# Promise: FEED-3
async def test_a_subscriber_that_reads_slowly_is_not_dropped(folder):
    with patch.object(stream, "MAX_BACKLOG_EVENTS", 100), patch.object(event_index, "PAGE_EVENTS", 50):
        folder.fill(30, events=10)
        async with streaming(folder.path) as events:
            back = await events.subscribe(ALL, {})
            got = await back.take(1.0)
            folder.fill(30, events=10)
            got += await rest_of(back, [folder])
            assert seqs(got) == list(range(1, 601))


# Promise: FEED-3
async def test_there_is_room_for_so_many_and_one_who_leaves_makes_room(folder):
    with patch.object(stream, "MAX_STREAMS", 2):
        async with streaming(folder.path) as events:
            first, _ = await events.subscribe(ALL), await events.subscribe(ALL)
            with pytest.raises(TooManySubscribers):
                await events.subscribe(ALL)
            events.unsubscribe(first)
            await events.subscribe(ALL)


# Promise: FEED-4
async def test_each_receives_what_it_chose_and_its_position_moves_with_the_rest(folder):
    async with streaming(folder.path) as events:
        changes = await events.subscribe(EventFilter(kind="config.*"))
        third = await events.subscribe(EventFilter(ref="t3"))
        folder.fill(4)
        folder.enter([ConfigChanged(2, "h", "p", "anna")])
        folder.fill(4)
        assert seqs(await taken(changes, 1)) == [5]
        assert seqs(await taken(third, 1)) == [3]
        while changes.id != "east-1:9":
            assert await changes.take(0.05) == []
        back = await events.subscribe(EventFilter(identity="an?a"), {"east-1": 2})
        assert seqs(await rest_of(back, [folder])) == [5]


# Promise: FEED-1
async def test_a_folder_that_appears_later_is_sent_from_its_beginning(tmp_path):
    async with streaming(tmp_path / "a", tmp_path / "b") as events:
        one = await events.subscribe(ALL)
        assert await one.take(0.05) == []
        first = folder_at(tmp_path / "a", "a")
        first.fill(2)
        assert [item.id for item in await taken(one, 2)] == ["a:1", "a:2"]
        second = folder_at(tmp_path / "b", "b")
        second.fill(1)
        assert [item.id for item in await taken(one, 1)] == ["a:2,b:1"]
        first.store.close()
        second.store.close()


async def test_when_the_server_stops_every_subscriber_is_notified(folder):
    async with streaming(folder.path) as events:
        one = await events.subscribe(ALL)
    (last,) = await one.take(1.0)
    assert json.loads(last.data)["reason"] == "stopped"


# Promise: HTTP-6
async def test_one_user_cannot_take_the_streams_of_all(folder):
    async with streaming(folder.path) as events:
        mine = [await events.subscribe(ALL, user="anna") for _ in range(MAX_USER_STREAMS)]
        with pytest.raises(TooManySubscribers, match="anna has 10 event streams open"):
            await events.subscribe(ALL, user="anna")
        await events.subscribe(ALL, user="otto")
        events.unsubscribe(mine[0])
        await events.subscribe(ALL, user="anna")
