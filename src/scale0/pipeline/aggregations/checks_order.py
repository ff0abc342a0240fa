"""The order of a check's rows, and the windows over it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, WindowSpec

KEY: Final = ("agent", "check")
ORDER: Final = ("at_us", "source", "boot", "seq")
"""At one instant, source and seq decide. Rows of the previous state come before all others."""


def ordered() -> WindowSpec:
    return Window.partitionBy(*KEY).orderBy(*ORDER)


def up_to() -> WindowSpec:
    """All rows up to and including the current one."""
    return ordered().rowsBetween(Window.unboundedPreceding, Window.currentRow)


def before() -> WindowSpec:
    """All rows before the current one."""
    return ordered().rowsBetween(Window.unboundedPreceding, -1)


def nth_known(way: Literal["lag", "lead"], column: str, nth: int) -> Column:
    """The n-th non-null value before or after a row; only Spark's SQL expresses it without a costly frame."""
    keys, order = (", ".join(f"`{name}`" for name in names) for names in (KEY, ORDER))
    return f.expr(f"{way}(`{column}`, {nth}) ignore nulls over (partition by {keys} order by {order})")
