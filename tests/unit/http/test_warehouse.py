"""Reports and tables of a small warehouse, and the errors where there is none."""

# Promise: FEED-6
from __future__ import annotations

import asyncio
import builtins
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from scale0.cli.pipeline.report_output import as_json
from scale0.http import warehouse
from scale0.http.thread_pool import BlockingThreads, ThreadPoolBusy, ThreadPoolTimeout
from scale0.http.warehouse import Unavailable, WarehouseQuery, WarehouseReader, reports
from scale0.pipeline.reports import REPORTS
from scale0.pipeline.reports.catalog import MAKERS, make
from scale0.pipeline.reports.query import ReportQuery
from scale0.pipeline.time_ranges import DAY_US
from tests.pipeline import reports_made as world

EVER = WarehouseQuery()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return world.made(tmp_path_factory.mktemp("warehouse"))


def answer_of(root: Path | None, ask: Callable[[WarehouseReader], Awaitable[bytes]]) -> Any:
    async def story() -> Any:
        reader = WarehouseReader(root)
        try:
            return json.loads(await ask(reader))
        finally:
            reader.close()

    return asyncio.run(story())


@pytest.mark.parametrize("name", MAKERS)
def test_a_report_is_what_the_command_line_prints(root, name):
    found = answer_of(root, lambda reader: reader.report(name, EVER, {}))
    assert found == json.loads(as_json(make((name,), root, ReportQuery()), None))


def test_every_report_is_listed_with_what_the_command_line_says_of_it():
    listed = {one["name"]: (tuple(one["takes"]), one["about"]) for one in reports()}
    assert listed == REPORTS


async def test_a_report_is_made_once_for_each_state_of_the_tables(root, tmp_path):
    reader = WarehouseReader(root)
    with patch.object(warehouse, "make", side_effect=make) as made:
        ask = WarehouseQuery(last_us=3 * DAY_US)
        first = await reader.report("availability", ask, {"subject": "web-*"})
        assert await reader.report("availability", ask, {"subject": "web-*"}) is first
        assert made.call_count == 1
        await reader.report("availability", ask, {"subject": "node-*"})
        assert made.call_count == 2
    reader.close()


@pytest.mark.parametrize("limit", [1_000, 7])
async def test_a_table_is_paged_and_each_row_comes_once(root, limit):
    reader = WarehouseReader(root)
    rows: list[dict[str, Any]] = []
    at = None
    while True:
        page = json.loads(await reader.rows("incidents", limit, at, EVER))
        assert len(page["items"]) <= limit
        rows += page["items"]
        at = page["next"]
        if at is None:
            break
    reader.close()
    assert sorted(row["subject"] for row in rows) == sorted(row["subject"] for row in all_of(root, "incidents"))
    assert all(row["opened"].endswith("Z") for row in rows)


def all_of(root: Path, table: str) -> list[dict[str, Any]]:
    from scale0.pipeline import open_arrow

    found: list[dict[str, Any]] = open_arrow(root, table).to_pylist()
    return found


def test_the_tables_are_listed_with_their_columns(root):
    found = answer_of(root, lambda reader: reader.tables())
    assert {"availability", "incidents", "forecasts"} <= {one["name"] for one in found["items"]}
    assert found["horizon"] == "2026-05-20T09:30:00Z"
    assert found["from"] == "2026-05-10T00:00:00Z"


REFUSED: list[tuple[Callable[[WarehouseReader], Awaitable[bytes]], str, str]] = [
    (lambda reader: reader.report("weather", EVER, {}), "unknown", "there is no report 'weather'"),
    (lambda reader: reader.report("tasks", EVER, {"check": "x"}), "unknown", "no filter check"),
    (lambda reader: reader.report("tasks", EVER, {"method": "thumb"}), "unknown", "nothing in this period matches"),
    (lambda reader: reader.report("tasks", WarehouseQuery(from_us=2**51), {}), "absent", "the tables end at"),
    (lambda reader: reader.report("tasks", WarehouseQuery(to_us=1), {}), "absent", "the tables begin at"),
    (lambda reader: reader.rows("x; DROP", 10, None, EVER), "unknown", "there is no table"),
    (lambda reader: reader.rows("events", 10, None, EVER), "unknown", "there is no table"),
    (lambda reader: reader.rows("tasks", 10, "7", EVER), "unknown", "no position in a table"),
    (lambda reader: reader.rows("incidents", 10, "1.x", EVER), "unknown", "no position in a table"),
    (lambda reader: reader.rows("incidents", 10, "99999.10", EVER), "stale", "have changed"),
]


@pytest.mark.parametrize(("ask", "sort", "words"), REFUSED)
def test_an_unavailable_answer_comes_with_a_next_step(root, ask, sort, words):
    with pytest.raises(Unavailable) as caught:
        answer_of(root, ask)
    assert caught.value.sort == sort
    assert words in str(caught.value)
    assert caught.value.next


def test_without_a_warehouse_the_error_says_how_to_make_one(tmp_path):
    for ask in (
        lambda reader: reader.report("tasks", EVER, {}),
        lambda reader: reader.tables(),
        lambda reader: reader.rows("tasks", 10, None, EVER),
    ):
        with pytest.raises(Unavailable) as caught:
            answer_of(tmp_path / "warehouse", ask)
        assert (caught.value.sort, caught.value.next) == ("absent", "run `scale0 pipeline run`")
        with pytest.raises(Unavailable, match="no warehouse is configured"):
            answer_of(None, ask)


def test_without_duckdb_the_error_says_how_to_install_it(root):
    real = builtins.__import__

    def without(name: str, *args: Any, **named: Any) -> Any:
        if name == "duckdb":
            raise ImportError(name)
        return real(name, *args, **named)

    with patch.object(builtins, "__import__", without), pytest.raises(Unavailable) as caught:
        answer_of(root, lambda reader: reader.tables())
    assert caught.value.sort == "not_installed"
    assert "pip install 'scale0[pipeline]'" in caught.value.next


async def test_few_work_at_once_few_wait_and_nobody_waits_for_ever():
    go = threading.Event()
    threads = BlockingThreads("test", 1, 1)
    slow = asyncio.create_task(threads.run(go.wait, 0.05))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(threads.run(lambda: 7, 30))
    await asyncio.sleep(0)
    with pytest.raises(ThreadPoolBusy):
        await threads.run(lambda: 8, 30)
    with pytest.raises(ThreadPoolTimeout):
        await slow
    with pytest.raises(ThreadPoolBusy):
        await threads.run(lambda: 8, 30)  # what took too long keeps its place
    go.set()
    assert await waiting == 7
    assert await threads.run(lambda: 8, 30) == 8
    threads.close()
