"""The tables beside the judge: chosen stories, one for each meaning, then histories by chance.

JUDGE_SEEDS says how many histories (or which: `40-60`); the default keeps the whole file within a minute and a half.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scale0.pipeline.engine.runs import Job, Outcome, backfill, run
from scale0.pipeline.parameters import Parameters
from tests.pipeline.judge import compare, histories, stories
from tests.pipeline.judge.journals import Row, Story, cut, offer, us, write
from tests.pipeline.judge.promises import PROMISES, UNTIL, Promise, Span
from tests.pipeline.judge.reckoning import Verdict, judge
from tests.pipeline.judge.results import Formula
from tests.pipeline.judge.seconds import World, second, seen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

SHOWN = 40
"""Differences that a failure lists."""
FORMULAS = (Formula(), Formula("nagios"), Formula("sensu", 30.0, 20.0), Formula("icinga", 20.0, 10.0))
NOW = us(10 * 86400)

stories.told()  # fills PROMISES, which are parameters below


def seeds() -> list[int]:
    wanted = os.environ.get("JUDGE_SEEDS", "2")
    first, _, last = wanted.partition("-")
    return list(range(int(first), int(last))) if last else list(range(int(first)))


def parameters(formula: Formula, **words: Any) -> Parameters:
    name: Any = formula.name
    return Parameters(flapping=name, flapping_start=formula.start, flapping_end=formula.end, **words)


def compute(
    spark: SparkSession,
    place: Path,
    segments: list[list[Row]],
    *,
    until: int | None = None,
    said: Parameters | None = None,
    now_us: int = NOW,
) -> Outcome:
    """Deliver these segments to a warehouse, and run."""
    write(segments, place / "segments")
    job = Job(
        warehouse=place / "warehouse",
        segments=(f"file://{place / 'segments'}",),
        parameters=said or Parameters(),
        until_us=None if until is None else us(until),
    )
    outcome = run(job, lambda: spark, lambda: now_us, lambda *_: None)
    assert outcome.problems == ()
    return outcome


def judged(events: list[Row], until: int, formula: Formula = FORMULAS[0], **words: Any) -> Verdict:
    return judge(World(seen(events, until), until, **words), formula)


def agree(warehouse: Path, verdict: Verdict) -> None:
    found = compare.differences(warehouse, verdict)
    assert not found, f"{len(found)} differences:\n" + "\n".join(found[:SHOWN])


# Stories.


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("told")
    compute(spark, place, cut(stories.told(), random.Random(1), 500), until=UNTIL)
    return place / "warehouse"


@pytest.fixture(scope="module")
def timeline(told: Path) -> list[Row]:
    return compare.rows(told, "timeline")


def spans(timeline: list[Row], kind: str, subject: str) -> tuple[Span, ...]:
    """Pieces that touch and are of one class are one."""
    mine = [row for row in timeline if (row["subject_kind"], row["subject"]) == (kind, subject)]
    out: list[Span] = []
    for row in sorted(mine, key=lambda row: row["from"]):
        begin, end = row["from"] // 1_000_000, row["to"] // 1_000_000
        if row["class"] == "absent":
            continue
        if out and out[-1][0] == row["class"] and out[-1][2] == begin:
            out[-1] = (row["class"], out[-1][1], end)
        else:
            out.append((row["class"], begin, end))
    return tuple(out)


@pytest.mark.parametrize("told_of", PROMISES, ids=lambda one: f"{one.name}-{one.subject}")
def test_the_timeline_keeps_the_promise_that(told_of: Promise, timeline: list[Row]):
    assert spans(timeline, told_of.kind, told_of.subject) == told_of.spans


def test_every_table_agrees_with_the_judge_of_the_stories(told: Path):
    agree(told, judged(stories.told(), UNTIL))


# By chance.


@pytest.mark.parametrize("seed", seeds())
def test_a_history_by_chance_agrees_with_the_judge(seed: int, spark: SparkSession, tmp_path: Path):
    dice, formula = random.Random(seed), FORMULAS[seed % len(FORMULAS)]
    story = histories.by_chance(seed)
    events = story.events()
    last = max(second(row["time"]) for row in events)
    until = dice.choice(
        (last, last, dice.randint(story.begin + 3600, story.end - 1), story.begin // 3600 * 3600 + 7200)
    )
    until = min(until, last)
    compute(spark, tmp_path, cut(events, dice, 800), until=until, said=parameters(formula))
    agree(tmp_path / "warehouse", judged(events, until, formula))


@pytest.mark.parametrize("seed", seeds()[:1])
def test_any_cut_any_order_and_any_number_of_runs_make_equal_tables(seed: int, spark: SparkSession, tmp_path: Path):
    """All at once; hour by hour as it is written; and in three heaps, whose first lacks what comes late."""
    events = histories.by_chance(seed).events()
    dice = random.Random(seed)
    last = max(second(row["time"]) for row in events)
    once = tmp_path / "once"
    compute(spark, once, cut(events, dice, 10_000))
    wanted = compare.everything(once / "warehouse")
    agree(once / "warehouse", judged(events, last))

    steps = tmp_path / "steps"
    for begin in range(min(second(row["time"]) for row in events) // 3600 * 3600, last + 1, 3600 + 1800):
        fresh = [row for row in events if begin <= second(row["time"]) < begin + 3600 + 1800]
        if fresh:
            compute(spark, steps, cut(fresh, dice, 200))
    assert compare.everything(steps / "warehouse") == wanted

    heaps = tmp_path / "heaps"
    segments = cut(events, dice, 100)
    for number in range(3):
        compute(spark, heaps, segments[number::3])
    assert compare.everything(heaps / "warehouse") == wanted

    job = Job(warehouse=heaps / "warehouse", segments=())
    backfill(job, lambda: spark, lambda: NOW, lambda *_: None, us(0), None)
    assert compare.everything(heaps / "warehouse") == wanted


def test_a_horizon_that_moves_on_makes_the_tables_of_its_end(spark: SparkSession, tmp_path: Path):
    """The same segments, with a horizon in the middle of everything first."""
    story = histories.by_chance(3)
    events = story.events()
    segments = cut(events, random.Random(3), 300)
    for until in (story.begin + 2000, story.begin + 5000, None):
        compute(spark, tmp_path / "moved", segments, until=until)
    compute(spark, tmp_path / "once", segments)
    assert compare.everything(tmp_path / "moved" / "warehouse") == compare.everything(tmp_path / "once" / "warehouse")
    shutil.rmtree(tmp_path)


def test_a_service_without_a_backend_for_a_day_is_absent_where_a_day_is_the_limit(spark: SparkSession, tmp_path: Path):
    story = Story(0, 27 * 3600)
    hub = story.broker("hub")
    hub.record(100, "client.joined", identity="gone", data=offer(["forgotten"]))
    hub.record(1800, "client.left", identity="gone", data=offer(["forgotten"]))
    events = story.events()
    compute(spark, tmp_path, cut(events, random.Random(1), 2000), until=27 * 3600 - 60, said=Parameters(absent_days=1))
    found = spans(compare.rows(tmp_path / "warehouse", "timeline"), "service", "forgotten")
    assert found == (("up", 100, 1800), ("down", 1800, 86400 + 1800))
    agree(tmp_path / "warehouse", judged(events, 27 * 3600 - 60, absent_days=1))


def test_what_lies_in_the_future_waits(spark: SparkSession, tmp_path: Path):
    """Five minutes after the driver's now is the last that is believed."""
    story = Story(0, 7200)
    story.broker("hub").record(5000, "client.joined", identity="early", data=offer(["x"]))
    events = story.events()
    outcome = compute(spark, tmp_path, cut(events, random.Random(1), 2000), now_us=us(3000))
    assert outcome.horizon_us == us(3300)
    agree(tmp_path / "warehouse", judged(events, 3300))
