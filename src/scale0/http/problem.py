"""What went wrong, as every answer of the API says it: a status, what happened, and what to do next.

Lives here: one error, and how the network's codes become it. Never here: a secret, or a line of our own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from scale0.errors import CallError
from scale0.kernel import codes
from scale0.kernel.errors import Scale0Error

STATUS_OF: Final = {
    codes.HEARTBEATS_STOPPED: 504,
    codes.CLOCK_TOO_FAR_OFF: 503,
    codes.CONFIG_TOO_OLD: 503,
    codes.CONFIG_TYPE_UNKNOWN: 400,
    codes.FAILED: 502,
    codes.UNREACHABLE: 503,
}
"""Codes whose HTTP status is another number."""

NEXT: Final = {
    400: "see /api/v1/openapi.json for what it takes",
    401: "log in again, or give another token",
    403: "ask somebody with that role; GET /api/v1/session says who you are",
    404: "list what is there, and take a name from that list",
    405: "see /api/v1/openapi.json for what it takes",
    408: "send it faster, or in one piece",
    409: "read it again, and repeat the change on what is there now",
    413: "send less at once",
    415: "send JSON, with Content-Type: application/json",
    421: "add the name to `management.hosts` in the broker's file, or use one that is there",
    429: "try again later",
    431: "send fewer or shorter headers",
    500: "this is our mistake: the server's log says more",
    501: "the broker is older than this server: give both the same version",
    502: "look at the service's own log",
    503: "see whether the broker runs: `scale0 status`",
    504: "try again; `scale0 status` shows whether the broker is well",
}
"""What to do, where nobody knows better."""


class ApiProblem(Scale0Error):
    """An answer that is not what was hoped for."""

    def __init__(
        self,
        status: int,
        message: str,
        next_: str = "",
        *,
        code: int | None = None,
        reasons: Sequence[str] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.next = next_ or NEXT.get(status, "see docs/http.md")
        self.code = status if code is None else code
        self.reasons = list(reasons)
        self.retry_after = retry_after

    def shown(self) -> dict[str, Any]:
        """The answer's body."""
        said: dict[str, Any] = {
            "status": self.status,
            "code": self.code,
            "message": self.message,
            "next": self.next,
        }
        if self.reasons:
            said["reasons"] = self.reasons
        return said

    def headers(self) -> dict[str, str]:
        """What belongs beside the body."""
        out: dict[str, str] = {}
        if self.retry_after is not None:
            out["Retry-After"] = str(max(1, round(self.retry_after + 0.5)))
        if self.status == 401:
            out["WWW-Authenticate"] = "Bearer"
        return out


def problem_of(error: CallError, next_: str = "") -> ApiProblem:
    """What a refusal of the network is in HTTP."""
    status = STATUS_OF.get(error.code, error.code)
    if not 400 <= status < 600:
        status = 502
    detail = error.detail if isinstance(error.detail, dict) else {}
    reasons = [str(reason) for reason in detail.get("reasons", ())]
    retry = 1.0 if status in (429, 503) else None
    return ApiProblem(status, error.message, next_, code=error.code, reasons=reasons, retry_after=retry)
