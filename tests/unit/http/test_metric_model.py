"""The model: names by the conventions, bounded labels, and counters that never go back."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.history.events.histogram import Histogram, bucket_of, from_counts, merge
from scale0.http.metrics.catalog import CATALOG
from scale0.http.metrics.model import (
    BOUNDS,
    MAX_SERVICES,
    OTHER,
    LabelLimit,
    added_to,
    bucket_counts,
    metrics_of,
)
from scale0.http.metrics.sample import NetworkSample, counted, sample_of
from tests.processes.http.metric_samples import STATUS, big, queue, rates, whole


def values(sample: NetworkSample, limit: LabelLimit | None = None) -> dict[tuple[str, ...], float]:
    """Every point by its metric's name and its labels."""
    metrics = metrics_of(sample, limit or LabelLimit())
    return {(metric.name, *point.labels): point.value for metric in metrics for point in metric.points}


# Promise: EXP-1
@pytest.mark.parametrize("definition", CATALOG, ids=lambda one: one.name)
def test_a_name_follows_the_conventions(definition):
    assert re.fullmatch(r"scale0_[a-z][a-z_]*[a-z]", definition.name)
    assert definition.name.endswith("_total") == (definition.kind == "counter")
    assert definition.name.endswith("_info") == (definition.kind == "info")
    assert definition.unit in ("", "seconds", "bytes")
    if definition.unit:
        assert definition.name.removesuffix("_total").endswith(f"_{definition.unit}")
    assert definition.help.endswith(".")
    assert "\n" not in definition.help
    assert all(re.fullmatch(r"[a-z]+", label) and label != "le" for label in definition.labels)
    assert not {"client", "task", "request", "identity"} & set(definition.labels)


def test_every_metric_of_the_catalogue_is_made_and_named_once():
    made = [metric.name for metric in metrics_of(whole(), LabelLimit())]
    assert sorted(made) == sorted(definition.name for definition in CATALOG)


# Promise: EXP-1
def test_a_sample_says_what_the_broker_said():
    found = values(whole())
    assert found["scale0_broker_up",] == 1
    assert found["scale0_broker_info", "east-1", "east", "0.1.0"] == 1
    assert found["scale0_broker_state", "active"] == 1
    assert found["scale0_broker_state", "draining"] == 0
    assert found["scale0_clients", "backend"] == 3
    assert found["scale0_requests_answered_total", "thumbs.make"] == 4
    assert found["scale0_requests_failed_total", "hello"] == 1
    assert found["scale0_requests_failed_total", OTHER] == 2  # of names that nobody offers
    assert found["scale0_service_waiting_requests", "thumbs.make"] == 3
    assert found["scale0_service_oldest_waiting_seconds", "thumbs.make"] == 1.5
    assert found["scale0_service_busy_slots", "hello"] == 1
    assert found["scale0_peers", "lost"] == 1
    assert found["scale0_peer_up", "east-2"] == 1
    assert found["scale0_peer_up", "west-1"] == 0
    assert found["scale0_tasks_finished_total",] == 13
    assert found["scale0_checks", "critical"] == 1
    assert found["scale0_checks", "warning"] == 0
    assert found["scale0_export_dropped_total", "graphite", "127.0.0.1:2003"] == 2
    assert found["scale0_broker_oddities_total", "messages_flooded"] == 3


def test_a_draining_broker_is_draining_and_not_active():
    found = values(whole(draining=True))
    assert (found["scale0_broker_state", "draining"], found["scale0_broker_state", "active"]) == (1, 0)


def test_without_a_broker_there_is_only_that_it_is_away():
    found = values(sample_of(5.0, failures=3))
    assert found == {
        ("scale0_broker_up",): 0,
        ("scale0_sample_timestamp_seconds",): 5,
        ("scale0_sample_duration_seconds",): 0,
        ("scale0_sample_failures_total",): 3,
    }


