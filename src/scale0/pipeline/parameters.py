"""What a run may be told besides its events: the parameters, which the manifest records.

Lives here: names, defaults and reasons. Never here: a path, a master, or anything that only says where or how fast.
Invariant: equal events, horizon, parameters and code version give equal tables.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one warehouse; other ones need a backfill of all of it."""

    flapping: Literal["icinga", "nagios", "sensu"] = "icinga"
    flapping_start: float | None = None
    """Percent; None: the formula's own (equus.flapping.DEFAULTS)."""
    flapping_end: float | None = None
    silence_seconds: int = 150
    """A source that says nothing for longer was not watching."""
    absent_days: int = 7
    """A service without a backend for longer is no subject any more."""
    anomaly_score: float = 3.5
    """Deviations above this are anomalies."""
    together_seconds: int = 60
    """Incidents that open within this of each other failed together."""
