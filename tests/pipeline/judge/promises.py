"""What must be true of a story's subjects, written by hand.

Lives here: the list, and its one word. Never here: a story, or a computation.
"""

from __future__ import annotations

from typing import NamedTuple

UNTIL = 12600
Span = tuple[str, int, int]


class Promise(NamedTuple):
    """What must be true of a subject; seconds that no span names are absent."""

    name: str
    kind: str
    subject: str
    spans: tuple[Span, ...]


PROMISES: list[Promise] = []


def promise(name: str, kind: str, subject: str, *spans: Span) -> None:
    PROMISES.append(Promise(name.replace(" ", "_"), kind, subject, spans))
