"""The truths of a history are found in the tables, exact where their meaning is exact; and what nobody planted is not.

One history of `simulator.history`, and one of a generator that shares no code with the pipeline; the engine runs
once over each, and the tables are read as users read them.

Promise: PIPE-10
"""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql import SparkSession

from simulator.history import Truth, generate
from simulator.history import truths as words
from tests.pipeline import naive_history
from tests.pipeline.engine_runs import Bench
from tests.pipeline.truths_found import HOUR_US, SECOND_US, Interval, Span, Tables, unexplained
from tests.pipeline.truths_meant import BREAKS, MEANINGS, REJOIN_US, World, down_once

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.extended]

EVENTS, DAYS, SEED = 180_000, 8, 7

RETURN_US = 20 * SECOND_US
"""An agent that was cut off has its old Helen for 1.5 s, and comes to the other one so long after."""


@pytest.fixture(scope="module")
def world(compiling: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("truths")
    bench = Bench(compiling, folder, 0)
    truths = generate(events=EVENTS, days=DAYS, seed=SEED, out=bench.segments)
    bench.now_us = truths.to_us
    outcome = bench.run()
    assert (outcome.events, outcome.problems) == (truths.events, ())
    return World(truths, Tables(bench.warehouse))


@pytest.mark.parametrize("kind", MEANINGS)
def test_every_planted_truth_is_found(world: World, kind: str):
    for truth in world.of(kind):
        MEANINGS[kind](world, truth)


def test_every_kind_of_truth_has_a_meaning(world: World):
    assert {truth.kind for truth in world.truths.truths} == set(MEANINGS)


# What nobody planted.

ANOMALY_SHARE = 0.01
"""Of the hours that are judged, so many may be flagged without a cause. Of normal noise 0.05 % lie beyond 3.5; the p99
of a few tasks and the longest of some heartbeat gaps have heavier tails, and rates a rhythm: 0.5 % were seen."""
UNJUDGED_US = 12 * HOUR_US
"""At the start of each series nothing is usual yet."""
STEADY = (words.QUIET_SERVICE, words.FILLING_DISK)
"""Truths in which no hour is unlike the one before."""
CHANCE_SHARE = 0.1
"""Of the checks, so many may flap without a planted cause: synth makes 1.2 % of all results a problem, and three of
those close to each other are six changes."""
Causes = dict[tuple[str, str], list[Span]]


def add(causes: Causes, subject_kind: str, subject: str, from_us: int, to_us: int) -> None:
    causes.setdefault((subject_kind, subject), []).append((from_us, to_us))


def down_causes(world: World) -> Causes:
    """When each subject may be down: as planted, and while clients come back to a source."""
    causes: Causes = {}
    for truth in world.truths.truths:
        span = (truth.from_us, truth.to_us)
        if truth.kind in (words.BACKEND_OUTAGE, words.AGENT_OUTAGE):
            add(causes, truth.subject_kind, truth.subject, *span)
        if truth.kind == words.BACKEND_OUTAGE:
            add(causes, "service", truth.facts["service"], *span)
        if truth.kind == words.AGENT_CUT_OFF:
            add(causes, "agent", truth.subject, truth.from_us, truth.to_us + RETURN_US)
        if truth.kind == words.CRITICAL_CHECK:
            add(causes, "check", truth.subject, truth.facts["hard_us"], truth.to_us)
        if truth.kind in (words.BROKER_KILLED, words.BROKER_RESTARTED, words.REWIND):
            add(causes, "broker", truth.subject, *span)
        if truth.kind in BREAKS:
            for subject_kind, subject in followers(world, truth):
                add(causes, subject_kind, subject, truth.to_us, truth.to_us + REJOIN_US)
    return causes


def followers(world: World, truth: Truth) -> list[tuple[str, str]]:
    """Whose state hangs on a source: its agents, or its clients and the services that nobody else offers."""
    names = world.clients_of(truth.subject, truth.from_us)
    if truth.kind == words.HELEN_RESTARTED:
        return [("agent", name) for name in names]
    alone = [("service", name.removesuffix("-1").replace("-", ".")) for name in names if name.endswith("-1")]
    return [*(("client", name) for name in names), *alone]


def test_nothing_is_down_without_a_cause(world: World):
    assert unexplained([each for each in world.tables.intervals if each.kind == "down"], down_causes(world)) == []


def test_no_incident_is_without_a_cause(world: World):
    causes = down_causes(world)
    rows = world.tables.rows("SELECT subject_kind, subject, epoch_us(opened), epoch_us(closed) FROM incidents")
    found = [Interval(kind, name, "incident", begins, ends, frozenset()) for kind, name, begins, ends in rows]
    assert unexplained(found, causes) == []


def test_nothing_is_unobserved_but_what_could_not_be_seen(world: World):
    """Holes, the clients of a source that is away, and checks that were not answered."""
    causes: Causes = {}
    for truth in world.truths.truths:
        if truth.kind == words.LOST_SEGMENT:
            add(causes, "broker", truth.subject, truth.from_us, truth.to_us)
        if truth.kind in BREAKS:
            for subject_kind, subject in followers(world, truth):
                add(causes, subject_kind, subject, truth.from_us, truth.to_us)
        if truth.kind == words.SILENT_CHECK:
            add(causes, "check", truth.subject, truth.from_us, truth.to_us)
        if truth.kind == words.AGENT_OUTAGE:
            for name in ("load", "disk", "http"):
                check = f"{truth.subject}/{name}"
                following = min(at for at, _ in world.tables.results(check) if at >= truth.to_us)
                add(causes, "check", check, truth.from_us, following)
    assert unexplained([each for each in world.tables.intervals if each.kind == "unobserved"], causes) == []


def test_only_what_left_in_order_or_was_not_there_yet_is_absent(world: World):
    causes: Causes = {}
    for truth in world.of(words.DEPLOY):
        add(causes, "client", truth.subject, truth.from_us, truth.to_us)
    later = [each for each in world.tables.intervals if each.kind == "absent" and each.from_us > world.truths.from_us]
    assert unexplained(later, causes) == []


def test_only_planted_downtimes_are_downtime_and_only_planted_problems_are_hard(world: World):
    planned = {truth.subject for truth in world.of(words.CRITICAL_IN_DOWNTIME)}
    assert {each.subject for each in world.tables.intervals if each.kind == "downtime"} == planned
    critical = {truth.subject for truth in world.of(words.CRITICAL_CHECK)}
    assert set(world.tables.hard_problems()) == planned | critical


def test_every_source_counts_its_events_and_only_planted_holes_and_rewinds(world: World):
    rows = world.tables.rows("SELECT sum(events), sum(holes), sum(rewinds), sum(duplicates), sum(rejected) FROM audit")
    planted = (len(world.of(words.LOST_SEGMENT)), len(world.of(words.REWIND)))
    assert rows == [(world.truths.events, *planted, 0, 0)]


def test_only_disks_that_fill_have_a_day_on_which_they_are_full(world: World):
    rows = world.tables.rows(
        "SELECT DISTINCT agent || '/' || \"check\", metric FROM forecasts WHERE exhausted_at IS NOT NULL"
    )
    assert set(rows) == {(truth.subject, truth.facts["metric"]) for truth in world.of(words.FILLING_DISK)}


def flaps(states: list[str]) -> float:
    """The formula of Icinga over the newest 21 states, written down once more."""
    newest = states[-21:]
    changes = [one != other for one, other in zip(newest[1:], newest, strict=False)]
    weights = [0.8 + 0.02 * n for n in range(20)][20 - len(changes) :]
    return 100.0 * sum(weight for weight, change in zip(weights, changes, strict=True) if change) / 20.0


def test_a_check_flaps_only_if_its_results_do(world: World):
    planted = {truth.subject for truth in world.of(words.FLAPPING_CHECK)}
    found = world.tables.flapping()
    assert planted <= set(found)
    assert len(set(found) - planted) <= CHANCE_SHARE * world.truths.checks
    for subject, spans in found.items():
        results = world.tables.results(subject)
        for begins, _ in spans:
            states = [state for at, state in results if at <= begins]
            assert flaps(states) > 30.0, subject
            assert flaps(states[:-1]) <= 30.0, subject


def test_few_hours_are_anomalies_without_a_cause(world: World):
    rows = world.tables.rows("SELECT subject, metric, epoch_us(hour) FROM anomalies")
    stray = [(subject, metric) for subject, metric, hour in rows if not is_caused(world, subject, hour)]
    assert len(rows) > len(stray)
    judged = world.tables.one(
        "SELECT 3 * (SELECT count(*) FROM task_stats WHERE grain = 'hour' AND epoch_us(start) >= $1) "
        "+ 3 * (SELECT count(*) FROM request_stats WHERE grain = 'hour' AND epoch_us(start) >= $1) "
        "+ (SELECT count(*) FROM metric_trends WHERE grain = 'hour' AND epoch_us(start) >= $1) "
        '+ (SELECT count(DISTINCT (identity, epoch_us("at") // $2)) FROM events '
        "WHERE kind = 'client.seen' AND epoch_us(\"at\") >= $1)",
        *(world.truths.from_us + UNJUDGED_US, HOUR_US),
    )
    assert len(stray) <= ANOMALY_SHARE * judged, Counter(metric for _, metric in stray)


def is_caused(world: World, subject: str, hour: int) -> bool:
    """A truth of the subject, of its agent or of a source touches the hour; or a problem by chance.

    Such a problem moves the metric of its check beyond a limit.
    """
    agent = subject.split("/", maxsplit=1)[0]
    for truth in world.truths.truths:
        about = {truth.subject, truth.facts.get("service")} & {subject, agent}
        everybody = truth.kind in (*BREAKS, words.CLOCK_STEPPED)
        meanwhile = truth.from_us < hour + HOUR_US and hour <= truth.to_us
        if meanwhile and (everybody or (about and truth.kind not in STEADY)):
            return True
    problems = [at for at, state in world.tables.results(subject) if state != "ok"] if "/" in subject else []
    return any(hour <= at < hour + HOUR_US for at in problems)


# The same of the naive generator.

NAIVE_SECONDS = 3 * 3600
NAIVE_SEED = 5
NAIVE_KINDS = ("outage", "killed", "hole", "flapping", "critical")


class Naive:
    """One naive history, and its tables. Seconds of the history become microseconds by `us`."""

    def __init__(self, history: naive_history.History, tables: Tables) -> None:
        self.history, self.tables = history, tables

    def of(self, kind: str) -> naive_history.Planted:
        (truth,) = [truth for truth in self.history.planted if truth.kind == kind]
        return truth

    def last_before(self, source: str, second: int) -> int:
        """The last event of a source before a second."""
        times = [event["time"] for event in self.history.events if event["source"] == source]
        return int(max(time for time in times if time < us(second)))


def us(second: int) -> int:
    return (naive_history.START + second) * SECOND_US


@pytest.fixture(scope="module")
def naive(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Naive:
    folder = tmp_path_factory.mktemp("naive")
    history = naive_history.history(NAIVE_SEED, NAIVE_SECONDS)
    bench = Bench(spark, folder, us(NAIVE_SECONDS))
    naive_history.write(history.events, bench.segments)
    outcome = bench.run()
    assert (outcome.events, outcome.problems) == (len(history.events), ())
    return Naive(history, Tables(bench.warehouse))


def naive_spans(naive: Naive, kind: str) -> list[tuple[str, str, str, Span]]:
    """What must be found of a truth: subject kind, subject, class, and when."""
    truth = naive.of(kind)
    span = (us(truth.begin), us(truth.end))
    match kind:
        case "outage":
            service, _ = naive_history.BACKENDS[truth.subject]
            offered = [("service", service), ("service", f"{service}.task")]
            return [(*subject, "down", span) for subject in [("client", truth.subject), *offered]]
        case "killed":
            return [("broker", truth.subject, "down", (naive.last_before(truth.subject, truth.begin), span[1]))]
        case "hole":
            kept = naive.last_before(truth.subject, truth.begin - truth.lost_seconds)
            return [("broker", truth.subject, "unobserved", (kept, span[1]))]
        case "critical":
            results = naive.tables.results(truth.subject)
            bad = [at for at, state in results if state != "ok"]
            ok = next(at for at, state in results if state == "ok" and at > bad[-1])
            assert span[0] <= bad[0] <= bad[-1] < span[1]
            return [("check", truth.subject, "down", (bad[naive_history.MAX_ATTEMPTS - 1], ok))]
        case _:
            return []


@pytest.mark.parametrize("kind", NAIVE_KINDS)
def test_every_naive_truth_is_found(naive: Naive, kind: str):
    for subject_kind, subject, found, span in naive_spans(naive, kind):
        assert span in naive.tables.spans(subject_kind, subject, found), subject
        if found == "down":
            down_once(naive.tables, subject_kind, subject, span)
    truth = naive.of(kind)
    if kind == "flapping":
        (span, *_) = naive.tables.flapping()[truth.subject]
        assert us(truth.begin) < span[0] < us(truth.end) < span[1]
    if kind == "hole":
        assert naive.tables.rows("SELECT source, sum(holes) FROM audit GROUP BY 1 HAVING sum(holes) > 0") == [
            (truth.subject, 1)
        ]


def test_nothing_of_the_naive_history_is_found_that_was_not_planted(naive: Naive):
    causes: dict[str, Causes] = {"down": {}, "unobserved": {}}
    for kind in NAIVE_KINDS:
        for subject_kind, subject, found, span in naive_spans(naive, kind):
            add(causes[found], subject_kind, subject, *span)
    for kind in ("killed", "hole"):
        truth = naive.of(kind)
        for backend, (service, broker) in naive_history.BACKENDS.items():
            if broker == truth.subject:
                ((*_, away),) = naive_spans(naive, kind)
                for sort, name in (("client", backend), ("service", service), ("service", f"{service}.task")):
                    add(causes["unobserved"], sort, name, *away)
                    add(causes["down"], sort, name, away[1], away[1] + naive_history.REJOIN * SECOND_US)
    for found, known in causes.items():
        assert unexplained([each for each in naive.tables.intervals if each.kind == found], known) == []
    assert set(naive.tables.flapping()) == {naive.of("flapping").subject}
    assert set(naive.tables.hard_problems()) == {naive.of("critical").subject}
    assert naive.tables.one("SELECT sum(rewinds) + sum(duplicates) + sum(rejected) FROM audit") == 0
    assert naive.tables.rows("SELECT * FROM forecasts WHERE exhausted_at IS NOT NULL") == []
