"""Dictionary encoding of repeated texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql.window import Window

from scale0.pipeline.aggregations.tasks_events import SUBMITTED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TEXT: Final = "text"
NUMBER: Final = "number"


def names(events: DataFrame, carry: DataFrame) -> DataFrame:
    """(number, text): every client and node."""
    return _numbered(events.select(f.col("identity").alias(TEXT)), carry.select(f.col("client").alias(TEXT)))


def sayings(events: DataFrame, carry: DataFrame) -> DataFrame:
    """(number, text, group, priority): the `data` of submissions; few, because clients and ids are not in it."""
    told = events.filter(f.col("kind") == SUBMITTED).select(f.col("data").alias(TEXT))
    rows = _numbered(told, carry.select(saying().alias(TEXT)))
    return rows.select(NUMBER, TEXT, group_in(f.col(TEXT)).alias("group"), priority_in(f.col(TEXT)).alias("priority"))


def saying() -> Column:
    """The `data` of a submission, reconstructed from a row of the state."""
    return f.to_json(f.struct("group", "priority"))


def group_in(data: Column) -> Column:
    return f.get_json_object(data, "$.group")


def priority_in(data: Column) -> Column:
    """Null if it is not a number."""
    return f.get_json_object(data, "$.priority").try_cast("int")


def _numbered(*columns: DataFrame) -> DataFrame:
    first, second = columns
    texts = first.unionByName(second).filter(f.col(TEXT).isNotNull()).distinct()
    return texts.select(f.row_number().over(Window.orderBy(TEXT)).alias(NUMBER), TEXT)
