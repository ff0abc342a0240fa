"""Errors that a call can raise, each with its code.

Lives here: one class per code that a caller may want to catch by itself. Never here: when it is raised.
"""

from __future__ import annotations

from typing import Final

from scale0.base import codes
from scale0.base.errors import Scale0Error


class CallError(Scale0Error):
    """A call that was not answered as hoped. `code` is one of PROTOCOL section 5, `message` says more."""

    def __init__(self, code: int, message: str, service: str = "") -> None:
        where = f"{service}: " if service else ""
        super().__init__(f"{where}{message} ({code} {codes.MEANINGS.get(code, 'error')})")
        self.code = code
        self.message = message
        self.service = service


class BadArguments(CallError):
    """400: the handler cannot take these arguments."""


class WrongCredentials(CallError):
    """401: the password or token is wrong."""


class NotAllowed(CallError):
    """403: not for this role."""


class NoSuchService(CallError):
    """404: nobody offered the service in time."""


class Conflict(CallError):
    """409: somebody else has that identity, or changed it first."""


class TooBig(CallError):
    """413: over a limit of size."""


class TooMany(CallError):
    """429: a queue is full."""


class ServiceFailed(CallError):
    """500: the handler raised."""


class BackendDied(CallError):
    """502: the worker died with it; it may or may not have been done."""


class NotServing(CallError):
    """503: the broker does not serve now."""


class NoAnswer(CallError):
    """504: no answer in time."""


class Unreachable(CallError):
    """No broker could be reached."""


BY_CODE: Final[dict[int, type[CallError]]] = {
    codes.MALFORMED: BadArguments,
    codes.WRONG_CREDENTIALS: WrongCredentials,
    codes.NOT_ALLOWED: NotAllowed,
    codes.NO_SUCH_SERVICE: NoSuchService,
    codes.IN_USE: Conflict,
    codes.TOO_BIG: TooBig,
    codes.TOO_MANY: TooMany,
    codes.FAILED: ServiceFailed,
    codes.BACKEND_DIED: BackendDied,
    codes.NOT_SERVING: NotServing,
    codes.NO_ANSWER: NoAnswer,
    codes.UNREACHABLE: Unreachable,
}


def error_of(code: int, message: str, service: str = "") -> CallError:
    """The error for a code."""
    return BY_CODE.get(code, CallError)(code, message, service)
