"""The tables beside the judge: where they differ, in words."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from scale0.pipeline.reading import open_arrow
from tests.pipeline.judge.reckoning import CLASSES, DAY, HOUR, Verdict, together
from tests.pipeline.judge.results import changes
from tests.pipeline.judge.work import (
    GRAINS,
    audit_of,
    bucket_bounds,
    nearest_rank,
    request_stats,
    task_stats,
    tasks_of,
    whole_tasks,
)
from tests.pipeline.naive_history import START

Row = dict[str, Any]
Key = tuple[Any, ...]
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
TABLES = (
    *("audit", "timeline", "availability", "incidents", "sessions", "tasks", "task_stats", "request_stats"),
    *("node_stats", "check_states", "metric_trends", "anomalies", "forecasts", "noise"),
)
SHARES = {"p50": 50, "p90": 90, "p99": 99}
NEAR = 1e-9
MICRO = 0.51e-6
"""Durations are whole microseconds."""
MIDDLE = 0.0101
"""A value from a bucket is within so much of the true one."""


def rows(warehouse: Path, table: str) -> list[Row]:
    """A table as Python has it; times as microseconds of the history."""
    return [{name: _plain(value) for name, value in row.items()} for row in open_arrow(warehouse, table).to_pylist()]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // datetime.timedelta(microseconds=1) - START * 1_000_000
    return value


def everything(warehouse: Path) -> dict[str, list[str]]:
    """All tables, as sets of rows: what two warehouses must have in common."""
    return {table: sorted(map(repr, open_arrow(warehouse, table).to_pylist())) for table in TABLES}


def differences(warehouse: Path, verdict: Verdict) -> list[str]:
    return [
        *_timeline(rows(warehouse, "timeline"), verdict),
        *_availability(rows(warehouse, "availability"), verdict),
        *_incidents(rows(warehouse, "incidents"), verdict),
        *_check_states(rows(warehouse, "check_states"), verdict),
        *_sessions(rows(warehouse, "sessions"), verdict),
        *_tasks(rows(warehouse, "tasks"), verdict),
        *_task_stats(rows(warehouse, "task_stats"), verdict),
        *_request_stats(rows(warehouse, "request_stats"), verdict),
    ]


def _clock(second: float) -> str:
    return f"{datetime.timedelta(seconds=second)} ({second:g})"


# Every second.


def _timeline(found: list[Row], verdict: Verdict) -> Iterator[str]:
    laid: dict[tuple[str, str], dict[int, tuple[Any, ...]]] = {}
    for row in found:
        subject = (row["subject_kind"], row["subject"])
        begin, end = row["from"] / 1e6, row["to"] / 1e6
        if begin >= end or not begin.is_integer() or not end.is_integer() or (end - 1) // HOUR != begin // HOUR:
            yield f"timeline {subject}: a piece from {_clock(begin)} to {_clock(end)}"
            continue
        seconds = laid.setdefault(subject, {})
        for second in range(int(begin), int(end)):
            if second in seconds:
                yield f"timeline {subject}: two pieces at {_clock(second)}"
            seconds[second] = (row["class"], row["reason"] == "soft", row["state"], row["flapping"], row["evidence"])
    for subject in sorted({*laid, *verdict.seconds}):
        yield from _seconds(subject, laid.get(subject, {}), verdict)


def _seconds(subject: tuple[str, str], laid: dict[int, tuple[Any, ...]], verdict: Verdict) -> Iterator[str]:
    nothing = ("absent", False, None, None)
    expected = [
        (one.kind, one.soft, one.state, one.flapping) if one.kind != "absent" else nothing
        for one in verdict.seconds.get(subject, [])
    ]
    found = [laid.get(second, nothing)[:4] for second in range(verdict.view.horizon)]
    found = [nothing if one[0] == "absent" else one for one in found]
    pairs = list(zip(itertools.chain(expected, itertools.repeat(nothing)), found, strict=False))
    for (should, does), run in itertools.groupby(enumerate(pairs), key=lambda pair: pair[1]):
        seconds = [number for number, _ in run]
        if should != does:
            evidence = laid.get(seconds[0], (None,))[-1]
            yield f"timeline {subject} {_span(seconds)}: expected {should}, found {does}, evidence {evidence}"
    if beyond := [second for second in laid if not 0 <= second < verdict.view.horizon]:
        yield f"timeline {subject}: beyond the horizon {_span(sorted(beyond))}"


def _span(seconds: list[int]) -> str:
    return f"[{_clock(seconds[0])}, {_clock(seconds[-1] + 1)})"


# Numbers of periods.


def _availability(found: list[Row], verdict: Verdict) -> Iterator[str]:
    by_key = {(row["subject_kind"], row["subject"], row["grain"], row["start"] // 1_000_000): row for row in found}
    if len(by_key) != len(found):
        yield "availability: a key twice"
    horizon = verdict.view.horizon
    for subject in verdict.seconds:
        for grain, length in (("hour", HOUR), ("day", DAY)):
            for start in range(0, horizon, length):
                row = by_key.pop((*subject, grain, start), None)
                yield from _period(
                    f"availability {subject} {grain} {_clock(start)}", row, verdict, subject, start, length
                )
        # The month began a day before the history.
        row = by_key.pop((*subject, "month", -DAY), None)
        yield from _period(f"availability {subject} month", row, verdict, subject, 0, horizon + DAY, DAY)
    for key, row in by_key.items():
        if row["absent_seconds"] != sum(row[f"{name}_seconds"] for name in CLASSES):
            yield f"availability {key}: not expected, found {row}"


def _period(
    where: str,
    row: Row | None,
    verdict: Verdict,
    subject: tuple[str, str],
    start: int,
    length: int,
    before: int = 0,
) -> Iterator[str]:
    period = verdict.period(subject, start, length)
    if row is None:
        if period.seconds["absent"] != sum(period.seconds.values()):
            yield f"{where}: no row, expected {period}"
        return
    should: Row = {f"{name}_seconds": count for name, count in period.seconds.items()}
    should["absent_seconds"] += before
    should |= {"soft_seconds": period.soft, "availability_low": period.low, "availability_high": period.high}
    should |= {"incidents": period.incidents, "mttr_seconds": period.mttr, "mtbf_seconds": period.mtbf}
    yield from _unequal(where, should, row)


class Near(NamedTuple):
    """A number that may differ by so much."""

    value: float | None
    tolerance: float = MICRO


class Within(NamedTuple):
    """A number between two others, or none at all."""

    bounds: tuple[float, float] | None


def _same(one: Any, other: Any) -> bool:
    match one:
        case Near(None) | Within(None):
            return other is None
        case Near(value, tolerance):
            return other is not None and abs(value - other) <= tolerance
        case Within((low, high)):
            return other is not None and low <= other <= high
        case float() if isinstance(other, float | int):
            return abs(one - other) <= NEAR * max(1.0, abs(one))
        case _:
            return bool(one == other)


def _unequal(where: str, should: Row, row: Row) -> Iterator[str]:
    for name, value in should.items():
        if not _same(value, row[name]):
            yield f"{where}: {name} expected {value}, found {row[name]}"


def _keyed(
    table: str, found: list[Row], key: Callable[[Row], Key], expected: Iterable[tuple[Key, Row]]
) -> Iterator[str]:
    """Each expected row is there once, with these values, and no other."""
    by_key = {key(row): row for row in found}
    if len(by_key) != len(found):
        yield f"{table}: a key twice"
    for at, should in expected:
        row = by_key.pop(at, None)
        if row is None:
            yield f"{table} {at}: not found, expected {should}"
        else:
            yield from _unequal(f"{table} {at}", should, row)
    yield from (f"{table} not expected: {row}" for row in by_key.values())


# Things with a beginning and an end.

SEVERITY = ("", "ok", "warning", "unknown", "critical")


def _incidents(found: list[Row], verdict: Verdict) -> Iterator[str]:
    expected: list[tuple[Key, Row]] = []
    others = together(verdict)
    for subject in verdict.seconds:
        for one in verdict.incidents(subject):
            near = others[subject, one.opened]
            should: Row = {"closed": None if one.closed is None else one.closed * 1_000_000}
            should |= {"down_seconds": float(one.down_seconds), "flapping": one.flapping, "also_failing": len(near)}
            if subject[0] == "check":
                should["worst_state"] = max(one.states, key=SEVERITY.index)
            should["also_failing_first"] = [{"subject_kind": s[0], "subject": s[1]} for _, s in near[:10]]
            expected.append(((subject, one.opened), should))
    return _keyed(
        "incidents",
        found,
        lambda row: ((row["subject_kind"], row["subject"]), row["opened"] // 1_000_000),
        expected,
    )


def _check_states(found: list[Row], verdict: Verdict) -> Iterator[str]:
    expected: list[tuple[Key, Row]] = []
    for (agent, check), results in verdict.results.items():
        for one in changes(results):
            should: Row = {"time": one.at * 1_000_000, "state": one.state, "hard": one.hard, "attempt": one.attempt}
            should |= {"previous": one.previous, "flapping": one.flapping}
            should["flapping_percent"] = float(round(one.percent, 2))
            expected.append(((agent, check, one.event.id), should))
    return _keyed("check_states", found, lambda row: (row["agent"], row["check"], row["id"]), expected)


def _sessions(found: list[Row], verdict: Verdict) -> Iterator[str]:
    expected: list[tuple[Key, Row]] = []
    for one in verdict.view.sessions:
        left = None if one.ended is None else one.ended * 1_000_000
        should: Row = {"joined": one.joined.at * 1_000_000, "left": left, "reason": one.reason, "broker": one.source}
        expected.append(((one.identity, one.joined.id), should))
    return _keyed("sessions", found, lambda row: (row["identity"], row["id"]), expected)


def _tasks(found: list[Row], verdict: Verdict) -> Iterator[str]:
    whole = whole_tasks(verdict.view.events)
    left = [row for row in found if row["ref"] in whole]
    for one in tasks_of([event for event in verdict.view.events if event.ref in whole]):
        submitted = None if one.submitted is None else one.submitted * 1_000_000
        ended = None if one.end is None else one.end.at * 1_000_000
        same = [row for row in left if (row["ref"], row["submitted"], row["ended"]) == (one.ref, submitted, ended)]
        where = f"task {one.ref} submitted {one.submitted} ended {ended}"
        if not same:
            yield f"{where}: not found"
            continue
        left.remove(same[0])
        should: Row = {"outcome": one.outcome, "method": one.method, "client": one.client, "attempts": one.attempts}
        should |= {"group": one.group, "priority": one.priority, "first_assigned": one.first_assigned}
        should |= {"wait_seconds": _seconds_of(one.wait), "run_seconds": _seconds_of(one.run)}
        should |= {"wasted_seconds": _seconds_of(one.wasted)}
        if one.end is not None:
            should |= {"node": one.end.row["identity"], "code": one.end.row["code"]}
        yield from _unequal(where, should, same[0])
    yield from (f"task not expected: {row}" for row in left)


def _seconds_of(us: int | None) -> float | None:
    return None if us is None else us / 1e6


def audit_differences(warehouse: Path, verdict: Verdict) -> list[str]:
    """Of `audit` alone: what was recorded at or before the horizon, by source and day."""
    start = datetime.datetime.fromtimestamp(START, datetime.UTC).date()
    expected = [(key, vars(one)) for key, one in audit_of(verdict.view.sources).items()]
    found = rows(warehouse, "audit")
    return list(_keyed("audit", found, lambda row: (row["source"], (row["day"] - start).days), expected))


# Sums of work.


def _task_stats(found: list[Row], verdict: Verdict) -> Iterator[str]:
    expected: list[tuple[Key, Row]] = []
    for grain in GRAINS:
        for (method, start), one in task_stats(verdict.view.events, grain).items():
            should: Row = {name: getattr(one, name) for name in ("submitted", "finished", "failed", "cancelled")}
            should |= {"retried": one.attempts_ended, "busy_seconds": one.busy / 1e6}
            for word, values in (("wait", one.waits), ("run", one.runs)):
                should[f"{word}_max"] = Near(max(values, default=None))
                for name, share in SHARES.items():
                    value = nearest_rank(values, share)
                    bucket = 0.0 if grain == "minute" else MIDDLE * (value or 0)
                    should[f"{word}_{name}"] = Near(value, max(MICRO, bucket))
            expected.append(((method, grain, start), should))
    return _keyed("task_stats", found, lambda row: (row["method"], *_period_of(row)), expected)


def _request_stats(found: list[Row], verdict: Verdict) -> Iterator[str]:
    expected: list[tuple[Key, Row]] = []
    for grain in GRAINS:
        for (service, start), one in request_stats(verdict.view.events, grain).items():
            should: Row = {"answered": one.answered, "failed": dict(one.failed), "bytes": one.bytes}
            should["histogram"] = [{"bucket": bucket, "count": one.buckets[bucket]} for bucket in sorted(one.buckets)]
            should |= {name: Within(bucket_bounds(one.buckets, share)) for name, share in SHARES.items()}
            expected.append(((service, grain, start), should | {"max": Near(one.longest)}))
    filled = [row | {"failed": dict(row["failed"] or {}), "histogram": row["histogram"] or []} for row in found]
    return _keyed("request_stats", filled, lambda row: (row["service"], *_period_of(row)), expected)


def _period_of(row: Row) -> tuple[str, int]:
    return row["grain"], row["start"] // 1_000_000
