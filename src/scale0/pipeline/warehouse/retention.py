"""Retention drops old days from the manifest; garbage collection deletes files that are no longer listed.

Covered events stay covered, so an old segment that appears again is not new. Months stay: they are small. A month is
never computed again once one of its days was dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scale0.pipeline.time_ranges import DAY_US, Period, days_of_month, to_time
from scale0.pipeline.warehouse.errors import WarehouseError

if TYPE_CHECKING:
    from collections.abc import Set

    from scale0.pipeline.warehouse.transaction import Transaction


LEAST_KEEP_DAYS: Final = 62
"""Two months of 31 days: this month and the previous one are computed from their days; anomalies use the last 56
days.
"""


class TooFewDays(WarehouseError):
    pass


def enough(keep_days: int | None) -> int | None:
    """Return `keep_days` (None: keep all). TooFewDays if tables need more days."""
    if keep_days is not None and keep_days < LEAST_KEEP_DAYS:
        raise TooFewDays(
            f"cannot keep only {keep_days} days: this month and the previous one are computed from their days, and"
            f" anomalies use the last eight weeks; keep {LEAST_KEEP_DAYS} days or more, or omit the option to keep all"
        )
    return keep_days


def retention(draft: Transaction, keep_days: int) -> list[int]:
    """Drop days more than `keep_days` before the base's horizon. Returns the dropped days."""
    enough(keep_days)
    return drop_before(draft, draft.base.horizon_us // DAY_US - keep_days)


def drop_before(draft: Transaction, floor: int) -> list[int]:
    """Drop days before this one. Returns the dropped days."""
    if floor <= draft.floor_day:
        return []
    draft.floor_day = floor
    gone = [day for day in draft.days() if day < floor]
    for day in gone:
        draft.drop(day)
    # While a directory exists, its segments could be listed again and would look new.
    standing = {folder for folders in draft.listings.values() for folder in folders}
    oldest = f"written={to_time(floor * DAY_US).date().isoformat()}"
    draft.forgotten.update(folder for folder in draft.base.seen if folder < oldest and folder not in standing)
    return gone


def whole_parts(draft: Transaction, period: Period, parts: Set[int]) -> Set[int]:
    """The parts that can still be computed: not the months of which retention dropped a day."""
    if period != "month":
        return parts
    return frozenset(month for month in parts if days_of_month(month).start >= draft.floor_day)
