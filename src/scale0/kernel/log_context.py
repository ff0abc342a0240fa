"""The ids that a log record is about, for `extra=` of every log call. Invariant: the first id is the record's `ref`;
without one the record is about the process itself."""

from __future__ import annotations

from typing import Final

ABOUT: Final = "about"
"""The attribute of a log record that holds the ids."""


def about(**ids: object) -> dict[str, dict[str, str]]:
    """Returns the ids by their kind: `log.info("up", extra=about(client=identity))`."""
    return {ABOUT: {word: spelled(value) for word, value in ids.items() if value not in (None, "", b"")}}


def spelled(value: object) -> str:
    """Returns an id as text: printable ASCII bytes as they are, others in hexadecimal."""
    if not isinstance(value, bytes):
        return str(value)
    return value.decode() if value.isascii() and value.decode().isprintable() else value.hex()
