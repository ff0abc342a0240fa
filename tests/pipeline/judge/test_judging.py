"""The tables beside the judge: chosen stories, one for each meaning, then histories by chance.

JUDGE_SEEDS says how many networks by chance (default 4; `40-80`: these), JUDGE_RUNS into how many runs they are cut
(default 2). The networks of one history stand beside each other: a run costs more than what it computes.
"""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.engine import advance
from scale0.pipeline.engine.runs import RunOptions, backfill
from tests.pipeline.judge import compare, histories, stories
from tests.pipeline.judge.computing import FORMULAS, NOW, SHOWN, agree, compute, judged, parameters
from tests.pipeline.judge.journals import Row, Story, cut, offer, us
from tests.pipeline.judge.promises import PROMISES, UNTIL, Promise, Span
from tests.pipeline.judge.reckoning import Verdict
from tests.pipeline.judge.results import Formula
from tests.pipeline.judge.seconds import second

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.extended]

EARLY_US = 5 * 60 * 1_000_000
"""How far beyond the driver's now a time is believed."""
TOGETHER = 4
"""Networks of one history."""
RUNS = int(os.environ.get("JUDGE_RUNS", "2"))

stories.told()  # fills PROMISES, which are parameters below


def groups() -> list[tuple[int, ...]]:
    """The seeds of each history."""
    first, _, last = os.environ.get("JUDGE_SEEDS", str(TOGETHER)).partition("-")
    seeds = range(int(first), int(last)) if last else range(int(first))
    return [tuple(seeds[number : number + TOGETHER]) for number in range(0, len(seeds), TOGETHER)]


# Stories.


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("told")
    # Not --until, but the driver's own clock keeps it from what lies in the future.
    outcome = compute(spark, place, cut(stories.told(), random.Random(1), 500), now_us=us(UNTIL) - EARLY_US)
    assert outcome.horizon_us == us(UNTIL)
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


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    return judged(stories.told(), UNTIL)


def test_every_table_agrees_with_the_judge_of_the_stories(told: Path, verdict: Verdict):
    agree(told, verdict)


def test_the_audit_counts_nothing_beyond_the_horizon(told: Path, verdict: Verdict):
    assert compare.audit_differences(told, verdict) == []


# By chance.


class Chance(NamedTuple):
    """A history, computed at once."""

    events: list[Row]
    formula: Formula
    until: int
    warehouse: Path
    dice: random.Random


@pytest.fixture(scope="module", params=groups(), ids=str)
def chance(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Chance:
    seeds: tuple[int, ...] = request.param
    dice, formula = random.Random(seeds[0]), FORMULAS[seeds[0] // TOGETHER % len(FORMULAS)]
    story = histories.by_chance(*seeds)
    events = story.events()
    last = max(second(row["time"]) for row in events)
    until = min(last, dice.choice((last, story.end - dice.randint(1, 3000), story.begin // 3600 * 3600 + 7200)))
    place = tmp_path_factory.mktemp("chance")
    compute(spark, place, cut(events, dice, 10_000), until=until, said=parameters(formula))
    return Chance(events, formula, until, place / "warehouse", dice)


def test_a_history_by_chance_agrees_with_the_judge(chance: Chance):
    verdict = judged(chance.events, chance.until, chance.formula)
    agree(chance.warehouse, verdict)
    assert compare.audit_differences(chance.warehouse, verdict) == []


def equal(warehouse: Path, chance: Chance) -> None:
    """All tables, row by row."""
    wanted, found = compare.everything(chance.warehouse), compare.everything(warehouse)
    for table in compare.TABLES:
        lost = sorted(set(wanted[table]) - set(found[table]))[:SHOWN]
        more = sorted(set(found[table]) - set(wanted[table]))[:SHOWN]
        assert (lost, more) == ([], []), f"{table} differs"
        assert len(wanted[table]) == len(found[table])


def test_runs_as_time_goes_by_make_the_tables_of_one_run(chance: Chance, spark: SparkSession, tmp_path: Path):
    """Each run finds what was recorded since the one before, cut anew."""
    first = min(second(row["time"]) for row in chance.events)
    ends = sorted(chance.dice.randint(first, chance.until) for _ in range(RUNS - 1))
    for begin, end in itertools.pairwise((first, *ends, 10**9)):
        fresh = [row for row in chance.events if begin <= second(row["time"]) < end]
        compute(spark, tmp_path, cut(fresh, chance.dice, 200), until=chance.until, said=parameters(chance.formula))
    equal(tmp_path / "warehouse", chance)


def test_late_segments_in_any_order_make_the_tables_of_one_run(
    chance: Chance, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each run finds some of everything, and its horizon moves on; then all of it is computed once more.

    Late hours have steps of their own, for the keys that they touch alone.
    """
    monkeypatch.setattr(advance, "NEAR_EVENTS", -1)
    segments = cut(chance.events, chance.dice, 100)
    first = min(second(row["time"]) for row in chance.events)
    horizons = sorted(chance.dice.randint(first + 600, chance.until) for _ in range(RUNS - 1))
    for number, until in enumerate((*horizons, chance.until)):
        compute(spark, tmp_path, segments[number::RUNS], until=until, said=parameters(chance.formula))
    equal(tmp_path / "warehouse", chance)
    job = RunOptions(warehouse=tmp_path / "warehouse", segments=())
    backfill(job, lambda _events: spark, lambda: NOW, lambda *_: None, us(0), None)
    equal(tmp_path / "warehouse", chance)


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
