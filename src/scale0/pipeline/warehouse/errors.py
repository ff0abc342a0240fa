"""Errors of the warehouse."""

from __future__ import annotations

from typing import Final

from scale0.kernel.errors import Scale0Error

RESTORE: Final = (
    "restore it from a backup; or move the whole warehouse away and run again: it is rebuilt from the segments, which"
    " are kept for `segments_keep_days` (90 by default)"
)
"""Advice when the warehouse lost a list of its files. A backfill does not help: it reads the same list."""


class WarehouseError(Scale0Error):
    pass


class WarehouseBusy(WarehouseError):
    """Another process holds the lock; `purpose` is what it wrote into the lock file, or empty."""

    def __init__(self, message: str, purpose: str = "") -> None:
        super().__init__(message)
        self.purpose = purpose


class WarehouseFenced(WarehouseError):
    """Another driver committed first: this run was discarded."""


class WarehouseDamaged(WarehouseError):
    """A manifest or a day manifest differs from what was written."""
