"""Checks of arguments before anything is sent.

Only what no broker accepts is rejected here: a message that cannot be encoded would break other calls in its BATCH.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from scale0.kernel.limits import Limits
from scale0.kernel.names import is_service_name

MAX_TIMEOUT: Final = Limits().max_request_timeout
COMMAND_ID_BYTES: Final = 64
"""More than the id of a command adds to its options."""
MAX_COMMAND_BYTES: Final = Limits().max_options_bytes - COMMAND_ID_BYTES
SHOWN_CHARS: Final = 64
"""Characters of a name in an error."""


def endpoints_of(given: str | Sequence[str], example: str) -> list[str]:
    """One or several endpoints as a list."""
    endpoints = [given] if isinstance(given, str) else list(given)
    if not endpoints or not all("://" in endpoint for endpoint in endpoints):
        raise ValueError(f"an endpoint has the form {example}, not {given!r}")
    return endpoints


def check_timeout(timeout: float) -> float:
    if not 0 < timeout <= MAX_TIMEOUT:
        raise ValueError(f"a timeout is more than 0 and at most {MAX_TIMEOUT:g} seconds, not {timeout}")
    return timeout


def check_request(service: Any, bodies: Sequence[Any]) -> None:
    if type(service) is not str:
        raise TypeError(f"a service name is a str, not {type(service).__name__}")
    if not service.isascii():
        service.encode()
    for body in bodies:
        if not isinstance(body, bytes | bytearray | memoryview):
            raise TypeError(f"a body is bytes, not {type(body).__name__}")
        if type(body) is memoryview and not body.c_contiguous:
            raise ValueError("a body is contiguous memory")


def check_service(service: Any) -> None:
    """Check the service name of a task: an invalid one would count as our error at the broker."""
    check_request(service, ())
    if not is_service_name(service, Limits().max_service_bytes):
        name = service[:SHOWN_CHARS]
        raise ValueError(f"a service name has 1 to {Limits().max_service_bytes} printable bytes, not {name!r}")


def check_command(options: dict[str, Any]) -> None:
    """Check the size of a management command, alone or in a BATCH."""
    size = max(len(msgspec.json.encode(options)), len(msgspec.msgpack.encode(options)))
    if size > MAX_COMMAND_BYTES:
        raise ValueError(f"a command has at most {MAX_COMMAND_BYTES} bytes, not {size}")
