"""The error of the API: a status, a message, and the next step. Codes of the Scale0 protocol become HTTP statuses."""

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
"""Codes whose HTTP status is a different number."""

NEXT: Final = {
    400: "see /api/v1/openapi.json for the parameters of this route",
    401: "log in again, or send another token",
    403: "ask a user with that role; GET /api/v1/session shows your own",
    404: "list the existing names, and use one of them",
    405: "see /api/v1/openapi.json for the methods of this route",
    408: "send the body faster, or in one piece",
    409: "read the current version, and repeat the change on it",
    413: "send a smaller body",
    415: "send JSON, with Content-Type: application/json",
    421: "add the name to `management.hosts` in the broker's file, or use a name that is listed there",
    429: "try again later",
    431: "send fewer or shorter headers",
    500: "please report this with the traceback in the server's log",
    501: "the broker is older than this server: install the same version of both",
    502: "see the log of the service",
    503: "check that the broker is running: `scale0 status`",
    504: "try again; `scale0 status` shows the state of the broker",
}
"""The default next step of each status."""


class ApiProblem(Scale0Error):
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

    def as_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "status": self.status,
            "code": self.code,
            "message": self.message,
            "next": self.next,
        }
        if self.reasons:
            body["reasons"] = self.reasons
        return body

    def headers(self) -> dict[str, str]:
        out: dict[str, str] = {}
        if self.retry_after is not None:
            out["Retry-After"] = str(max(1, round(self.retry_after + 0.5)))
        if self.status == 401:
            out["WWW-Authenticate"] = "Bearer"
        return out


def problem_of(error: CallError, next_: str = "") -> ApiProblem:
    status = STATUS_OF.get(error.code, error.code)
    if not 400 <= status < 600:
        status = 502
    detail = error.detail if isinstance(error.detail, dict) else {}
    reasons = [str(reason) for reason in detail.get("reasons", ())]
    retry = 1.0 if status in (429, 503) else None
    return ApiProblem(status, error.message, next_, code=error.code, reasons=reasons, retry_after=retry)