# Promise: EXP-2
def test_services_beyond_the_limit_are_folded_and_counted_and_nothing_is_lost():
    sample = big(MAX_SERVICES + 50)
    metrics = {metric.name: metric for metric in metrics_of(sample, LabelLimit())}
    answered = metrics["scale0_requests_answered_total"].points
    assert len(answered) == MAX_SERVICES + 1
    assert sum(point.value for point in answered) == sum(row["answered"] for row in sample.rates)
    assert metrics["scale0_services_folded"].points[0].value == 50
    assert len(metrics["scale0_request_duration_seconds"].distributions) == MAX_SERVICES + 1
    assert len(metrics["scale0_service_backends"].points) == MAX_SERVICES + 1


# Promise: EXP-2
def test_ten_thousand_clients_are_no_labels():
    assert "9000" not in str([key for key in values(big(3)) if key[0] != "scale0_clients"])
    assert len(values(big(3))) < 100


# Promise: EXP-2
@given(st.lists(st.lists(st.sampled_from("abcdef"), unique=True), max_size=8))
def test_neither_a_service_nor_the_rest_ever_counts_back_because_another_came(steps):
    limit = LabelLimit(max_labels=3)
    counts: dict[str, int] = {}
    before: dict[str, float] = {}
    for names in steps:
        for name in names:
            counts[name] = counts.get(name, 0) + 10
        sample = sample_of(1.0, status=STATUS, rates=[{**rates(name), "answered": n} for name, n in counts.items()])
        now = {
            key[1]: value for key, value in values(sample, limit).items() if key[0] == "scale0_requests_answered_total"
        }
        assert all(now[name] >= value for name, value in before.items())
        assert sum(now.values()) == sum(counts.values())
        before = now


def test_a_service_that_is_called_like_the_rest_is_part_of_it():
    sample = sample_of(1.0, status=STATUS, rates=[rates("", failed=2), rates("other", 0.1, failed=1)])
    assert values(sample)["scale0_requests_failed_total", "other"] == 3


def test_words_that_others_choose_are_bounded():
    counters = {f"kind-{number}": 1 for number in range(5_000)}
    peers = [{"broker": f"b-{number:05d}", "state": f"s-{number}"} for number in range(5_000)]
    assert len(values(sample_of(1.0, status={**STATUS, "counters": counters}, peers=peers))) < 600


# Promise: EXP-1
@given(st.lists(st.floats(0.0, 200.0), max_size=50))
def test_bounds_hold_what_is_below_them_within_one_percent(seconds):
    counts = from_counts({}) if not seconds else merge([[(bucket_of(each), 1)] for each in seconds])
    seen = 0
    for bound, count in zip(BOUNDS, bucket_counts(counts), strict=False):
        seen += count
        assert sum(each <= bound * 0.98 for each in seconds) <= seen <= sum(each <= bound * 1.02 for each in seconds)
    assert sum(bucket_counts(counts)) == len(seconds)


@given(
    st.dictionaries(st.integers(-50, 50), st.integers(1, 9)), st.dictionaries(st.integers(-50, 50), st.integers(1, 9))
)
def test_what_was_added_to_a_histogram_is_found_again(before, added):
    old: Histogram = from_counts(before)
    assert added_to(merge([old, from_counts(added)]), old) == from_counts(added)


def test_a_histogram_that_restarted_counts_from_nothing():
    assert added_to([(3, 1)], [(3, 5)]) == [(3, 1)]


def test_slots_are_the_brokers_own_sums_where_it_tells_them():
    load = sample_of(1.0, queues=[{**queue("a"), "slots": 40, "busy": 30}]).loads[0]
    assert (load.slots, load.busy) == (40, 30)


def test_rows_are_counted_by_state():
    assert counted([{"state": "ok"}, {"state": "ok"}, {"state": "critical"}]) == {"ok": 2, "critical": 1}


def test_a_sample_never_changes():
    with pytest.raises(AttributeError):
        whole().time = 5.0  # type: ignore[misc]
    assert msgspec.structs.replace(whole(), time=5.0).time == 5.0


def test_a_duration_has_its_sum_and_its_count():
    [duration] = [metric for metric in metrics_of(whole(), LabelLimit()) if metric.kind == "histogram"]
    spreads = {one.labels: one for one in duration.distributions}
    assert sum(count for _, count in spreads[("thumbs.make",)].histogram) == 4
    assert spreads[("thumbs.make",)].sum == pytest.approx(0.242)
    assert (OTHER,) not in spreads  # nothing of it was answered
