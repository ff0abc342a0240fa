"""Every planted truth is visible to somebody who only looks at the raw events, with plain SQL or plain Python."""

from __future__ import annotations

import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import duckdb
import pytest

from simulator.history import Truth, Truths, generate
from simulator.history import truths as words

pytestmark = pytest.mark.slow

SECOND_US = 1_000_000


class World:
    def __init__(self, folder: Path, truths: Truths) -> None:
        self.truths = truths
        self._base = duckdb.connect()
        self._base.execute(
            'CREATE TABLE e AS SELECT * EXCLUDE (time, "at"), epoch_us(time) AS time, epoch_us("at") AS happened '
            f"FROM read_parquet('{folder}/written=*/*.parquet', hive_partitioning = false)"
        )

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._base.execute(sql, list(values)).fetchall()
        return found

    def of(self, kind: str) -> list[Truth]:
        found = [truth for truth in self.truths.truths if truth.kind == kind]
        assert found
        return found

    def results(self, subject: str) -> list[tuple[int, str]]:
        """Of a check, once each, by their end: (at, state)."""
        agent, check = subject.split("/")
        return self.rows(
            "SELECT DISTINCT happened, state, ref FROM e WHERE kind = 'check.answered' "
            "AND identity = ? AND service = ? "
            "AND json_extract(data, '$.scheduled') = 'true' ORDER BY happened",
            agent,
            check,
        )


