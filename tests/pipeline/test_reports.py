"""Reports say what the tables hold, for any period, and how far to believe it.

Promise: PIPE-9
"""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0.history.events.histogram import QUANTILES, merge, quantile
from scale0.pipeline.reports import availability, data_quality, latency
from scale0.pipeline.reports.availability import Interval, join_intervals
from scale0.pipeline.reports.catalog import MAKERS, TAKES, make
from scale0.pipeline.reports.model import ReportDocument, ReportTable, Strips
from scale0.pipeline.reports.period import NothingThen, period_of
from scale0.pipeline.reports.query import Filters, NoTables, ReportQuery, with_reader
from scale0.pipeline.time_ranges import DAY_US, HOUR_US
from scale0.pipeline.warehouse.warehouse import Warehouse
from tests.pipeline import reports_made as made
from tests.pipeline.reports_made import HORIZON_US, START_US
from tests.pipeline.reports_tables import TABLES
from tests.pipeline.warehouse_made import NOW_US, begin

pytestmark = pytest.mark.slow


def asked(root: Any, name: str, why: bool = False, **question: Any) -> ReportDocument:
    filters = {
        each: question.pop(each) for each in ("subject", "service", "method", "agent", "check") if each in question
    }
    return make((name,), root, ReportQuery(**question, filters=Filters(**filters), why=why))[0]


def rows(report: ReportDocument, table: str) -> list[dict[str, Any]]:
    found = next(one for one in report.tables if one.name == table)
    names = [column.name for column in found.columns]
    return [dict(zip(names, row, strict=True)) for row in found.rows]


def by(report: ReportDocument, table: str, key: str) -> dict[str, dict[str, Any]]:
    return {row[key]: row for row in rows(report, table)}


# Periods.


def test_a_period_ends_at_the_horizon_and_begins_with_an_hour():
    period = period_of(None, None, 5 * DAY_US, START_US, HORIZON_US)
    assert period.to_us == HORIZON_US
    assert period.from_us % HOUR_US == 0
    assert 0 <= HORIZON_US - 5 * DAY_US - period.from_us < HOUR_US
    assert not period.clipped


def test_a_period_is_no_longer_than_the_tables():
    period = period_of(None, None, 90 * DAY_US, START_US, HORIZON_US)
    assert (period.from_us, period.to_us, period.clipped) == (START_US, HORIZON_US, True)


@pytest.mark.parametrize(
    ("start", "end", "why"),
    [(HORIZON_US + DAY_US, None, "end at 2026-05-20 09:30"), (0, START_US - 1, "begin at 2026-05-10 00:00")],
)
def test_a_period_without_tables_says_where_they_are(start, end, why):
    with pytest.raises(NothingThen, match=why):
        period_of(start, end, DAY_US, START_US, HORIZON_US)


