"""Events of requests: a summary of those that succeeded, and one event for each that failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from scale0.history.events.columns import Event


class RequestSummed(Event, frozen=True):
    """Ten seconds of one service at one backend: one event per request would cost more than the request."""

    kind: ClassVar[str] = "request.summed"
    targets: ClassVar[Mapping[str, str]] = {"answered": "code", "longest_seconds": "seconds"}
    optional: ClassVar[tuple[str, ...]] = ("failed",)
    service: str
    backend: str
    answered: int
    longest_seconds: float
    bytes: int
    histogram: list[tuple[int, int]]
    """Of the seconds from acceptance to answer: (bucket, count), as in `history.events.histogram`."""
    failed: dict[str, int] = msgspec.field(default_factory=dict)
    """By code: failures that were too many to record one by one. Beyond 20 codes, the others are together code 0."""


class RequestFailed(Event, frozen=True):
    """One request that ended in an error."""

    kind: ClassVar[str] = "request.failed"
    targets: ClassVar[Mapping[str, str]] = {"client": "client"}
    optional: ClassVar[tuple[str, ...]] = ("backend",)
    service: str
    request_id: str
    backend: str
    """Empty if no backend had it."""
    code: int
    seconds: float
    """From acceptance to failure."""
    client: str
    hops: int = 0
