"""The horizon: up to where time has passed, for everything that a run computes.

Lives here: the rule. Never here: a clock; the driver's now is told. Invariant: no other time bounds a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scale0.pipeline.time_ranges import MINUTE_US

if TYPE_CHECKING:
    from scale0.pipeline.warehouse.transaction import Transaction

AHEAD_US: Final = 5 * MINUTE_US
"""How far a source's clock may be ahead of the driver's: what is later waits."""


def horizon(draft: Transaction, now_us: int, until_us: int | None = None) -> int:
    """The newest covered time, at most the driver's now + 5 min, or `until_us` if that comes first."""
    newest = min(draft.newest_us, now_us + AHEAD_US)
    return newest if until_us is None else min(newest, until_us)
