"""The journal of a simulated network under faults, through segments and Spark: the tables tell what the world knows.

Promise: PIPE-1, PIPE-10
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
from pyspark.sql import SparkSession

from scale0.pipeline import reading
from scale0.pipeline.time_ranges import to_us
from scale0.storage.task_rows import STATUS_NAMES
from tests.pipeline.engine_runs import Bench
from tests.pipeline.simulated_truths import Truths, simulated, wall_us, write_segments

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SEED = 2
MINUTES = 52.0
"""From 22:13 on: an hour ends within it."""
MICRO = 1_000_000


class Tables:
    def __init__(self, truths: Truths, bench: Bench) -> None:
        self.truths = truths
        self.segments = write_segments(truths, bench.folder / "data", bench.segments)
        self.outcome = bench.run()
        self.bench = bench

    def __getitem__(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = reading.open_arrow(self.bench.warehouse, name).to_pylist()
        return rows


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    truths = simulated(SEED, MINUTES)
    last_us = truths.rows[-1].time_us
    return Tables(truths, Bench(spark, tmp_path_factory.mktemp("simulated"), last_us + MICRO))


def test_every_event_of_the_journal_is_in_the_tables_once_and_nothing_is_missing(tables: Tables):
    events = sum(row.last_seq - row.first_seq + 1 for row in tables.truths.rows)
    assert tables.outcome.problems == ()
    assert (tables.outcome.segments, tables.outcome.events) == (tables.segments, events)
    assert tables.segments > len(tables.truths.lives), "a boot has one segment or more"
    [day] = tables["audit"]
    assert (day["source"], day["events"], day["first_seq"], day["last_seq"]) == ("broker", events, 1, events)
    assert [day[name] for name in ("holes", "rewinds", "duplicates", "rejected")] == [0, 0, 0, 0]


def test_every_task_has_the_end_that_the_store_has_and_the_client_received(tables: Tables):
    known = tables.truths.tasks
    found = {row["ref"]: row for row in tables["tasks"]}
    shown = {ref: (row["outcome"], row["attempts"], row["method"], row["client"]) for ref, row in found.items()}
    assert len(found) == len(tables["tasks"])
    assert {state for state, *_ in known.values()} == {"finished", "failed", "cancelled"}
    assert max(attempts for _, attempts, *_ in known.values()) > 1
    assert shown == known
    records = tables.truths.world.tasks
    assert records is not None
    for record in records.records.by_nonce.values():
        if record.accepted is not None:
            assert record.id in found
            row = found[record.id]
            assert record.notified is None or STATUS_NAMES[record.notified[0]] == row["outcome"]
            # Submissions with one key are one task, which runs with the params of the first.
            assert record.key is not None or row["attempts"] >= len({attempt for attempt, _ in record.executions})


def test_task_stats_count_every_task_once(tables: Tables):
    ends = Counter(state for state, *_ in tables.truths.tasks.values())
    for grain in ("minute", "hour", "day"):
        rows = [row for row in tables["task_stats"] if row["grain"] == grain]
        counts = {name: sum(row[name] for row in rows) for name in ("submitted", "finished", "failed", "cancelled")}
        assert counts == {"submitted": ends.total(), **ends}, grain


def test_sessions_are_those_that_the_broker_held(tables: Tables):
    truths = tables.truths
    meant: defaultdict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for stay in truths.stays:
        if truths.is_sure(stay.since):
            how = "open" if stay.until is None else "broker_lost" if stay.with_broker else "gone"
            meant[stay.role, stay.identity].append((wall_us(stay.since), how))
    sure = {wall_us(stay.since) for stay in truths.stays if truths.is_sure(stay.since)}
    found: defaultdict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for row in tables["sessions"]:
        if to_us(row["joined"]) in sure:
            how = row["reason"] if row["reason"] in ("open", "broker_lost") else "gone"
            found[row["role"], row["identity"]].append((to_us(row["joined"]), how))
    assert {key: sorted(rows) for key, rows in found.items()} == {key: sorted(rows) for key, rows in meant.items()}
    assert {"lost", "left", "replaced", "broker_lost", "open"} <= {row["reason"] for row in tables["sessions"]}


def test_sessions_end_when_the_broker_closed_them_and_those_of_the_dead_before_that(tables: Tables):
    ends = {(stay.role, stay.identity, wall_us(stay.since)): stay.until for stay in tables.truths.stays}
    compared = 0
    for row in tables["sessions"]:
        until = ends[row["role"], row["identity"], to_us(row["joined"])]
        if until is None:
            assert row["reason"] == "open"
        elif row["reason"] in ("left", "replaced") and tables.truths.is_sure(until):
            assert to_us(row["left"]) == wall_us(until), row
            compared += 1
        else:
            assert to_us(row["joined"]) <= to_us(row["left"]) <= wall_us(until), row
    assert compared > 10


def test_no_session_outlives_the_death_of_its_client(tables: Tables):
    truths, plan = tables.truths, tables.truths.world.plan
    patience_us = round(2 * plan.interval * (plan.liveness + 1) * MICRO) + MICRO
    assert len(truths.kills) >= 5
    for at, name in truths.kills:
        killed_us = wall_us(at)
        for row in tables["sessions"]:
            if row["identity"] == name and to_us(row["joined"]) <= killed_us:
                assert row["left"] is not None
                assert to_us(row["left"]) <= killed_us + patience_us, (name, at, row)


def test_the_broker_was_down_exactly_from_its_death_to_its_return(tables: Tables):
    pieces = sorted(
        (to_us(row["from"]), to_us(row["to"]))
        for row in tables["timeline"]
        if (row["subject_kind"], row["subject"], row["class"]) == ("broker", "broker", "down")
    )
    found: list[tuple[int, int]] = []
    for begin, end in pieces:
        if found and found[-1][1] == begin:
            found[-1] = found[-1][0], end
        else:
            found.append((begin, end))
    meant = list(tables.truths.outages())
    assert len(meant) >= 5
    assert [end for _, end in found] == [wall_us(back) for _, _, back in meant]
    for (begin, _), (began, died, _) in zip(found, meant, strict=True):
        # It is down from its last event on: nothing proves that it lived longer.
        assert wall_us(began) <= begin <= wall_us(died)
    down = sum(end - begin for begin, end in found)
    [day] = [
        row
        for row in tables["availability"]
        if (row["subject_kind"], row["subject"], row["grain"]) == ("broker", "broker", "day")
    ]
    assert round(day["down_seconds"] * MICRO) == down
    assert day["unobserved_seconds"] == 0
    assert day["incidents"] == len(meant)
