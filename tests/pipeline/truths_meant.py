"""What each planted truth means for the tables: where it is found, and how exactly.

There is a function for each kind of truth of `simulator.history`, which fails where it is not found. Times are compared
exactly, unless a line says why not.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulator.history import Truth, Truths
from simulator.history import truths as words
from tests.pipeline.truths_found import DAY_US, HOUR_US, SECOND_US, Span, Tables, within

REJOIN_US = 5 * SECOND_US
"""The clients of a source that restarts are down until they are there again: synth lets them need up to so long."""
BREAKS = (words.BROKER_KILLED, words.BROKER_RESTARTED, words.HELEN_RESTARTED, words.LOST_SEGMENT, words.REWIND)
"""Truths in which a source does not record."""
SLOW_HOURS = 12
"""Within so many hours a slow release shows: later it is what is usual."""
FULL_US = 2 * HOUR_US
"""How exactly a disk that grows by a line is foretold, days ahead: its noise is 0.8 GB, its growth 1 GB an hour."""


class World:
    def __init__(self, truths: Truths, tables: Tables) -> None:
        self.truths, self.tables = truths, tables

    def of(self, *kinds: str) -> list[Truth]:
        found = [truth for truth in self.truths.truths if truth.kind in kinds]
        assert found, f"none of {kinds} is planted"
        return found

    def clients_of(self, source: str, at_us: int) -> list[str]:
        """Who had a session there when it fell silent."""
        rows = self.tables.rows(
            "SELECT DISTINCT identity FROM sessions WHERE broker = ? AND reason = 'broker_lost' "
            'AND epoch_us("left") = ? ORDER BY 1',
            *(source, at_us),
        )
        return [identity for (identity,) in rows]


def down_once(tables: Tables, subject_kind: str, subject: str, span: Span) -> None:
    """Down for exactly that time, and it is one incident."""
    assert span in tables.spans(subject_kind, subject, "down")
    (incident,) = [each for each in tables.incidents(subject_kind, subject) if each[0] == span[0]]
    assert incident[1] == span[1]
    assert incident[3] == pytest.approx((span[1] - span[0]) / SECOND_US, abs=1e-6)


def backend_outage(world: World, truth: Truth) -> None:
    """Its own seconds and those of the service that it alone offers."""
    span = (truth.from_us, truth.to_us)
    service = truth.facts["service"]
    down_once(world.tables, "client", truth.subject, span)
    down_once(world.tables, "service", service, span)
    for subject_kind, subject in (("client", truth.subject), ("service", service)):
        (also,) = [each[4] for each in world.tables.incidents(subject_kind, subject) if each[0] == truth.from_us]
        assert also >= 1
    assert [left for _, left, reason, _ in world.tables.sessions(truth.subject) if reason == "lost"] == [truth.from_us]
    failed = world.tables.one(
        "SELECT sum(list_sum(map_values(failed))) FROM request_stats WHERE service = ? AND grain = 'hour' "
        "AND epoch_us(start) BETWEEN ? AND ?",
        *(service, truth.from_us - HOUR_US, truth.to_us),
    )
    assert failed >= 12


def agent_outage(world: World, truth: Truth) -> None:
    """The agent is down; of its checks nothing is known, which is neither good nor bad."""
    down_once(world.tables, "agent", truth.subject, (truth.from_us, truth.to_us))
    checks = {each.subject for each in world.tables.intervals if each.subject.startswith(f"{truth.subject}/")}
    assert len(checks) == world.truths.checks // world.truths.agents
    for check in checks:
        times = [at for at, _ in world.tables.results(check)]
        last, following = max(t for t in times if t < truth.from_us), min(t for t in times if t >= truth.to_us)
        (gap,) = [span for span in world.tables.spans("check", check, "unobserved") if span[1] == following]
        assert last < gap[0] < truth.to_us
        assert not world.tables.spans("check", check, "down")


def broker_down(world: World, truth: Truth) -> None:
    """Down: the numbers go on without a hole. Nobody knows of its clients meanwhile; then they come back."""
    span = (truth.from_us, truth.to_us)
    down_once(world.tables, "broker", truth.subject, span)
    clients_unobserved(world, truth, "client")


def clients_unobserved(world: World, truth: Truth, subject_kind: str) -> None:
    clients = [name for name in world.clients_of(truth.subject, truth.from_us) if not name.startswith("front-")]
    assert clients
    for client in clients:
        assert (truth.from_us, truth.to_us) in world.tables.spans(subject_kind, client, "unobserved"), client
        (back,) = [span for span in world.tables.spans(subject_kind, client, "down") if span[0] == truth.to_us]
        assert 0 < back[1] - back[0] <= REJOIN_US


def helen_restarted(world: World, truth: Truth) -> None:
    """Her agents are unobserved, and their checks are not: what she missed is sent to her later."""
    clients_unobserved(world, truth, "agent")


def lost_segment(world: World, truth: Truth) -> None:
    """Unobserved, never down; the audit has the hole."""
    span = (truth.from_us, truth.to_us)
    (gap,) = [each for each in world.tables.of("broker", truth.subject, "unobserved") if each.span == span]
    assert gap.reasons == {"hole"}
    day = truth.to_us // DAY_US
    holes = world.tables.rows(
        "SELECT holes FROM audit WHERE source = ? AND day = DATE '1970-01-01' + CAST(? AS INT)", truth.subject, day
    )
    assert holes == [(1,)]


def rewind(world: World, truth: Truth) -> None:
    """Both histories count: the broker was down between them, and the audit says that it went back."""
    broker_down(world, truth)
    day = truth.to_us // DAY_US
    rewinds = world.tables.rows(
        "SELECT rewinds, holes FROM audit WHERE source = ? AND day = DATE '1970-01-01' + CAST(? AS INT)",
        *(truth.subject, day),
    )
    assert rewinds == [(1, 0)]
    twice = world.tables.one(
        "SELECT count(*) FROM events WHERE source = ? AND boot IN (?, ?) AND seq BETWEEN ? AND ?",
        *(truth.subject, truth.facts["boot_before"], truth.facts["boot_after"]),
        *(truth.facts["first_seq"], truth.facts["last_seq"]),
    )
    assert twice == 2 * truth.facts["events"]


def clock_stepped(world: World, truth: Truth) -> None:
    """Time waits for less than a silence: the broker was up all along."""
    covering = [
        each
        for each in world.tables.of("broker", truth.subject, "up")
        if within((truth.from_us - HOUR_US // 60, truth.to_us + HOUR_US // 60), each.span)
    ]
    assert len(covering) == 1


def slow_release(world: World, truth: Truth) -> None:
    """Run times are three times as long from then on, and the first slow hours are anomalies."""
    medians = [
        world.tables.one(
            "SELECT median(run_seconds) FROM tasks WHERE method = ? AND outcome = 'finished' "
            "AND epoch_us(submitted) >= ? AND epoch_us(submitted) < ?",
            *(truth.subject, *span),
        )
        for span in ((world.truths.from_us, truth.from_us), (truth.from_us, truth.to_us))
    ]
    assert medians[1] / medians[0] == pytest.approx(truth.facts["run_factor"], rel=0.25)
    assert anomalous_hours(world, truth.subject, "task.p99", truth.from_us, truth.from_us + SLOW_HOURS * HOUR_US)


def failing_release(world: World, truth: Truth) -> None:
    """The share of failures, and anomalies of them."""
    failed, all_ = world.tables.rows(
        "SELECT count(*) FILTER (outcome = 'failed'), count(*) FROM tasks WHERE method = ? "
        "AND epoch_us(submitted) >= ? AND epoch_us(submitted) < ?",
        *(truth.subject, truth.from_us, truth.to_us),
    )[0]
    assert failed / all_ == pytest.approx(truth.facts["failed_share"], rel=0.35)
    assert anomalous_hours(world, truth.subject, "task.failures", truth.from_us - HOUR_US, truth.to_us)


def anomalous_hours(world: World, subject: str, metric: str, from_us: int, to_us: int) -> list[int]:
    rows = world.tables.rows(
        "SELECT epoch_us(hour) FROM anomalies WHERE subject = ? AND metric = ? AND epoch_us(hour) > ? "
        "AND epoch_us(hour) < ? AND value > expected",
        *(subject, metric, from_us, to_us),
    )
    return [hour for (hour,) in rows]


def filling_disk(world: World, truth: Truth) -> None:
    """The newest forecast: when it is full, between when and when, how fast."""
    agent, check = truth.subject.split("/")
    slope, limit, full, low, high, fit = world.tables.rows(
        'SELECT slope, "limit", epoch_us(exhausted_at), epoch_us(exhausted_low), epoch_us(exhausted_high), r2 '
        'FROM forecasts WHERE agent = ? AND "check" = ? AND metric = ? ORDER BY as_of DESC LIMIT 1',
        *(agent, check, truth.facts["metric"]),
    )[0]
    assert limit == truth.facts["limit"]
    assert slope == pytest.approx(truth.facts["per_day"], rel=0.01)
    assert fit > 0.99
    assert low < full < high
    assert abs(full - truth.facts["exhausted_us"]) < FULL_US


def flapping_check(world: World, truth: Truth) -> None:
    """From its sixth change on (28.5 % after five, 33.9 % after six), until some time after the last."""
    during = [at for at, _ in world.tables.results(truth.subject) if truth.from_us <= at < truth.to_us]
    assert len(during) == truth.facts["results"]
    (span,) = world.tables.flapping()[truth.subject]
    assert span[0] == during[5]
    assert truth.to_us <= span[1] <= truth.to_us + 20 * (during[1] - during[0] + SECOND_US)
    assert not world.tables.spans("check", truth.subject, "down")  # never hard
    agent, check = truth.subject.split("/")
    # `noise` adds up all agents that have this check.
    everywhere = [spans for subject, spans in world.tables.flapping().items() if subject.endswith(f"/{check}")]
    noisy = world.tables.one('SELECT flapping_seconds FROM noise WHERE "check" = ?', check)
    assert noisy == pytest.approx(sum(ends - begins for spans in everywhere for begins, ends in spans) / SECOND_US)
    starts = world.tables.rows(
        'SELECT epoch_us(time) FROM check_states WHERE agent = ? AND "check" = ? AND flapping ORDER BY 1', agent, check
    )
    assert starts[0] == (during[5],)


def critical_check(world: World, truth: Truth) -> None:
    """Soft until the last attempt, then down until it is ok again."""
    hard_us = truth.facts["hard_us"]
    down_once(world.tables, "check", truth.subject, (hard_us, truth.to_us))
    (incident,) = world.tables.incidents("check", truth.subject)
    assert incident[2] == "critical"
    soft = world.tables.rows(
        'SELECT min(epoch_us("from")), max(epoch_us("to")) FROM timeline WHERE subject = ? AND reason = \'soft\'',
        truth.subject,
    )
    assert soft == [(truth.from_us, hard_us)]
    assert world.tables.hard_problems()[truth.subject] == [(hard_us, truth.to_us)]


def critical_in_downtime(world: World, truth: Truth) -> None:
    """The check is hard critical; its time is downtime, and no incident."""
    span = (truth.facts["downtime_from_us"], truth.facts["downtime_to_us"])
    assert world.tables.spans("check", truth.subject, "downtime") == [span]
    assert world.tables.hard_problems()[truth.subject] == [(truth.facts["hard_us"], truth.to_us)]
    assert world.tables.incidents("check", truth.subject) == []
    assert world.tables.spans("check", truth.subject, "down") == []


def silent_check(world: World, truth: Truth) -> None:
    """Unobserved from the end of the last result's vouching to the next result."""
    span = (truth.facts["unobserved_from_us"], truth.facts["unobserved_to_us"])
    assert span in world.tables.spans("check", truth.subject, "unobserved")
    assert world.tables.incidents("check", truth.subject) == []


