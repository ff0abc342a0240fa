"""Retention: days that are older than what is kept are dropped from the draft.

Lives here: the rule. Never here: a file; collection removes what is not named any more. Invariants: what was covered
stays covered, so an old segment that comes again is not new; months stay, they are small; a month of which a day is
gone is never computed again, because it would shrink to what is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scale0.pipeline.time_ranges import DAY_US, Period, days_of_month, to_time
from scale0.pipeline.warehouse.errors import WarehouseError

if TYPE_CHECKING:
    from collections.abc import Set

    from scale0.pipeline.warehouse.transaction import Transaction


LEAST_KEEP_DAYS: Final = 62
"""Two months of 31 days: this month and the one before are computed from their days; anomalies look back 56 of them."""


class TooFewDays(WarehouseError):
    """Tables that are still computed would be made of what is left."""


def enough(keep_days: int | None) -> int | None:
    """How many days are kept (None: all). TooFewDays if tables would suffer."""
    if keep_days is not None and keep_days < LEAST_KEEP_DAYS:
        raise TooFewDays(
            f"{keep_days} days are too few to keep: this month and the last one are computed from their days, and"
            f" anomalies look back eight weeks; keep {LEAST_KEEP_DAYS} days or more, or all by not saying how many"
        )
    return keep_days


def retention(draft: Transaction, keep_days: int) -> list[int]:
    """Drop the chapters of days more than `keep_days` before the base's horizon; says which."""
    enough(keep_days)
    return drop_before(draft, draft.base.horizon_us // DAY_US - keep_days)


def drop_before(draft: Transaction, floor: int) -> list[int]:
    """Drop the chapters of days before this one; says which."""
    if floor <= draft.floor_day:
        return []
    draft.floor_day = floor
    gone = [day for day in draft.days() if day < floor]
    for day in gone:
        draft.drop(day)
    # While a folder stands, its segments could be looked at again and be taken for new.
    standing = {folder for folders in draft.listings.values() for folder in folders}
    oldest = f"written={to_time(floor * DAY_US).date().isoformat()}"
    draft.forgotten.update(folder for folder in draft.base.seen if folder < oldest and folder not in standing)
    return gone


def whole_parts(draft: Transaction, period: Period, parts: Set[int]) -> Set[int]:
    """Those of these parts that can be computed: not the months of which retention has dropped a day."""
    if period != "month":
        return parts
    return frozenset(month for month in parts if days_of_month(month).start >= draft.floor_day)
