"""Which keys expire soon. Keys expire by the ConfirmedClock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from scale0.broker.core.keys import Key

DAY_SECONDS: Final = 86_400.0
WARN_SECONDS: Final = 14 * DAY_SECONDS
"""How long before its end a key is reported."""
MAX_REPORTED: Final = 20
"""Keys that one log line names."""


class DailyReport:
    """What to log about keys that expire soon: once a day."""

    def __init__(self) -> None:
        self._due = 0.0

    def text(self, keys: Iterable[Key], time: float, mono: float) -> str:
        """The line to log; blank if there is nothing to report, or it was reported less than a day ago."""
        if mono < self._due:
            return ""
        soon = expiring(keys, time)
        if not soon:
            return ""
        self._due = mono + DAY_SECONDS
        more = f" and {len(soon) - MAX_REPORTED} more" if len(soon) > MAX_REPORTED else ""
        return ", ".join(f"{key.user} {left_text(key, time)}" for key in soon[:MAX_REPORTED]) + more


def expiring(keys: Iterable[Key], time: float) -> list[Key]:
    """Keys that have expired, or do so within WARN_SECONDS; the first one first."""
    soon = (key for key in keys if key.expires and not key.is_token and key.expires - time < WARN_SECONDS)
    return sorted(soon, key=lambda key: (key.expires, key.user))


def left_text(key: Key, time: float) -> str:
    left = key.expires - time
    if left <= 0:
        return "has expired"
    return (
        f"expires in {left / DAY_SECONDS:.0f} days" if left >= 2 * DAY_SECONDS else f"expires in {left / 3_600:.0f} h"
    )


def extend_command(key: Key) -> str:
    return f"scale0 keys expire {key.role} {key.name} 90d"
