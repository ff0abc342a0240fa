"""Events of requests: summed up where all went well, one by one where not.

Lives here: the classes. Never here: the summing. One event per request would cost more than the request.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from scale0.history.events.columns import EventRow, clip_int


class RequestSummed(msgspec.Struct, frozen=True):
    """Ten seconds of one service at one backend."""

    kind: ClassVar[str] = "request.summed"
    service: str
    backend: str
    answered: int
    longest_seconds: float
    bytes: int
    histogram: list[tuple[int, int]]
    """Of the seconds from accepted to answered: (bucket, count), as `history.events.histogram` makes them."""
    failed: dict[str, int] = {}
    """Failures by code that were too many to be recorded one by one."""

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
    """Empty when none had it."""
    code: int
    seconds: float
    """From accepted to failed."""
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
