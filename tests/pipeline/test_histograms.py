"""Histograms as columns are those of `history/events/histogram.py`.

Promise: PIPE-8
"""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from scale0.history.events import histogram as plain
from scale0.pipeline import histograms


def near_boundary(us: int) -> bool:
    """So near the end of a bucket that the last bit of a logarithm decides."""
    place = math.log(us / 1e6) / math.log(plain.GAMMA)
    return abs(place - round(place)) < 1e-9


def test_the_bucket_of_every_duration_is_the_same(spark: SparkSession):
    chance = random.Random(5)
    durations = [0, 1, 2, 3, 999_999, 1_000_000, 1_000_001, histograms.MAX_US]
    durations += [round(10 ** chance.uniform(0, 13.8)) for _ in range(5000)]
    rows = spark.createDataFrame([(us,) for us in durations], "us bigint")
    from pyspark.sql import functions as f

    found = rows.select("us", histograms.bucket_of(f.col("us")).alias("bucket")).collect()
    wrong = [
        row for row in found if row.bucket != plain.bucket_of(row.us / 1e6) and not (row.us and near_boundary(row.us))
    ]
    assert wrong == []
    assert all(abs(row.bucket - plain.bucket_of(row.us / 1e6)) <= 1 for row in found)


def test_the_largest_duration_has_a_bucket_within_the_bounds():
    assert plain.bucket_of(histograms.MAX_US / 1e6) <= histograms.MAX_BUCKET


@pytest.mark.parametrize(
    ("seconds", "us"),
    [
        (None, None),
        (0.0, 0),
        (0.25, 250_000),
        (1e-7, 0),
        (-0.5, None),
        (math.nan, None),
        (math.inf, None),
        (1e300, None),
        (0.0000025, 2),
    ],
)
def test_only_durations_become_microseconds(spark: SparkSession, seconds: float | None, us: int | None):
    from pyspark.sql import functions as f

    rows = spark.createDataFrame([(seconds,)], "seconds double")
    assert rows.select(histograms.micros(f.col("seconds"))).collect()[0][0] == us


@pytest.mark.parametrize("merging", [histograms.merged, histograms.merged_many])
def test_merging_and_quantiles_are_the_same(spark: SparkSession, merging: Any):
    chance = random.Random(6)
    made = [
        (
            key,
            [
                (bucket, chance.randint(1, 9))
                for bucket in sorted(chance.sample(range(-698, 300), chance.randint(0, 40)))
            ],
        )
        for key in range(8)
        for _ in range(5)
    ]
    from pyspark.sql import functions as f

    rows = spark.createDataFrame(made, "key int, histogram array<struct<bucket:int,count:bigint>>").repartition(3)
    merged = merging(rows, ("key",), (), (), {"histogram": histograms.BUCKETS})
    counted = merged.select("*", histograms.total(f.col("histogram")).alias("total"))
    ranked = counted.select("*", histograms.quantiles(f.col("histogram"), f.col("total")).alias("ranks"))
    found = {row.key: row for row in ranked.collect()}
    assert len(found) == 8
    for key, row in found.items():
        wanted = plain.merge(histogram for mine, histogram in made if mine == key)
        assert [tuple(entry) for entry in row.histogram] == wanted
        for name, share in plain.QUANTILES:
            assert row.ranks[name] == pytest.approx(plain.quantile(wanted, share), rel=1e-12)


@pytest.mark.parametrize("merging", [histograms.merged, histograms.merged_many])
def test_counts_that_cannot_be_are_not_believed(spark: SparkSession, merging: Any):
    rows = spark.createDataFrame(
        [(1, [(2**31 - 1, 3), (-(2**31), 4), (5, 0), (6, -1), (7, 2**63 - 1), (8, None)])],
        "key int, histogram array<struct<bucket:int,count:bigint>>",
    )
    merged = merging(rows, ("key",), (), (), {"histogram": histograms.BUCKETS}).collect()
    assert [tuple(x) for x in merged[0].histogram] == [(plain.ZERO_BUCKET, 4), (histograms.MAX_BUCKET, 3)]
