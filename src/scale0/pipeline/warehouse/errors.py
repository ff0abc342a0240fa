"""What can go wrong with a warehouse, each said with what to do next.

Lives here: the errors. Never here: who finds them.
"""

from __future__ import annotations

from typing import Final

from scale0.kernel.errors import Scale0Error

RESTORE: Final = (
    "restore it from a backup; or move the whole warehouse away and run again: it is made anew from the segments, which"
    " are kept for `segments_keep_days` (90, unless the broker's file says otherwise)"
)
"""What helps where the warehouse lost a list of its files. A backfill does not: it reads the same list."""


class WarehouseError(Scale0Error):
    """The warehouse cannot do this; what it says is for the operator."""


class WarehouseBusy(WarehouseError):
    """Another process holds the lock; `purpose` is what it said that it does, or empty."""

    def __init__(self, message: str, purpose: str = "") -> None:
        super().__init__(message)
        self.purpose = purpose


class WarehouseFenced(WarehouseError):
    """Another driver committed first: nothing of this attempt is visible."""


class WarehouseDamaged(WarehouseError):
    """A manifest or a chapter is not as it was written."""
