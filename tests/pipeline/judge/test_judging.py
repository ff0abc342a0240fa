"""The tables beside the judge: chosen stories, one for each meaning, then histories by chance and drawn by hypothesis.

JUDGE_SEEDS says how many networks by chance (default 4; `40-80`: these), JUDGE_RUNS into how many runs they are cut
(default 2). The networks of one history stand beside each other: a run costs more than what it computes.

JUDGE_EXAMPLES says how many histories hypothesis draws (default 5). An example is a run of Spark or two, of seconds
each: what fails is made smaller only if JUDGE_SHRINK is set.

Promise: PIPE-6, PIPE-7
"""

from __future__ import annotations

import itertools
import os
import random
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from pyspark.sql import SparkSession

from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.engine import advance
from scale0.pipeline.engine.runs import RunOptions, backfill
from tests.pipeline.judge import compare, drawn, histories, stories
from tests.pipeline.judge.computing import FORMULAS, NOW, SHOWN, agree, compute, judged, parameters
from tests.pipeline.judge.journals import Row, Story, cut, offer, ordered, us
from tests.pipeline.judge.reckoning import Verdict
from tests.pipeline.judge.results import Formula
from tests.pipeline.judge.seconds import second
from tests.pipeline.judge.stories import EXPECTATIONS, UNTIL, Expected, Span

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.extended]

EARLY_US = 5 * 60 * 1_000_000
"""How far beyond the driver's now a time is believed."""
TOGETHER = 4
"""Networks of one history."""
RUNS = int(os.environ.get("JUDGE_RUNS", "2"))

stories.recorded()  # fills EXPECTATIONS, which are parameters below


def groups() -> list[tuple[int, ...]]:
    first, _, last = os.environ.get("JUDGE_SEEDS", str(TOGETHER)).partition("-")
    seeds = range(int(first), int(last)) if last else range(int(first))
    return [tuple(seeds[number : number + TOGETHER]) for number in range(0, len(seeds), TOGETHER)]


# Stories.


@pytest.fixture(scope="module")
def warehouse(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stories")
    # Not --until, but the driver's own clock keeps it from what lies in the future.
    outcome = compute(spark, place, cut(stories.recorded(), random.Random(1), 500), now_us=us(UNTIL) - EARLY_US)
    assert outcome.horizon_us == us(UNTIL)
    return place / "warehouse"


@pytest.fixture(scope="module")
def timeline(warehouse: Path) -> list[Row]:
    return compare.rows(warehouse, "timeline")


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


@pytest.mark.parametrize("expected", EXPECTATIONS, ids=lambda one: f"{one.name}-{one.subject}")
def test_the_timeline_keeps_the_promise_that(expected: Expected, timeline: list[Row]):
    assert spans(timeline, expected.kind, expected.subject) == expected.spans


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    return judged(stories.recorded(), UNTIL)


def test_every_table_agrees_with_the_judge_of_the_stories(warehouse: Path, verdict: Verdict):
    agree(warehouse, verdict)


def test_the_audit_counts_nothing_beyond_the_horizon(warehouse: Path, verdict: Verdict):
    assert compare.audit_differences(warehouse, verdict) == []


# By chance.


class Chance(NamedTuple):
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
    compute(spark, place, cut(events, dice, 10_000), until=until, chosen=parameters(formula))
    return Chance(events, formula, until, place / "warehouse", dice)


def test_a_history_by_chance_agrees_with_the_judge(chance: Chance):
    verdict = judged(chance.events, chance.until, chance.formula)
    agree(chance.warehouse, verdict)
    assert compare.audit_differences(chance.warehouse, verdict) == []


def equal(warehouse: Path, chance: Chance) -> None:
    wanted, found = compare.everything(chance.warehouse), compare.everything(warehouse)
    for table in compare.TABLES:
        lost = sorted(set(wanted[table]) - set(found[table]))[:SHOWN]
        more = sorted(set(found[table]) - set(wanted[table]))[:SHOWN]
        assert (lost, more) == ([], []), f"{table} differs"
        assert len(wanted[table]) == len(found[table])


def test_runs_as_time_goes_by_make_the_tables_of_one_run(chance: Chance, spark: SparkSession, tmp_path: Path):
    """Each run finds what was recorded since the one before, cut again."""
    first = min(second(row["time"]) for row in chance.events)
    ends = sorted(chance.dice.randint(first, chance.until) for _ in range(RUNS - 1))
    for begin, end in itertools.pairwise((first, *ends, 10**9)):
        fresh = [row for row in chance.events if begin <= second(row["time"]) < end]
        compute(spark, tmp_path, cut(fresh, chance.dice, 200), until=chance.until, chosen=parameters(chance.formula))
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
        compute(spark, tmp_path, segments[number::RUNS], until=until, chosen=parameters(chance.formula))
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
    compute(
        spark, tmp_path, cut(events, random.Random(1), 2000), until=27 * 3600 - 60, chosen=Parameters(absent_days=1)
    )
    found = spans(compare.rows(tmp_path / "warehouse", "timeline"), "service", "forgotten")
    assert found == (("up", 100, 1800), ("down", 1800, 86400 + 1800))
    agree(tmp_path / "warehouse", judged(events, 27 * 3600 - 60, absent_days=1))


# Drawn by hypothesis.


EXAMPLES = int(os.environ.get("JUDGE_EXAMPLES", "5"))
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
if os.environ.get("JUDGE_SHRINK"):
    PHASES.append(Phase.shrink)


@given(drawn.histories())
@settings(max_examples=EXAMPLES, phases=PHASES, suppress_health_check=list(HealthCheck))
def test_every_second_is_what_the_judge_says(spark: SparkSession, history: drawn.Drawn):
    """Also flapping, incidents and availability, which are made of the seconds."""
    story = history.story
    events = story.events()
    assert ordered(events)
    last = max(second(row["time"]) for row in events)
    until = max(last - history.before_end, story.begin + 1)
    seconds = story.end - story.begin
    dice, formula = random.Random(seconds), FORMULAS[seconds % len(FORMULAS)]
    segments = cut(events, dice, history.cut)
    late = [] if history.late is None else segments[:: history.late]
    event(f"late segments: {bool(late)}, {formula.name}")
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        place = Path(folder)
        if seconds % 2:
            # Late hours have steps of their own, for the keys that they touch alone.
            patch.setattr(advance, "NEAR_EVENTS", -1)
        for part in ([one for one in segments if one not in late], late):
            if part:
                compute(spark, place, part, until=until, chosen=parameters(formula))
        verdict = judged(events, until, formula)
        agree(place / "warehouse", verdict)
        assert compare.audit_differences(place / "warehouse", verdict) == []