@pytest.fixture(scope="module", params=[(30_000, 2, 11), (150_000, 3, 12)], ids=["small", "larger"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    events, days, seed = request.param
    folder = tmp_path_factory.mktemp("synth")
    return World(folder, generate(events=events, days=days, seed=seed, out=folder))


def sessions(world: World, identity: str) -> list[tuple[str, int, str]]:
    return world.rows(
        "SELECT kind, happened, source FROM e WHERE identity = ? AND kind IN "
        "('client.joined', 'client.left', 'client.lost', 'client.replaced') ORDER BY happened, seq",
        identity,
    )


def changes_to_joined(world: World, truth: Truth, kind: str, back_us: int) -> bool:
    """Whether its session ended so when the truth begins, and the next one began then."""
    seen = [(kind, at) for kind, at, _ in sessions(world, truth.subject)]
    return seen[seen.index((kind, truth.from_us)) + 1] == ("client.joined", back_us)


def test_a_backend_is_out_and_its_service_with_it(world: World):
    for truth in world.of(words.BACKEND_OUTAGE):
        assert changes_to_joined(world, truth, "client.lost", truth.to_us)
        service = truth.facts["service"]
        offered = world.rows(
            "SELECT DISTINCT identity FROM e WHERE kind = 'client.joined' AND contains(data, ?)", service
        )
        assert offered == [(truth.subject,)]
        count = "SELECT count(*) FROM e WHERE service = ? AND kind = ? AND happened BETWEEN ? AND ?"
        span = (truth.from_us, truth.to_us)
        assert world.rows(count, service, "request.summed", *span) == [(0,)]
        assert world.rows(count, service, "request.failed", *span)[0][0] >= 10


def test_an_agent_is_out_and_answers_nothing(world: World):
    for truth in world.of(words.AGENT_OUTAGE):
        assert changes_to_joined(world, truth, "client.lost", truth.to_us)
        answered = world.rows("SELECT happened FROM e WHERE kind = 'check.answered' AND identity = ?", truth.subject)
        assert not [at for (at,) in answered if truth.from_us <= at < truth.to_us]
        assert [at for (at,) in answered if at > truth.to_us]


def breaks(world: World, truth: Truth) -> list[tuple[int, int, int, int]]:
    """last time, last seq, next time, next seq of its source's two boots."""
    before, after = truth.facts["boot_before"], truth.facts["boot_after"]
    ends = world.rows("SELECT max(time), max(seq) FROM e WHERE source = ? AND boot = ?", truth.subject, before)
    begins = world.rows("SELECT min(time), min(seq) FROM e WHERE source = ? AND boot = ?", truth.subject, after)
    return [(*ends[0], *begins[0])]


def last_kind(world: World, truth: Truth) -> str:
    sql = "SELECT kind FROM e WHERE source = ? AND boot = ? ORDER BY seq DESC LIMIT 1"
    (found,) = world.rows(sql, truth.subject, truth.facts["boot_before"])
    return str(found[0])


def first_kind(world: World, truth: Truth) -> str:
    sql = "SELECT kind FROM e WHERE source = ? AND boot = ? ORDER BY seq LIMIT 1"
    (found,) = world.rows(sql, truth.subject, truth.facts["boot_after"])
    return str(found[0])


def test_a_broker_is_killed_and_its_numbers_go_on(world: World):
    for truth in world.of(words.BROKER_KILLED):
        ((last, last_seq, first, first_seq),) = breaks(world, truth)
        assert (last, first, first_seq) == (truth.from_us, truth.to_us, last_seq + 1)
        assert first - last > 150 * SECOND_US
        assert last_kind(world, truth) != "broker.stopped"
        assert first_kind(world, truth) == "broker.started"
        assert not world.rows("SELECT 1 FROM e WHERE source = ? AND time > ? AND time < ?", truth.subject, last, first)


def test_restarts_in_order_say_so(world: World):
    for truth in world.of(words.BROKER_RESTARTED):
        assert last_kind(world, truth) == "broker.stopped"
        assert first_kind(world, truth) == "broker.started"
    for truth in world.of(words.HELEN_RESTARTED):
        assert last_kind(world, truth) == first_kind(world, truth) == "source.alive"
    for truth in world.of(words.BROKER_RESTARTED) + world.of(words.HELEN_RESTARTED):
        ((last, last_seq, first, first_seq),) = breaks(world, truth)
        assert (last, first, first_seq) == (truth.from_us, truth.to_us, last_seq + 1)


def test_a_lost_segment_is_a_hole(world: World):
    for truth in world.of(words.LOST_SEGMENT):
        ((last, last_seq, first, first_seq),) = breaks(world, truth)
        assert (last, first) == (truth.from_us, truth.to_us)
        assert (last_seq + 1, first_seq - 1) == (truth.facts["first_seq"], truth.facts["last_seq"])
        assert truth.facts["events"] == first_seq - 1 - last_seq > 10
        assert truth.from_us < truth.facts["crashed_us"] < truth.to_us


def test_an_old_disk_makes_a_boot_that_begins_below_the_last_seq(world: World):
    for truth in world.of(words.REWIND):
        ((_, last_seq, _, first_seq),) = breaks(world, truth)
        assert (first_seq, last_seq) == (truth.facts["first_seq"], truth.facts["last_seq"])
        assert truth.facts["events"] == last_seq - first_seq + 1 > 0
        twice = world.rows(
            "SELECT count(*), count(DISTINCT (kind, happened)) FROM e WHERE source = ? AND boot IN (?, ?) "
            "AND seq BETWEEN ? AND ?",
            *(truth.subject, truth.facts["boot_before"], truth.facts["boot_after"], first_seq, last_seq),
        )
        assert twice[0][0] == 2 * truth.facts["events"]
        assert twice[0][1] > truth.facts["events"]  # both histories happened


def test_a_clock_steps_back_and_time_waits(world: World):
    for truth in world.of(words.CLOCK_STEPPED):
        ((time, data),) = world.rows(
            "SELECT time, data FROM e WHERE kind = 'source.clock_stepped' AND source = ?", truth.subject
        )
        assert time == truth.from_us
        assert json.loads(data) == {"back_seconds": truth.facts["back_seconds"]}
        between = world.rows(
            "SELECT count(*) FROM e WHERE source = ? AND time > ? AND time < ?",
            truth.subject,
            truth.from_us,
            truth.to_us,
        )
        assert between == [(0,)]
        assert world.rows("SELECT count(*) FROM e WHERE source = ? AND time = ?", truth.subject, time)[0][0] > 1


def test_a_slow_release_makes_run_times_three_times_as_long(world: World):
    for truth in world.of(words.SLOW_RELEASE):
        runs = world.rows(
            "SELECT s.happened, c.seconds FROM e c JOIN e s ON c.ref = s.ref AND s.kind = 'task.submitted' "
            "WHERE c.kind = 'task.completed' AND c.service = ? AND c.seconds > 0",
            truth.subject,
        )
        before = [seconds for at, seconds in runs if at < truth.from_us]
        after = [seconds for at, seconds in runs if at >= truth.from_us]
        assert len(before) > 50
        assert len(after) > 20
        assert 2.2 < statistics.median(after) / statistics.median(before) < 4.0


def test_a_failing_release_makes_failures(world: World):
    for truth in world.of(words.FAILING_RELEASE):
        rows = world.rows(
            "SELECT s.happened >= ? AND s.happened < ?, count(*), "
            "count(*) FILTER (c.state = 'failed' AND c.code = 500) "
            "FROM e c JOIN e s ON c.ref = s.ref AND s.kind = 'task.submitted' "
            "WHERE c.kind = 'task.completed' AND c.service = ? GROUP BY 1 ORDER BY 1",
            *(truth.from_us, truth.to_us, truth.subject),
        )
        (_, usual, few), (_, bad, many) = rows
        assert few / usual < 0.05
        assert many / bad > 0.1


def test_a_disk_fills_by_a_line_and_is_full_soon_after_the_end(world: World):
    for truth in world.of(words.FILLING_DISK):
        agent, check = truth.subject.split("/")
        rows = world.rows(
            "SELECT happened, m.value, m.max, m.unit FROM (SELECT happened, unnest(metrics) AS m FROM e "
            "WHERE kind = 'check.answered' AND identity = ? AND service = ?) WHERE m.name = ?",
            *(agent, check, truth.facts["metric"]),
        )
        days = [(at - world.truths.from_us) / 86_400e6 for at, *_ in rows]
        values = [value for _, value, *_ in rows]
        slope, base = statistics.linear_regression(days, values)
        assert abs(slope / truth.facts["per_day"] - 1) < 0.05
        assert statistics.correlation(days, values) > 0.95
        assert {limit for *_, limit, _ in rows} == {truth.facts["limit"]}
        full = world.truths.from_us + (truth.facts["limit"] - base) / slope * 86_400e6
        assert abs(full - truth.facts["exhausted_us"]) < 86_400e6
        assert truth.facts["exhausted_us"] > world.truths.to_us


def test_no_other_disk_fills(world: World):
    rows = world.rows(
        "SELECT identity, regr_r2(m.value, happened / 86400e6) FROM "
        "(SELECT identity, happened, unnest(metrics) AS m FROM e "
        "WHERE kind = 'check.answered' AND service = 'disk') WHERE m.name = 'used' GROUP BY 1"
    )
    filling = {truth.subject.split("/")[0] for truth in world.of(words.FILLING_DISK)}
    assert {agent for agent, fit in rows if fit > 0.5} == filling


def test_a_check_flaps(world: World):
    for truth in world.of(words.FLAPPING_CHECK):
        results = world.results(truth.subject)
        inside = [state for at, state, *_ in results if truth.from_us <= at < truth.to_us]
        assert len(inside) == truth.facts["results"] >= 24
        assert inside == ["critical" if n % 2 == 0 else "ok" for n in range(len(inside))]
        assert {state for at, state, *_ in results if not truth.from_us <= at < truth.to_us} == {"ok"}


def hard_problems(results: list[tuple[int, str]], max_attempts: int) -> list[tuple[int, int]]:
    """When a check became hard, and when it was ok again, by counting."""
    found, row, since = [], 0, 0
    for at, state, *_ in results:
        row = 0 if state == "ok" else row + 1
        if row == max_attempts:
            since = at
        if row == 0 and since:
            found.append((since, at))
            since = 0
    return found


def test_checks_are_hard_critical_where_it_was_planted_and_nowhere_else(world: World):
    expected = {}
    for truth in world.of(words.CRITICAL_CHECK) + world.of(words.CRITICAL_IN_DOWNTIME):
        expected[truth.subject] = [(truth.facts["hard_us"], truth.to_us)]
        first = next(at for at, state, *_ in world.results(truth.subject) if state != "ok")
        assert first == truth.from_us
    found = {}
    for agent, check, attempts in world.rows(
        "SELECT DISTINCT identity, service, CAST(json_extract(data, '$.max_attempts') AS INT) FROM e "
        "WHERE kind = 'check.answered' AND json_extract(data, '$.scheduled') = 'true'"
    ):
        hard = hard_problems(world.results(f"{agent}/{check}"), attempts)
        if hard:
            found[f"{agent}/{check}"] = hard
    assert found == expected


def test_a_downtime_covers_the_problem_that_was_planned(world: World):
    for truth in world.of(words.CRITICAL_IN_DOWNTIME):
        rows = world.rows(
            "SELECT kind, happened, identity || '/' || service, data FROM e WHERE ref = ? ORDER BY 2",
            truth.facts["ref"],
        )
        (started, begins, subject, data), (ended, ends, same, _) = rows
        assert (started, ended, subject, same) == ("downtime.started", "downtime.ended", truth.subject, truth.subject)
        assert (begins, ends) == (truth.facts["downtime_from_us"], truth.facts["downtime_to_us"])
        assert begins < truth.from_us < truth.to_us < ends
        assert round(json.loads(data)["ends"] * SECOND_US) == ends
    outside = world.rows("SELECT DISTINCT identity FROM e WHERE kind = 'downtime.started'")
    assert len(outside) == len(world.of(words.CRITICAL_IN_DOWNTIME))


def test_a_check_is_not_answered_for_some_time(world: World):
    for truth in world.of(words.SILENT_CHECK):
        times = [at for at, *_ in world.results(truth.subject)]
        assert not [at for at in times if truth.from_us <= at < truth.to_us]
        assert max(at for at in times if at < truth.from_us) == truth.facts["last_us"]
        assert min(at for at in times if at >= truth.from_us) == truth.to_us
        assert truth.facts["last_us"] < truth.facts["unobserved_from_us"] < truth.to_us


def test_other_checks_are_answered_as_often_as_they_should(world: World):
    away = {truth.subject for truth in world.of(words.AGENT_OUTAGE)}
    silent = {truth.subject for truth in world.of(words.SILENT_CHECK)}
    for agent, check, vouched in world.rows(
        "SELECT DISTINCT identity, service, CAST(json_extract(data, '$.interval') AS DOUBLE) "
        "+ CAST(json_extract(data, '$.timeout') AS DOUBLE) FROM e "
        "WHERE kind = 'check.answered' AND json_extract(data, '$.scheduled') = 'true'"
    ):
        subject = f"{agent}/{check}"
        if agent not in away and subject not in silent:
            times = [at for at, *_ in world.results(subject)]
            assert max(b - a for a, b in itertools.pairwise(times)) < vouched * SECOND_US, subject


def test_results_of_an_agent_that_was_cut_off_come_later_and_some_to_two_helens(world: World):
    for truth in world.of(words.AGENT_CUT_OFF):
        rows = world.rows(
            "SELECT happened, time, source, ref FROM e WHERE kind = 'check.answered' AND identity = ? "
            "AND happened >= ? AND happened < ?",
            *(truth.subject, truth.from_us, truth.to_us),
        )
        assert len({ref for *_, ref in rows}) >= 10
        assert all(time >= truth.to_us for _, time, *_ in rows)
        assert max(time - at for at, time, *_ in rows) > 2 * 3600 * SECOND_US
        by_ref: dict[str, list[tuple[int, str]]] = {}
        for at, _, source, ref in rows:
            by_ref.setdefault(ref, []).append((at, source))
        twice = [both for both in by_ref.values() if len(both) > 1]
        assert len(twice) == truth.facts["recorded_twice"]
        for both in twice:
            assert {source for _, source in both} == {truth.facts["helen"], truth.facts["then"]}
            assert len({at for at, _ in both}) == 1
        seen = sessions(world, truth.subject)
        assert ("client.lost", truth.from_us, truth.facts["helen"]) in seen
        assert ("client.joined", truth.to_us, truth.facts["helen"]) in seen
        later = [source for kind, at, source in seen if at > truth.to_us and kind == "client.joined"]
        assert later[:1] == [truth.facts["then"]]


def test_checks_that_somebody_asked_for_are_critical_and_not_scheduled(world: World):
    rows = world.rows(
        "SELECT state FROM e WHERE kind = 'check.answered' AND json_extract(data, '$.scheduled') = 'false'"
    )
    assert rows == [("critical",)] * 5


def test_a_quiet_service_is_asked_now_and_then_and_always_there(world: World):
    for truth in world.of(words.QUIET_SERVICE):
        (count,) = world.rows("SELECT count(*) FROM e WHERE kind = 'request.summed' AND service = ?", truth.subject)[0]
        hours = world.truths.days * 24
        assert 0.5 * truth.facts["per_hour"] * hours < count < 1.5 * truth.facts["per_hour"] * hours
        (backend,) = world.rows("SELECT DISTINCT identity FROM e WHERE service = ?", truth.subject)[0]
        assert {kind for kind, *_ in sessions(world, backend)} == {"client.joined"}


def test_nodes_leave_are_replaced_and_change(world: World):
    for truth in world.of(words.DEPLOY):
        assert changes_to_joined(world, truth, "client.left", truth.to_us)
        worked = world.rows(
            "SELECT 1 FROM e WHERE kind IN ('task.completed', 'request.summed', 'client.seen') AND identity = ? "
            "AND happened BETWEEN ? AND ?",
            *(truth.subject, truth.from_us, truth.to_us),
        )
        assert not worked
    for truth in world.of(words.CLIENT_REPLACED):
        assert changes_to_joined(world, truth, "client.replaced", truth.from_us)
    for truth in world.of(words.CLIENT_CHANGED):
        sql = "SELECT happened, data FROM e WHERE kind = 'client.changed' AND identity = ?"
        ((at, data),) = world.rows(sql, truth.subject)
        assert at == truth.from_us
        assert json.loads(data)["slots"] == 8


def test_no_backend_is_lost_but_where_it_was_planted(world: World):
    lost = world.rows(
        "SELECT identity, happened FROM e WHERE kind = 'client.lost' "
        "AND json_extract_string(data, '$.role') = 'backend'"
    )
    assert sorted(lost) == sorted((truth.subject, truth.from_us) for truth in world.of(words.BACKEND_OUTAGE))
