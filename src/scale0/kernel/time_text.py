"""Parses and formats durations and times of the command line and of queries. The caller passes the current time."""

from __future__ import annotations

import datetime
import re
from typing import Final

MICROSECONDS: Final = 1_000_000
UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"([0-9]{1,8})([smhdw])", re.ASCII)


def duration_seconds(text: str) -> int | None:
    """Returns the seconds of a number with a unit, such as 90s, 30m, 12h, 7d or 4w; None if the text is no duration."""
    found = _DURATION.fullmatch(text)
    return None if found is None else int(found[1]) * UNIT_SECONDS[found[2]]


def utc_text(seconds: float) -> str:
    """A time since the epoch as text, to the second: 2026-11-19T04:02:18Z."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def iso_seconds(text: str, zone: datetime.tzinfo | None = datetime.UTC) -> float | None:
    """Returns the seconds since the epoch of an ISO 8601 time; None if the text is no time.

    A time without a zone is in `zone`; None stands for the zone of this machine."""
    try:
        time = datetime.datetime.fromisoformat(text)
        if time.tzinfo is None:
            time = time.astimezone() if zone is None else time.replace(tzinfo=zone)
        return time.timestamp()
    except (ValueError, OverflowError):
        return None


def time_us(text: str, now_us: int) -> int | None:
    """Returns the microseconds since the epoch of an ISO 8601 time (UTC unless it names a zone), or of a duration
    ago."""
    ago = duration_seconds(text)
    if ago is not None:
        return now_us - ago * MICROSECONDS
    seconds = iso_seconds(text)
    return None if seconds is None else round(seconds * MICROSECONDS)
