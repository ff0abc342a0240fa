"""Lines of a log: which match, and how many.

Lives here: patterns, and counting over bytes. Never here: a file. Invariants: patterns are plain text or globs, never
regular expressions from outside, so that the time for a line grows with its length and no faster; a block without any
of the texts costs a search and no loop over its lines.
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING, Final

from scale0.monitoring.checks.arguments import checked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_GLOB_CHARS: Final = 65_536
"""Of a line, for a glob; what is beyond is not looked at."""


class MatchCount:
    """What one run has read."""

    __slots__ = ("last", "lines", "matches", "read_bytes")

    def __init__(self) -> None:
        self.lines = 0
        self.matches = 0
        self.read_bytes = 0
        self.last = b""


class Texts:
    """Lines that have one of `match` and none of `ignore`, letter by letter."""

    __slots__ = ("_fold", "_ignore", "_match")

    def __init__(self, match: Sequence[str], ignore: Sequence[str], fold: bool) -> None:
        self._fold = fold
        self._match = tuple(self._folded(_bytes(text)) for text in match)
        self._ignore = tuple(self._folded(_bytes(text)) for text in ignore)

    def _folded(self, data: bytes) -> bytes:
        return data.lower() if self._fold else data  # ASCII only: bytes know no other letters

    def count(self, data: bytes, tally: MatchCount) -> None:
        """Count whole lines."""
        folded = self._folded(data)
        if not any(text in folded for text in self._match):
            tally.lines += data.count(b"\n") + (not data.endswith(b"\n"))
            return
        for line, seen in zip(_lines(data), _lines(folded), strict=True):
            tally.lines += 1
            if any(text in seen for text in self._match) and not any(text in seen for text in self._ignore):
                tally.matches += 1
                tally.last = line


class Globs:
    """The same with globs over the whole line. A glob never looks back over what one of its `*` took."""

    __slots__ = ("_ignore", "_match")

    def __init__(self, match: Sequence[str], ignore: Sequence[str], fold: bool) -> None:
        self._match = [_compiled(glob, fold) for glob in match]
        self._ignore = [_compiled(glob, fold) for glob in ignore]

    def count(self, data: bytes, tally: MatchCount) -> None:
        """Count whole lines."""
        for line in _lines(data):
            tally.lines += 1
            text = line[:MAX_GLOB_CHARS].decode("utf-8", "replace")
            if any(match(text) for match in self._match) and not any(match(text) for match in self._ignore):
                tally.matches += 1
                tally.last = line


def _compiled(glob: str, fold: bool) -> Callable[[str], object]:
    return re.compile(fnmatch.translate(checked(glob)), re.IGNORECASE if fold else 0).match


def _lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
