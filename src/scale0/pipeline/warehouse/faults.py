"""What can go wrong with a warehouse, each said with what to do next.

Lives here: the errors. Never here: who finds them.
"""

from __future__ import annotations

from scale0.base.errors import Scale0Error


class WarehouseError(Scale0Error):
    """The warehouse cannot do this; what it says is for the operator."""


class Busy(WarehouseError):
    """Another process holds the lock; `purpose` is what it said that it does, or empty."""

    def __init__(self, message: str, purpose: str = "") -> None:
        super().__init__(message)
        self.purpose = purpose


class Fenced(WarehouseError):
    """Another driver committed first: nothing of this attempt is visible."""


class Broken(WarehouseError):
    """A manifest or a chapter is not as it was written."""
