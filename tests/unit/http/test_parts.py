"""The pure parts: rings of rates, shared answers, pages of rows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from scale0.history.events.histogram import bucket_of
from scale0.http.cache import MAX_ENTRIES, ResponseCache
from scale0.http.problem import ApiProblem
from scale0.http.request_context import matching, paged
from scale0.http.ring_buffers import MAX_SERVICES, NO_RATES, RATE_SAMPLES, RING_SAMPLES, RingBuffers

Row = dict[str, Any]


def status(answered: int = 0, failed: int = 0, **more: Any) -> Row:
    requests = {"waiting": 0, "under_way": 0, "answered": answered, "failed": failed}
    return {
        "broker": "b",
        "state": "active",
        "requests": requests,
        "error_clients": 0,
        "clients": {},
        "tasks": {},
        **more,
    }


def rate(service: str, answered: int, failed: int = 0, seconds: float = 0.01) -> Row:
    histogram = [[bucket_of(seconds), answered]] if answered else []
    return {"service": service, "answered": answered, "failed": failed, "histogram": histogram}


def offer(service: str, **more: Any) -> Row:
    return {"service": service, "busy": 0, "slots": 1, "backends": 1, "waiting": 0, "where": ["b"], **more}


# Promise: HTTP-10
def test_a_rate_is_a_difference_and_the_first_look_has_none():
    rings = RingBuffers()
    assert rings.rates("s") == NO_RATES
    rings.add(100.0, 0.0, status(1_000), [rate("s", 1_000)], [])
    assert rings.rates("s") == NO_RATES
    rings.add(101.0, 1.0, status(1_010, 5), [rate("s", 1_010, 5)], [])
    found = rings.rates("s")
    assert (found["answered_per_second"], found["failed_per_second"]) == (10, 5)
    assert found["p50_seconds"] == pytest.approx(0.01, rel=0.02)
    assert rings.rates(None)["answered_per_second"] == 10
    assert rings.series("s")["answered"] == [None, 10.0]
    assert rings.series("s")["times"] == [100.0, 101.0]


# Promise: HTTP-10
def test_a_counter_that_went_back_began_again():
    rings = RingBuffers()
    rings.add(0.0, 0.0, status(500), [rate("s", 500)], [])
    rings.add(1.0, 1.0, status(3), [rate("s", 3)], [])
    assert rings.series("s")["answered"] == [None, 3.0]
    assert rings.rates("s")["p99_seconds"] == pytest.approx(0.01, rel=0.02)


# Promise: HTTP-10
def test_a_second_in_which_nobody_looked_is_a_gap():
    rings = RingBuffers()
    rings.add(0.0, 0.0, status(), [], [offer("s", busy=1)])
    rings.gap(1.0)
    rings.add(3.0, 3.0, status(30), [rate("s", 30)], [offer("s", busy=2)])
    assert rings.series("s")["busy"] == [1.0, None, 2.0]
    assert rings.series("s")["answered"] == [None, None, 10.0]


# Promise: HTTP-10
def test_rings_are_bounded_in_time_and_in_services():
    rings = RingBuffers()
    many = [offer(f"s{number}") for number in range(MAX_SERVICES + 10)]
    rings.add(0.0, 0.0, status(), [], many)
    assert len(rings) == MAX_SERVICES
    for second in range(1, RING_SAMPLES + 20):
        rings.add(float(second), float(second), status(second), [rate("fresh", second)], [])
    assert len(rings) == 1
    assert len(rings.series(None)["times"]) == RING_SAMPLES
    assert rings.series(None)["times"][-1] == RING_SAMPLES + 19
    assert rings.series("nobody")["answered"] == [None] * RING_SAMPLES
    assert RATE_SAMPLES < RING_SAMPLES


# Promise: HTTP-6
async def test_a_shared_answer_is_asked_for_once_and_grows_old():
    shared = ResponseCache()
    calls = []

    async def make() -> int:
        calls.append(1)
        await asyncio.sleep(0)
        return len(calls)

    assert await asyncio.gather(*(shared.get("k", 60, make) for _ in range(10))) == [1] * 10
    assert await shared.get("k", 60, make) == 1
    assert await shared.get("other", 60, make) == 2
    shared.clear()
    assert await shared.get("k", 0, make) == 3
    assert await shared.get("k", 0, make) == 4


# Promise: HTTP-6
async def test_a_refusal_is_its_own_askers_and_a_failure_is_not_kept():
    shared = ResponseCache()

    async def refused() -> int:
        await asyncio.sleep(0)
        raise ApiProblem(401, "no")

    async def good() -> int:
        return 7

    first = asyncio.ensure_future(shared.get("k", 60, refused))
    await asyncio.sleep(0)
    assert await shared.get("k", 60, good) == 7
    with pytest.raises(ApiProblem):
        await first
    assert await shared.get("k", 60, refused) == 7

    async def failing() -> int:
        raise ApiProblem(503, "away")

    with pytest.raises(ApiProblem):
        await shared.get("x", 60, failing)
    assert await shared.get("x", 60, good) == 7


# Promise: HTTP-6
async def test_shared_answers_are_bounded():
    shared = ResponseCache()

    async def make() -> int:
        return 1

    for number in range(MAX_ENTRIES * 2):
        await shared.get(str(number), 60, make)
    assert len(shared) <= MAX_ENTRIES


# Promise: HTTP-6
def test_a_page_starts_where_the_last_one_ended_whatever_came_and_went():
    rows = [{"name": name} for name in "dbace"]
    first = paged(rows, 2, None, lambda row: row["name"])
    assert ([row["name"] for row in first["items"]], first["next"]) == (["a", "b"], "b")
    rows = [row for row in rows if row["name"] != "b"]
    second = paged(rows, 2, first["next"], lambda row: row["name"])
    assert ([row["name"] for row in second["items"]], second["next"]) == (["c", "d"], "d")
    assert paged(rows, 2, "d", lambda row: row["name"]) == {"items": [{"name": "e"}], "next": None}
    assert paged([], 2, "z", lambda row: row["name"]) == {"items": [], "next": None}


def test_a_match_is_a_glob_or_a_part():
    rows = [{"name": name} for name in ("Web-1", "web-2", "db")]
    assert [row["name"] for row in matching(rows, "web", "name")] == ["Web-1", "web-2"]
    assert [row["name"] for row in matching(rows, "*-2", "name")] == ["web-2"]
    assert matching(rows, None, "name") == rows