hours = st.integers(0, (HORIZON_US - START_US) // HOUR_US)


@given(hours, st.integers(1, 300))
def test_every_hour_of_a_period_is_covered_once(first, length):
    start = START_US + first * HOUR_US
    period = period_of(start, start + length * HOUR_US, 0, START_US, HORIZON_US)
    days = [day * DAY_US for span in period.cover.get("day", ()) for day in span.parts("day")]
    covered = [hour for day in days for hour in range(day, min(day + DAY_US, HORIZON_US), HOUR_US)]
    covered += [hour * HOUR_US for span in period.cover["hour"] for hour in span.parts("hour")]
    assert sorted(covered) == list(range(period.from_us, period.to_us, HOUR_US))


# Availability.


@settings(max_examples=12, deadline=None)
@given(first=hours, length=st.integers(1, 260))
def test_availability_of_any_period_is_the_sum_of_its_seconds(reports_root, first, length):
    start = START_US + first * HOUR_US
    report = asked(reports_root, "availability", from_us=start, to_us=start + length * HOUR_US)
    start, end = report.period.from_us, report.period.to_us
    found = {(row["subject_kind"], row["subject"]): row for row in rows(report, "availability")}
    assert set(found) == set(made.SUBJECTS)
    for subject, row in found.items():
        expected = made.seconds_of(subject, start, end)
        assert {name: row[name] for name in expected} == pytest.approx(expected)
        counted = expected["up_seconds"] + expected["down_seconds"] + expected["unobserved_seconds"]
        low = expected["up_seconds"] / counted if counted else None
        assert row["availability_low"] == pytest.approx(low)
        high = (expected["up_seconds"] + expected["unobserved_seconds"]) / counted if counted else None
        assert row["availability_high"] == pytest.approx(high)
        assert row["incidents"] == made.opened_in(subject, start, end)


def test_the_worst_stands_first_and_proof_weighs_more_than_doubt(reports_root):
    order = [row["subject"] for row in rows(asked(reports_root, "availability"), "availability")]
    assert order[:5] == ["web-2/load", "thumbs.make", "web-1/load", "node-1", "broker-1"]


def test_mttr_is_of_incidents_that_closed_and_mtbf_of_those_that_opened(reports_root):
    found = by(asked(reports_root, "availability"), "availability", "subject")
    assert found["thumbs.make"]["mttr_seconds"] == 3 * 3600 - 600
    assert found["web-1/load"]["mttr_seconds"] == (120 + 3600) / 2
    assert found["web-1/load"]["mtbf_seconds"] == found["web-1/load"]["up_seconds"] / 2
    assert found["web-2/load"]["mttr_seconds"] is None, "it is still open"
    assert found["web-1"]["mtbf_seconds"] is None, "nothing opened"
    # The incident opened before this period and closed in it: all its down time counts.
    late = asked(reports_root, "availability", from_us=START_US + 31 * HOUR_US, to_us=START_US + 34 * HOUR_US)
    assert by(late, "availability", "subject")["thumbs.make"]["mttr_seconds"] == 3 * 3600 - 600


def test_nothing_that_counts_makes_null_and_not_a_share():
    nothing = availability.Sums("check", "a/b", 0, 0, 5, 0, 7, 0, 0)
    assert (nothing.low, nothing.high) == (None, None)
    assert availability.worst_first([nothing, nothing._replace(up=1, subject="c")])[-1] is nothing


def test_unobserved_time_is_reported_and_drawn(reports_root):
    report = asked(reports_root, "availability")
    strips = report.plots[0]
    assert isinstance(strips, Strips)
    node = next(strip for strip in strips.strips if strip.name == "client node-1")
    unobserved = sum(cell.unobserved_seconds for cell in node.cells)
    assert unobserved == pytest.approx(30 * 3600 + 900)
    assert any("of the subjects' time was not observed" in note for note in report.notes)
    assert any("0.401 % of the brokers' time" in note for note in report.notes)


def test_short_periods_are_drawn_by_the_hour(reports_root):
    strips = asked(reports_root, "availability", last_us=DAY_US).plots[0]
    assert isinstance(strips, Strips)
    assert strips.unit_us == HOUR_US
    assert len(strips.strips[0].cells) == 25


def test_why_lists_intervals_that_are_whole_again(reports_root):
    report = asked(reports_root, "availability", why=True, subject="thumbs.make")
    (interval,) = rows(report, "intervals")
    start, end = made.DOWN["service", "thumbs.make"][0]
    assert (interval["from"], interval["to"], interval["class"]) == (start, end, "down")
    assert interval["evidence"] == f"broker-1:7:{start // 1_000_000}"
    assert interval["seconds"] == (end - start) / 1e6


def test_why_lists_holes_and_restatements(reports_root):
    report = asked(reports_root, "tasks", why=True)
    assert [(row["source"], row["holes"]) for row in rows(report, "holes")] == [("broker-1", 1)] * 2
    (restated,) = rows(report, "restatements")
    assert restated == {
        "run": 2,
        "table": "task_stats.hour",
        "part": START_US + 30 * HOUR_US,
        "rows_before": 2,
        "rows_after": 3,
        "cause": "late events",
    }
    assert any("1 part of these tables changed later, in 1 run (late events)" in note for note in report.notes)


def test_restatements_of_other_times_and_tables_are_none_of_its_business(reports_root):
    assert rows(asked(reports_root, "tasks", why=True, last_us=2 * DAY_US), "restatements") == []
    assert rows(asked(reports_root, "availability", why=True), "restatements") == []


def test_pieces_are_joined_only_where_they_touch_and_are_equal():
    piece = Interval("check", "a/b", 0, 10, "down", "critical", "x:1:1")
    assert join_intervals([piece, piece._replace(from_us=10, to_us=20)]) == [piece._replace(to_us=20)]
    over_an_hour = [piece._replace(from_us=start, to_us=start + 10, evidence=f"x:1:{start}") for start in (10, 20)]
    assert join_intervals([piece, *over_an_hour]) == [piece._replace(to_us=30)], "by the first evidence"
    for other in (
        piece._replace(from_us=11, to_us=20),
        piece._replace(from_us=10, to_us=20, state="downtime"),
        piece._replace(from_us=10, to_us=20, reason="unknown"),
        piece._replace(from_us=10, to_us=20, subject="a/c"),
    ):
        assert join_intervals([piece, other]) == [piece, other]


# Filters.


@pytest.mark.parametrize(
    ("filters", "subjects"),
    [
        ({"subject": "node-*"}, {"node-1"}),
        ({"service": "thumbs.make"}, {"thumbs.make"}),
        ({"service": "node-1"}, set()),
        ({"agent": "web-1"}, {"web-1", "web-1/disk", "web-1/load"}),
        ({"check": "load"}, {"web-1/load", "web-2/load"}),
        ({"check": "web-2/load"}, {"web-2/load"}),
        ({"agent": "web-1", "check": "load"}, {"web-1/load"}),
        ({"subject": made.EVIL}, {made.EVIL}),
    ],
)
def test_a_filter_chooses_what_is_meant(reports_root, filters, subjects):
    report = asked(reports_root, "availability", **filters)
    assert {row["subject"] for row in rows(report, "availability")} == subjects
    assert report.matched is bool(subjects)


@pytest.mark.parametrize("evil", ["'; DROP TABLE availability; --", '" OR 1=1', "$since", "?", "[", "%"])
@pytest.mark.parametrize("name", list(MAKERS))
def test_a_filter_is_never_a_part_of_the_question(reports_root, name, evil):
    for each in TAKES[name]:
        report = asked(reports_root, name, **{each: evil})
        assert not report.matched or not any(table.rows for table in report.tables if table.name == name)


def test_a_name_that_nobody_has_comes_with_those_that_are_there(reports_root):
    report = asked(reports_root, "tasks", method="thumbs.mak")
    assert not report.matched
    assert set(report.known) == set(made.METHODS)


# Tasks and requests.


@settings(max_examples=8, deadline=None)
@given(first=hours, length=st.integers(1, 260))
def test_percentiles_of_any_period_are_those_of_all_its_values(reports_root, first, length):
    start = START_US + first * HOUR_US
    tasks, requests = make(
        ("tasks", "requests"), reports_root, ReportQuery(from_us=start, to_us=start + length * HOUR_US)
    )
    inside = [hour for hour in made.HOURS if tasks.period.from_us <= hour * HOUR_US < tasks.period.to_us]
    for report, key, prefix, names in (
        (tasks, "method", "run_", made.METHODS),
        (requests, "service", "", made.SERVICES),
    ):
        found = by(report, report.name, key)
        assert set(found) == set(names)
        for name in names:
            histogram = merge(made.histogram_of(made.durations(name, hour)) for hour in inside)
            for rank, share in QUANTILES:
                assert found[name][f"{prefix}{rank}_seconds"] == quantile(histogram, share)
    assert sum(row["submitted"] for row in rows(tasks, "tasks")) == 40 * len(inside) * len(made.METHODS)


def test_methods_with_failures_stand_first_and_trends_are_shown(reports_root):
    report = asked(reports_root, "tasks")
    first = rows(report, "tasks")[0]
    assert (first["method"], first["failed"], first["failed_share"]) == ("report.daily", 250, 0.025)
    assert first["run_p99_change"] == pytest.approx(1.0, abs=0.05), "the slowest became twice as slow"
    assert first["failed_points"] == 0


def test_requests_name_their_codes(reports_root):
    found = by(asked(reports_root, "requests"), "requests", "service")
    assert found["search"]["codes"] == "404: 500, 504: 250"
    assert found["search"]["failed"] == 750
    assert found["thumbs.make"]["codes"] == ""


def test_a_change_needs_something_to_compare():
    assert latency.change(None, 1.0) is None
    assert latency.change(0.0, 1.0) is None
    assert latency.change(2.0, None) is None
    assert latency.change(2.0, 3.0) == 0.5


def test_bars_hold_every_value_and_touch():
    histogram = made.histogram_of([0.001 * 1.01**at for at in range(900)])
    bars = latency.bars("t", "a", histogram).bars
    assert sum(count for _, _, count in bars) == 900
    assert len(bars) <= latency.MAX_BARS
    for (_, end, _), (start, _, _) in itertools.pairwise(bars):
        assert end == pytest.approx(start)


# The others.


def test_checks_tell_states_problems_and_the_slowest(reports_root):
    report = asked(reports_root, "checks")
    assert rows(report, "states") == [{"state": "critical", "checks": 1}, {"state": "ok", "checks": 2}]
    found = by(report, "checks", "subject")
    assert [row["subject"] for row in rows(report, "checks")] == ["web-2/load", "web-1/load", "web-1/disk"]
    assert (found["web-1/load"]["problems"], found["web-1/load"]["changes"]) == (2, 6), "soft problems are none"
    assert [row["subject"] for row in rows(report, "flapping")] == ["web-1/disk"]
    slow = rows(report, "slowest")
    assert [(row["subject"], row["max_seconds"]) for row in slow] == [("web-2/load", 4.0), ("web-1/load", 0.25)]


def test_run_times_of_too_many_results_are_those_of_the_newest_hours(reports_root, monkeypatch):
    from scale0.pipeline.reports import checks

    monkeypatch.setattr(checks, "MAX_RESULTS", 10)
    report = asked(reports_root, "checks")
    assert any("Run times are of results since 2026-05-20 09:00" in note for note in report.notes)


def test_incidents_are_all_that_touch_the_period(reports_root):
    everything = rows(asked(reports_root, "incidents"), "incidents")
    assert [row["subject"] for row in everything] == ["web-2/load", "web-1/load", "web-1/load", "thumbs.make"]
    assert everything[0]["closed"] is None
    assert everything[0]["seconds"] == (HORIZON_US - (START_US + 246 * HOUR_US)) / 1e6
    assert everything[0]["also_failing_first"] == "web-1"
    # It closed after this period, and so stands in a later part.
    early = asked(reports_root, "incidents", from_us=START_US + 30 * HOUR_US, to_us=START_US + 31 * HOUR_US)
    assert [row["subject"] for row in rows(early, "incidents")] == ["thumbs.make"]
    quiet = asked(reports_root, "incidents", from_us=START_US, to_us=START_US + 2 * HOUR_US)
    assert rows(quiet, "incidents") == []
    assert quiet.summary == "Nothing went down."


def test_a_subject_without_incidents_is_known_all_the_same(reports_root):
    assert asked(reports_root, "incidents", subject="broker-1").matched
    assert not asked(reports_root, "incidents", subject="broker-9").matched


def test_capacity_tells_the_newest_forecast_and_the_load(reports_root):
    report = asked(reports_root, "capacity")
    (forecast,) = rows(report, "forecasts")
    assert forecast["as_of"] == START_US + 10 * DAY_US
    assert forecast["exhausted_at"] == HORIZON_US + 30 * DAY_US
    nodes = by(report, "nodes", "node")
    assert list(nodes) == ["node-1", "node-2"]
    assert nodes["node-2"]["load_share"] == pytest.approx(0.1)
    assert nodes["node-1"]["busiest_share"] == pytest.approx((3600 + 60 * 23) / 7200)
    assert any("1 other metric with a limit" in note for note in report.notes)
    half = asked(reports_root, "capacity", to_us=START_US + HOUR_US, last_us=HOUR_US)
    assert by(half, "nodes", "node")["node-2"]["load_share"] == pytest.approx(0.1)
    assert {plot.title for plot in report.plots} == {"web-1/disk: used", "Load of all nodes by day"}


def test_noise_has_the_months_that_the_period_touches(reports_root):
    (row,) = rows(asked(reports_root, "noise", last_us=DAY_US), "noise")
    assert (row["check"], row["alerts"], row["rank"]) == ("load", 3, 1)


# How it is read.


def test_without_tables_there_is_an_error_that_says_so(tmp_path):
    with pytest.raises(NoTables, match="no tables"):
        make(("tasks",), tmp_path / "nowhere", ReportQuery())


def test_a_warehouse_without_rows_makes_reports_that_say_nothing(tmp_path):
    made.write(tmp_path / "w", {}, made.results(tmp_path / "s"), restated=False)
    for report in make(tuple(MAKERS), tmp_path / "w", ReportQuery()):
        assert report.matched
        assert report.summary
        assert all(not table.rows and table.empty for table in report.tables if table.name != "slowest")


def test_a_report_is_of_one_manifest_and_begins_again_if_there_is_a_newer_one(tmp_path):
    root = made.made(tmp_path)
    looks = []

    def work(reader):
        looks.append(reader.manifest.number)
        if len(looks) == 1:
            warehouse = Warehouse(root)
            with begin(warehouse) as transaction:
                tables = reader.manifest.tables
                transaction.commit(HORIZON_US, now_us=NOW_US, parameters={}, code_version="1", tables=tables)
        return data_quality.data_quality_of(reader, ("tasks",))

    assert with_reader(root, ReportQuery(), work).holes
    assert looks == [1, 2]


def test_every_report_has_its_units_and_is_data(reports_root):
    for report in make(tuple(MAKERS), reports_root, ReportQuery(why=True)):
        assert msgspec.json.decode(msgspec.json.encode(report), type=ReportDocument) is not None
        for table in report.tables:
            check_shape(table)


def check_shape(table: ReportTable) -> None:
    assert len({column.name for column in table.columns}) == len(table.columns)
    assert len({column.head for column in table.columns}) == len(table.columns), "people must tell them apart"
    for row in table.rows:
        assert len(row) == len(table.columns)
        for column, value in zip(table.columns, row, strict=True):
            if value is not None and column.unit == "time":
                assert isinstance(value, int)
            if column.unit == "seconds":
                assert column.name.endswith("seconds")


def test_the_made_tables_look_like_the_real_ones(spark):
    from scale0.pipeline.registry import table_infos

    real = table_infos()
    for table, (columns, data_sets) in TABLES.items():
        assert columns == real[table].columns, table
        assert data_sets == {name: info.period for name, info in real[table].slabs.items()}
