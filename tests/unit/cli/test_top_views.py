"""What `scale0 top` shows, without a network: frames, rates, views, sorting and filters."""

from __future__ import annotations

from typing import Any

import pytest

from scale0.cli.network.snapshot import Snapshot
from scale0.cli.top.views import (
    BROKERS,
    CHECKS,
    SERVICES,
    VIEWS,
    TopFrame,
    ViewState,
    as_data,
    cells,
    chosen,
    detail,
    fitted,
    frame_of,
    head_of,
    problems_of,
)
from scale0.client.admin.health import NetworkSnapshot
from scale0.client.admin.rates import done_between, rates_between, total_between
from scale0.history.events.histogram import bucket_of

STATUS: dict[str, Any] = {
    "broker": "b1",
    "state": "active",
    "standby_for": "",
    "draining": False,
    "uptime": 100.0,
    "clients": {"backend": 1},
    "config_version": 1,
    "error_clients": 0,
    "tasks": {"open": 3},
}
SERVICE: dict[str, Any] = {"backends": 1, "slots": 2, "busy": 1, "waiting": 0, "where": ["b1"]}
CHECK: dict[str, Any] = {
    "agent": "web-1",
    "check": "disk",
    "state": "ok",
    "hard": True,
    "at": 90.0,
    "message": "fine\nmore",
    "suppressed": [],
}


def counts(service: str, answered: int, failed: int, seconds: float) -> dict[str, Any]:
    histogram = [[bucket_of(seconds), answered]] if answered else []
    return {"service": service, "answered": answered, "failed": failed, "histogram": histogram}


def look(at: float, rates: list[dict[str, Any]] | None, **seen: Any) -> Snapshot:
    services = [{**SERVICE, "service": name} for name in ("hello", "other")]
    found = NetworkSnapshot(
        status=STATUS, peers=[], services=services, **{"checks": [], "agents": [], "incidents": [], **seen}
    )
    return Snapshot(found, [{"broker": "b1", "state": "active"}], rates, at, rates is not None)


def two_looks(**seen: Any) -> TopFrame:
    before = look(10.0, [counts("hello", 100, 0, 0.5)])
    return frame_of(look(12.0, [counts("hello", 120, 2, 0.5)], **seen), before)


# Promise: TERM-8
def test_rates_are_what_was_done_in_between():
    frame = two_looks()
    hello = next(row for row in frame.services if row["service"] == "hello")
    assert hello["rates"]["answered_per_second"] == 10.0
    assert hello["rates"]["failed_per_second"] == 1.0
    assert hello["rates"]["p99_seconds"] == pytest.approx(0.5, rel=0.01)
    assert frame.total is not None
    assert frame.total.answered_per_second == 10.0
    assert "· 1 client · 10.0/s, 1.0 failed/s" in head_of(frame)
    assert head_of(frame).endswith("· 3 tasks")


# Promise: TERM-8
def test_a_broker_that_restarted_has_no_rates_until_the_next_sample():
    old, new = counts("hello", 100, 0, 0.5), counts("hello", 3, 0, 0.5)
    assert done_between(old, new) is None
    assert rates_between([old], [new], 1.0) == {}
    assert total_between([old], [new], 1.0) is None
    assert total_between([], [new], 1.0) is not None


# Promise: TERM-8
def test_without_a_right_rates_are_dashes_and_never_zero():
    frame = frame_of(look(1.0, None), None)
    assert {row["rates"] for row in frame.services} == {None}
    row = chosen(SERVICES, frame, ViewState(SERVICES.sort), 0.0)[0]
    assert cells(SERVICES, row, 0.0)[1:5] == ["-", "-", "-", "-"]
    assert "no rates" in head_of(frame)


def test_rows_are_sorted_by_value_and_found_by_words():
    checks = [{**CHECK, "agent": f"web-{n}", "state": s} for n, s in enumerate(["ok", "critical", "warning"])]
    frame = two_looks(checks=checks)
    assert [row["state"] for row in chosen(CHECKS, frame, ViewState(2), 0.0)] == ["critical", "warning", "ok"]
    assert [row["state"] for row in chosen(CHECKS, frame, ViewState(2, reverse=True), 0.0)] == [
        "ok",
        "warning",
        "critical",
    ]
    assert [row["agent"] for row in chosen(CHECKS, frame, ViewState(0, words="WEB-2 disk"), 0.0)] == ["web-2"]
    assert chosen(CHECKS, frame, ViewState(0, words="nowhere"), 0.0) == []


def test_every_view_draws_any_row_within_80_columns():
    long = "x" * 200
    checks = [{**CHECK, "agent": long, "check": long, "message": long}]
    frame = two_looks(checks=checks)._replace(services=[{**SERVICE, "service": long, "rates": None}])
    for view in VIEWS:
        rows = [cells(view, row, 100.0) for row in chosen(view, frame, ViewState(view.sort), 100.0)]
        for row in fitted(view, rows, view.sort, 78, 2):
            assert sum(map(len, row)) + 2 * len(row) <= 78, view.name


def test_what_the_network_says_is_clean_text():
    nasty = {**CHECK, "agent": "\x1b[2J", "message": "[red]no markup[/red]"}
    frame = two_looks(checks=[nasty])
    row = chosen(CHECKS, frame, ViewState(0), 0.0)[0]
    assert "\x1b" not in "".join(cells(CHECKS, row, 0.0))
    assert "\x1b" not in "".join(value for _, value in detail(CHECKS, row))


def test_a_detail_says_what_to_type():
    row = chosen(CHECKS, two_looks(checks=[CHECK]), ViewState(0), 0.0)[0]
    assert ("type", "scale0 check run web-1 disk") in detail(CHECKS, row)
    assert detail(BROKERS, {"broker": "b1", "state": "active"})[0] == ("broker", "b1")


def test_a_frame_is_json_and_its_findings_fit_in_one_line():
    frame = two_looks(checks=[{**CHECK, "state": "critical"}])
    assert problems_of(frame) == "1 critical: check web-1 disk: critical: fine"
    data = as_data(frame)
    assert data["findings"][0]["severity"] == "critical"
    assert data["services"][0]["rates"] is not None
