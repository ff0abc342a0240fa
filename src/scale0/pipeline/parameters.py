"""The parameters of a run, which the manifest records."""

from __future__ import annotations

from typing import Literal

import msgspec


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What tables depend on besides events and code. Changed parameters require a backfill of the whole warehouse."""

    flapping: Literal["icinga", "nagios", "sensu"] = "icinga"
    flapping_start: float | None = None
    """Percent; None: the formula's own default."""
    flapping_end: float | None = None
    silence_seconds: int = 150
    """A source that records nothing for longer was not observing."""
    absent_days: int = 7
    """A service without a backend for longer is no longer a subject."""
    anomaly_score: float = 3.5
    """Deviations above this are anomalies."""
    together_seconds: int = 60
    """Incidents that open within this time of each other are correlated."""
