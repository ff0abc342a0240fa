"""The horizon: the time up to which a run computes tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scale0.pipeline.time_ranges import MINUTE_US

if TYPE_CHECKING:
    from scale0.pipeline.warehouse.transaction import Transaction

AHEAD_US: Final = 5 * MINUTE_US
"""How far a source's clock may be ahead of the driver's: later events wait."""


def horizon(draft: Transaction, now_us: int, until_us: int | None = None) -> int:
    """The time up to which a run computes: the newest covered time, at most now + 5 min, and at most `until_us`."""
    newest = min(draft.newest_us, now_us + AHEAD_US)
    return newest if until_us is None else min(newest, until_us)
