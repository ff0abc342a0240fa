"""What is refused before it is sent.

Lives here: arguments that no broker takes. Never here: a rule that a broker may see differently. Invariant: what passes
can be put on the wire; further down it would spoil other calls' messages too.
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
"""Of a name in an error."""


def check_timeout(timeout: float) -> float:
    """A timeout that a broker takes."""
    if not 0 < timeout <= MAX_TIMEOUT:
        raise ValueError(f"a timeout is more than 0 and at most {MAX_TIMEOUT:g} seconds, not {timeout}")
    return timeout


def check_request(service: Any, bodies: Sequence[Any]) -> None:
    """What cannot be put on the wire is refused here: further down it would spoil other calls' messages too."""
    if type(service) is not str:
        raise TypeError(f"a service is named by a str, not {type(service).__name__}")
    if not service.isascii():
        service.encode()
    for body in bodies:
        if not isinstance(body, bytes | bytearray | memoryview):
            raise TypeError(f"a body is bytes, not {type(body).__name__}")
        if type(body) is memoryview and not body.c_contiguous:
            raise ValueError("a body is one piece of memory")


def check_service(service: Any) -> None:
    """A task for what no broker takes as a service's name would count against us there."""
    check_request(service, ())
    if not is_service_name(service, Limits().max_service_bytes):
        name = service[:SHOWN_CHARS]
        raise ValueError(f"a service's name is 1 to {Limits().max_service_bytes} printable bytes, not {name!r}")


def check_command(said: dict[str, Any]) -> None:
    """The same for a management command: it may leave alone, or in a BATCH."""
    size = max(len(msgspec.json.encode(said)), len(msgspec.msgpack.encode(said)))
    if size > MAX_COMMAND_BYTES:
        raise ValueError(f"a command is at most {MAX_COMMAND_BYTES} bytes, not {size}")
