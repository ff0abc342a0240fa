"""Retention: days that are older than what is kept are dropped from the draft.

Lives here: the rule. Never here: a file; collection removes what is not named any more. Invariants: what was covered
stays covered, so an old segment that comes again is not new; months stay, they are small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scale0.pipeline.hours import DAY_US, to_time

if TYPE_CHECKING:
    from scale0.pipeline.warehouse.draft import Draft


def retention(draft: Draft, keep_days: int, horizon_us: int | None = None) -> list[int]:
    """Drop the chapters of days more than `keep_days` before the horizon (None: the base's); says which."""
    if keep_days < 1:
        raise ValueError(f"keep_days must be at least 1, not {keep_days}")
    floor = (draft.base.horizon_us if horizon_us is None else horizon_us) // DAY_US - keep_days
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
