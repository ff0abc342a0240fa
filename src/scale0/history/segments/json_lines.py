"""Events as lines of JSON: what `scale0 events tail --json` prints and the HTTP API tells.

Lives here: one event as one object. Never here: which events, or where they go. Invariant: an object stands on one
line, whatever its event says.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

Event = dict[str, Any]
"""All columns; times in microseconds."""

_MICRO: Final = 1_000_000


def as_line(event: Event) -> bytes:
    """An event as one JSON object: times as text, `data` as what it says."""
    return msgspec.json.encode({name: _as_json(name, value) for name, value in event.items()})


def as_time(time_us: int) -> str:
    """2026-05-01T22:00:00.123456Z"""
    seconds, rest = divmod(time_us, _MICRO)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:06d}Z"


def _as_json(name: str, value: Any) -> Any:
    if value is None:
        return None
    match name:
        case "time" | "at":
            return as_time(value)
        case "data":
            return _as_data(value)
        case _:
            return value


def _as_data(text: str) -> Any:
    """As it stands, on one line; what is no JSON, as text: a segment may come from anywhere."""
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return text
    return msgspec.Raw(text.replace("\n", " ").replace("\r", " ").encode())
