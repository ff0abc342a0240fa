"""The audit: a day of a source is the sum of its hours."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from scale0.pipeline.aggregation import Parameters
from scale0.pipeline.aggregations.presence_sources import SOURCE_HOURS
from scale0.pipeline.marts.audit import Audit
from scale0.pipeline.schemas import PART, fields
from scale0.pipeline.time_ranges import DAY_HOURS
from tests.pipeline.events import START_HOUR

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = START_HOUR // DAY_HOURS


def test_a_changed_hour_touches_its_day_and_wants_all_of_it():
    assert Audit().touched({"source_hours": {START_HOUR, START_HOUR + 23, START_HOUR + 24}}, 0) == {DAY, DAY + 1}
    assert Audit().wants({DAY})["source_hours"] == set(range(START_HOUR, START_HOUR + 24))


def test_a_day_is_the_sum_of_its_hours(spark: SparkSession):
    schema = fields((PART, "int"), *((field.name, field.dataType) for field in SOURCE_HOURS.schema))
    hours = [
        (START_HOUR, "east", 10, 1, 10, 0, 0, 1, 0),
        (START_HOUR + 23, "east", 5, 14, 18, 1, 0, 0, 2),
        (START_HOUR + 24, "east", 2, 17, 18, 0, 1, 0, 0),
        (START_HOUR + 1, "west", 0, None, None, 0, 0, 3, 0),
    ]
    rows = spark.createDataFrame(hours, schema)
    days = Audit().compute({"source_hours": rows}, {DAY, DAY + 1}, 0, Parameters())["audit"]
    assert sorted(tuple(row) for row in days.collect()) == [
        (DAY, "east", datetime.date(2026, 11, 2), 15, 1, 18, 1, 0, 1, 2),
        (DAY, "west", datetime.date(2026, 11, 2), 0, None, None, 0, 0, 3, 0),
        (DAY + 1, "east", datetime.date(2026, 11, 3), 2, 17, 18, 0, 1, 0, 0),
    ]
