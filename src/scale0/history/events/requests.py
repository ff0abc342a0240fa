"""Events of requests: a summary of those that succeeded, and one event for each that failed."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from scale0.history.events.columns import EventRow, clip_int


class RequestSummed(msgspec.Struct, frozen=True):
    """Ten seconds of one service at one backend: one event per request would cost more than the request."""

    kind: ClassVar[str] = "request.summed"
    service: str
    backend: str
    answered: int
    longest_seconds: float
    bytes: int
    histogram: list[tuple[int, int]]
    """Of the seconds from acceptance to answer: (bucket, count), as in `history.events.histogram`."""
    failed: dict[str, int] = {}
    """By code: failures that were too many to record one by one."""

    def row(self) -> EventRow:
        return EventRow(
            kind=self.kind,
            identity=self.backend,
            service=self.service,
            code=clip_int(self.answered),
            seconds=self.longest_seconds,
            histogram=self.histogram,
            bytes=self.bytes,
            data={"failed": self.failed} if self.failed else None,
        )


class RequestFailed(msgspec.Struct, frozen=True):
    """One request that ended in an error."""

    kind: ClassVar[str] = "request.failed"
    service: str
    request_id: str
    backend: str
    """Empty if no backend had it."""
    code: int
    seconds: float
    """From acceptance to failure."""
    client: str
    hops: int = 0

    def row(self) -> EventRow:
        return EventRow(
            kind=self.kind,
            identity=self.backend or None,
            service=self.service,
            ref=self.request_id,
            code=clip_int(self.code),
            seconds=self.seconds,
            data={"client": self.client, "hops": self.hops},
        )


EVENTS: Final = (RequestSummed, RequestFailed)
