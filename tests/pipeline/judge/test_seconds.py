"""The judge keeps its own promises: what was written by hand is what it finds, and its histories are sound."""

from __future__ import annotations

import itertools

import pytest

from tests.pipeline.judge import histories, journals, stories
from tests.pipeline.judge.reckoning import Verdict, judge
from tests.pipeline.judge.results import Formula
from tests.pipeline.judge.seconds import HistoryView, second, seen
from tests.pipeline.judge.stories import EXPECTATIONS, UNTIL, Expected, Span

pytestmark = pytest.mark.slow

stories.recorded()  # fills EXPECTATIONS, which are the parameters below


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    return judge(HistoryView(seen(stories.recorded(), UNTIL), UNTIL), Formula())


def spans(verdict: Verdict, kind: str, subject: str) -> tuple[Span, ...]:
    out = []
    for word, run in itertools.groupby(enumerate(verdict.seconds.get((kind, subject), [])), key=lambda x: x[1].kind):
        numbers = [number for number, _ in run]
        if word != "absent":
            out.append((word, numbers[0], numbers[-1] + 1))
    return tuple(out)


@pytest.mark.parametrize("expected", EXPECTATIONS, ids=lambda one: f"{one.name}-{one.subject}")
def test_the_judge_finds_what_was_written_by_hand(expected: Expected, verdict: Verdict):
    assert spans(verdict, expected.kind, expected.subject) == expected.spans


def test_an_incident_goes_on_through_what_was_not_seen(verdict: Verdict):
    (one,) = verdict.incidents(("check", "a/long"))
    assert (one.opened, one.closed, one.down_seconds) == (3400, 3880, 70 + 20 + 240)
    hour = verdict.period(("check", "a/long"), 3600, 3600)
    assert (hour.incidents, hour.mttr, hour.mtbf) == (0, 330.0, None)


def test_no_down_second_no_incident(verdict: Verdict):
    assert verdict.incidents(("check", "a/hidden")) == []


def test_the_published_example_makes_39_1_percent(verdict: Verdict):
    last = verdict.results["a", "flap"][-1]
    assert float(last.percent) == 39.1
    assert last.flapping


@pytest.mark.parametrize("seed", range(5))
def test_histories_by_chance_are_sound_and_the_same_again(seed: int):
    events = histories.by_chance(seed).events()
    assert journals.ordered(events)
    keys = {(row["source"], row["boot"], row["seq"]) for row in events}
    assert len(keys) == len(events)
    assert events == histories.by_chance(seed).events()
    assert all(second(row["at"]) >= 0 for row in events)
