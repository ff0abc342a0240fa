"""The one order of a check's rows, and the windows over it.

Lives here: what every pass over the rows shares. Never here: a pass. Invariant: all windows have the same key and the
same order, so that one sort serves them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, WindowSpec

KEY: Final = ("agent", "check")
ORDER: Final = ("at_us", "source", "boot", "seq")
"""At one instant the source decides, and its own counting. Carried rows have an instant alone, before all others."""


def ordered() -> WindowSpec:
    """The rows of a check, in order."""
    return Window.partitionBy(*KEY).orderBy(*ORDER)


def up_to() -> WindowSpec:
    """All until a row, itself too."""
    return ordered().rowsBetween(Window.unboundedPreceding, Window.currentRow)


def before() -> WindowSpec:
    """All before a row."""
    return ordered().rowsBetween(Window.unboundedPreceding, -1)


def nth_known(way: Literal["lag", "lead"], column: str, nth: int) -> Column:
    """The n-th value before or after a row that is not null; only Spark's SQL can say it without a costly frame."""
    keys, order = (", ".join(f"`{name}`" for name in names) for names in (KEY, ORDER))
    return f.expr(f"{way}(`{column}`, {nth}) ignore nulls over (partition by {keys} order by {order})")
