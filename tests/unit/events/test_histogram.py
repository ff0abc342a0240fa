"""Histograms: within 1 % of every value, mergeable in any order, ranks as in the sorted list."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0.history.events.histogram import MIN_SECONDS, ZERO_BUCKET, bucket_of, from_counts, merge, quantile, value_of

seconds = st.floats(min_value=MIN_SECONDS, max_value=1e9)
histograms = st.dictionaries(st.integers(-900, 900), st.integers(1, 10**9)).map(from_counts)


def gathered(values):
    counts: dict[int, int] = {}
    for value in values:
        bucket = bucket_of(value)
        counts[bucket] = counts.get(bucket, 0) + 1
    return from_counts(counts)


# Promise: JOUR-4
@given(seconds)
def test_a_bucket_is_within_one_percent_of_its_values(value):
    assert abs(value_of(bucket_of(value)) - value) <= 0.01 * value


@given(seconds, seconds)
def test_a_longer_duration_is_never_in_a_lower_bucket(one, other):
    low, high = sorted((one, other))
    assert bucket_of(low) <= bucket_of(high)


@given(st.integers(ZERO_BUCKET, 2000))
def test_a_bucket_holds_its_own_value(bucket):
    assert bucket_of(value_of(bucket)) == bucket


@pytest.mark.parametrize("value", [0.0, -0.0, -5.0, 1e-7, 9.99e-7])
def test_what_is_shorter_than_the_minimum_counts_as_none(value):
    assert bucket_of(value) == ZERO_BUCKET
    assert value_of(ZERO_BUCKET) == 0.0


def test_the_minimum_is_above_the_bucket_of_none():
    assert bucket_of(MIN_SECONDS) == ZERO_BUCKET + 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_duration_raises(value):
    with pytest.raises((ValueError, OverflowError)):
        bucket_of(value)


# Promise: JOUR-4
@given(st.lists(st.lists(seconds, max_size=30), max_size=5))
def test_merging_parts_is_gathering_the_whole(parts):
    whole = gathered(value for part in parts for value in part)
    assert merge(gathered(part) for part in parts) == whole
    assert merge(gathered(part) for part in reversed(parts)) == whole


@given(histograms)
def test_a_histogram_ascends_and_has_no_zero_counts(histogram):
    merged = merge([histogram, [(3, 0)]])
    assert merged == histogram
    assert [bucket for bucket, _ in merged] == sorted({bucket for bucket, _ in merged})


@given(st.lists(seconds, min_size=1, max_size=200), st.floats(0, 1))
def test_a_quantile_is_within_one_percent_of_the_nearest_rank(values, share):
    exact = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    found = quantile(gathered(values), share)
    assert found is not None
    assert abs(found - exact) <= 0.01 * exact


def test_nothing_has_no_quantile():
    assert quantile([], 0.5) is None


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_a_share_outside_zero_to_one_raises(share):
    with pytest.raises(ValueError, match="quantile"):
        quantile([(1, 1)], share)