def agent_cut_off(world: World, truth: Truth) -> None:
    """The agent is down; its checks went on, and each result counts once though two Helens recorded some."""
    assert (truth.from_us, truth.to_us) in world.tables.spans("agent", truth.subject, "down")
    later = [broker for joined, _, _, broker in world.tables.sessions(truth.subject) if joined > truth.to_us]
    assert later[0] == truth.facts["then"]
    hours = (truth.from_us // HOUR_US * HOUR_US, truth.to_us // HOUR_US * HOUR_US)
    checks = sorted({each.subject for each in world.tables.intervals if each.subject.startswith(f"{truth.subject}/")})
    for check in checks:
        assert not world.tables.spans("check", check, "unobserved")[1:], check
        name = check.split("/")[1]
        results = [at for at, _ in world.tables.results(check) if hours[0] <= at < hours[1] + HOUR_US]
        counted = world.tables.rows(
            "SELECT metric, sum(count) FROM metric_trends WHERE agent = ? AND \"check\" = ? AND grain = 'hour' "
            "AND epoch_us(start) BETWEEN ? AND ? GROUP BY 1",
            *(truth.subject, name, *hours),
        )
        assert {count for _, count in counted} == {len(results)}
    twice = world.tables.one(
        "SELECT count(*) FROM (SELECT ref FROM events WHERE kind = 'check.answered' AND identity = ? "
        "GROUP BY ref HAVING count(*) = 2)",
        truth.subject,
    )
    assert twice == truth.facts["recorded_twice"]


def quiet_service(world: World, truth: Truth) -> None:
    """Seldom asked for is not down: it is up whenever its broker is watching."""
    breaks = [(each.from_us, each.to_us) for each in world.of(*BREAKS)]
    gaps = world.tables.spans("service", truth.subject, "down", "unobserved", "absent")[1:]
    assert all(any(within(gap, (begins, ends + REJOIN_US)) for begins, ends in breaks) for gap in gaps)
    asked = world.tables.one(
        "SELECT sum(answered) FROM request_stats WHERE service = ? AND grain = 'day'", truth.subject
    )
    assert asked > 0.5 * truth.facts["per_hour"] * 24 * world.truths.days


def deploy(world: World, truth: Truth) -> None:
    """It left in order: absent, not down."""
    assert (truth.from_us, truth.to_us) in world.tables.spans("client", truth.subject, "absent")
    assert (truth.from_us, "left") in [(left, why) for _, left, why, _ in world.tables.sessions(truth.subject)]


def client_replaced(world: World, truth: Truth) -> None:
    """One session ends as the other begins: it was up all along."""
    sessions = world.tables.sessions(truth.subject)
    assert (truth.from_us, "replaced") in [(left, why) for _, left, why, _ in sessions]
    assert truth.from_us in [joined for joined, *_ in sessions]
    around = (truth.from_us - SECOND_US, truth.from_us + SECOND_US)
    assert [each for each in world.tables.of("client", truth.subject, "up") if within(around, each.span)]


def client_changed(world: World, truth: Truth) -> None:
    """From its hour on it offers more slots."""
    slots = world.tables.rows(
        "SELECT epoch_us(hour) >= ?, min(slots), max(slots) FROM node_stats WHERE node = ? GROUP BY 1 ORDER BY 1",
        *(truth.from_us // HOUR_US * HOUR_US, truth.subject),
    )
    assert slots == [(False, 4, 4), (True, 8, 8)]


MEANINGS: dict[str, Callable[[World, Truth], None]] = {
    words.BACKEND_OUTAGE: backend_outage,
    words.AGENT_OUTAGE: agent_outage,
    words.BROKER_KILLED: broker_down,
    words.BROKER_RESTARTED: broker_down,
    words.HELEN_RESTARTED: helen_restarted,
    words.LOST_SEGMENT: lost_segment,
    words.REWIND: rewind,
    words.CLOCK_STEPPED: clock_stepped,
    words.SLOW_RELEASE: slow_release,
    words.FAILING_RELEASE: failing_release,
    words.FILLING_DISK: filling_disk,
    words.FLAPPING_CHECK: flapping_check,
    words.CRITICAL_CHECK: critical_check,
    words.CRITICAL_IN_DOWNTIME: critical_in_downtime,
    words.SILENT_CHECK: silent_check,
    words.AGENT_CUT_OFF: agent_cut_off,
    words.QUIET_SERVICE: quiet_service,
    words.DEPLOY: deploy,
    words.CLIENT_REPLACED: client_replaced,
    words.CLIENT_CHANGED: client_changed,
}
