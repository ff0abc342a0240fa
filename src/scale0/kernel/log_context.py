"""What a log line is about: the ids that somebody will search for.

Lives here: `about`, for `extra=` of every log call. Never here: a handler or a format; those are
`kernel/edge/log_setup.py`, which pure rooms cannot know. Invariant: the first id is the line's `ref`; without one the
line is about the process itself.
"""

from __future__ import annotations

from typing import Final

ABOUT: Final = "about"
"""The attribute of a log record that holds the ids."""


def about(**ids: object) -> dict[str, dict[str, str]]:
    """`log.info("up", extra=about(client=identity))`: words of the house, and the ids that they name."""
    return {ABOUT: {word: spelled(value) for word, value in ids.items() if value not in (None, "", b"")}}


def spelled(value: object) -> str:
    """An id as text: bytes as they read, if they do, else in hexadecimal."""
    if not isinstance(value, bytes):
        return str(value)
    return value.decode() if value.isascii() and value.decode().isprintable() else value.hex()
