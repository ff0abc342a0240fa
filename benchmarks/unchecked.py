"""A broker without permissions, rates and accounts of memory, to measure what they cost.

Its checks are replaced by functions that permit everything and count nothing; all else is the same program, with the
same arguments: `python -m benchmarks.unchecked broker …`.
"""

from __future__ import annotations

from typing import Any

from scale0.broker.core.permission_check import PermissionCheck
from scale0.broker.core.rate_limits import RateLimits
from scale0.broker.core.request_queues import RequestQueues
from scale0.cli.main import main
from scale0.transport.edge.zmtp_server import ZmtpServer


def permitted(*_: Any) -> bool:
    return True


def no_reason(*_: Any) -> str:
    return ""


def nothing(*_: Any) -> None:
    return


def remove_checks() -> None:
    for owner, name, function in (
        (PermissionCheck, "permits", permitted),
        (PermissionCheck, "why_not", no_reason),
        (RateLimits, "allows_request", permitted),
        (RateLimits, "allows_requests", permitted),
        (RateLimits, "allows_control", permitted),
        (RequestQueues, "why_not", no_reason),
        (ZmtpServer, "_charge", nothing),
        (ZmtpServer, "_set_inbox", nothing),
    ):
        assert hasattr(owner, name), f"{owner.__name__}.{name} is gone: this benchmark must follow"
        setattr(owner, name, function)


if __name__ == "__main__":
    remove_checks()
    main()
