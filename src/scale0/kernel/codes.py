"""The error codes of PROTOCOL section 5 and their meanings."""

from __future__ import annotations

from typing import Final

OK: Final = 200
MALFORMED: Final = 400
WRONG_CREDENTIALS: Final = 401
NOT_ALLOWED: Final = 403
NO_SUCH_SERVICE: Final = 404
HEARTBEATS_STOPPED: Final = 408
IN_USE: Final = 409
TOO_BIG: Final = 413
CONFIG_TYPE_UNKNOWN: Final = 415
CLOCK_TOO_FAR_OFF: Final = 425
CONFIG_TOO_OLD: Final = 426
TOO_MANY: Final = 429
FAILED: Final = 500
"""A handler raised an exception: the worker failed, not the network."""
UNKNOWN_COMMAND: Final = 501
BACKEND_DIED: Final = 502
NOT_SERVING: Final = 503
NO_ANSWER: Final = 504
UNREACHABLE: Final = 599
"""Never on the wire: a client's code for a broker that it cannot reach."""

MEANINGS: Final[dict[int, str]] = {
    OK: "done",
    MALFORMED: "malformed",
    WRONG_CREDENTIALS: "wrong credentials",
    NOT_ALLOWED: "not allowed",
    NO_SUCH_SERVICE: "no such service",
    HEARTBEATS_STOPPED: "heartbeats stopped",
    IN_USE: "identity in use",
    TOO_BIG: "too big",
    CONFIG_TYPE_UNKNOWN: "config type unknown",
    CLOCK_TOO_FAR_OFF: "clock too far off",
    CONFIG_TOO_OLD: "configuration too old",
    TOO_MANY: "too many",
    FAILED: "the handler failed",
    UNKNOWN_COMMAND: "unknown command",
    BACKEND_DIED: "backend died",
    NOT_SERVING: "not serving now",
    NO_ANSWER: "no answer in time",
    UNREACHABLE: "the broker cannot be reached",
}
