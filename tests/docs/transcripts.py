"""Transcripts: the commands of a page with what they print, and whether a shell prints the same.

Everything must be the same letter by letter, but for: runs of spaces; times and dates; a number with a unit; a
fraction; ids, tokens, keys and numbers of four digits and more, which are *bound*: the page's stands for the shell's
from then on, in commands as well; a token may be cut off with `…`. Elsewhere `…` is any text, and on a line of its own
any lines. Ports (after a colon), addresses and versions must be the same; a port from 33000 is one that the system
chose, and is bound.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

ANYTHING: Final = "…"
INTERRUPT: Final = "^C"

_UNIT: Final = r"(?:ms|µs|s|min|h|d)"
_SIZE: Final = r"(?:[KMGT]i?B|bytes|B)"
_FIGURE: Final = r"[0-9][0-9,]*(?:\.[0-9]+)?"
_ID: Final = r"(?=[a-f]*[0-9])[0-9a-f]{8,}(?:\.[0-9a-f]{6,})?"
_SECRET: Final = r"(?=[\w.@-]*[0-9])(?=[\w.@-]*[A-Za-z])[\w-]{20,}(?:\.[\w-]{20,})*"
_DAY_AND_TIME: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9:]{5,8}(?:[.,][0-9]+)?Z?)?"
_TIME: Final = rf"{_DAY_AND_TIME}|(?<![:\w])[0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(?:[.,][0-9]+)?"
_GIVEN: Final = r"(?!(?:3[3-9]|[45][0-9]|6[0-5])[0-9]{3}\b)[0-9]+\b"

_KINDS: Final = (
    ("kept", rf"(?<![\w.])[0-9]+(?:\.[0-9]+){{2,}}(?:[:/]{_GIVEN})?|:(?=[0-9]{{2,5}}\b){_GIVEN}|={_GIVEN}", ""),
    ("time", _TIME, f"(?:{_TIME})"),
    ("cut", r"\b(?:s0join\.|s1\.|s0_)[\w-]{4,}…", r"(\S{20,})"),
    ("id", rf"\b{_ID}\b", rf"({_ID})"),
    ("secret", rf"\b{_SECRET}", rf"({_SECRET})"),
    ("seconds", rf"\b{_FIGURE} {_UNIT}\b", rf"{_FIGURE} {_UNIT}"),
    ("size", rf"\b{_FIGURE} {_SIZE}\b", rf"{_FIGURE} {_SIZE}"),
    ("percent", rf"\b{_FIGURE} ?%", rf"{_FIGURE} ?%"),
    ("fraction", r"\b[0-9]+\.[0-9]+\b", r"[0-9]+(?:\.[0-9]+)?"),
    ("number", r"\b[0-9]{4,}\b", r"([0-9]+)"),  # where processes have a namespace of their own, they have small numbers
    ("any", ANYTHING, ".*?"),
    ("space", r" +", r"\s+"),
)
_SPLIT: Final = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern, _ in _KINDS))
_TAKES: Final = {kind: taken for kind, _, taken in _KINDS}

READING: Final = frozenset(
    {
        *("services", "status", "checks", "agents", "incidents", "clients", "peers", "groups", "topology"),
        *("queues", "top", "events", "explain", "report", "audit", "error-clients"),
    }
)
READING_VERBS: Final = frozenset({"list", "show", "status", "history", "result"})


@dataclass(frozen=True)
class Typed:
    """One command and the lines that the page shows below it."""

    line: int
    command: str
    shown: tuple[str, ...]

    @property
    def looks(self) -> bool:
        """Does it only look? Then it may be typed again until it shows what the page shows."""
        try:
            words = shlex.split(self.command.splitlines()[0], comments=True)
        except ValueError:
            return False
        if not words or words[0] != "scale0":
            return bool(words) and words[0] in ("cat", "curl", "ls", "grep", "tail")
        return words[1] in READING or (len(words) > 2 and words[2] in READING_VERBS)


def typed(lines: Sequence[str], first: int) -> Iterator[Typed]:
    """The commands of a block whose first line has this number; what follows a backslash belongs to its command."""
    starts = [
        at for at, line in enumerate(lines) if line.startswith("$ ") and not (at and lines[at - 1].endswith("\\"))
    ]
    for start, end in itertools.pairwise([*starts, len(lines)]):
        shown = start
        while lines[shown].endswith("\\"):
            shown += 1
        command = "\n".join(lines[start : shown + 1]).removeprefix("$ ")
        yield Typed(first + start, command, tuple(_trimmed(lines[shown + 1 : end])))


def _trimmed(lines: Sequence[str]) -> list[str]:
    """Without spaces at the end of lines, and without blank lines before the first and after the last."""
    text = "\n".join(line.rstrip() for line in lines).strip("\n")
    return text.split("\n") if text else []


class Bound:
    """What the page's ids stand for in the shell."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}

    def fill(self, command: str) -> str:
        """A command of the page with the shell's own ids."""
        for ours, real in sorted(self._real.items(), key=lambda pair: -len(pair[0])):
            command = command.replace(ours, real)
        return command

    def difference(self, shown: Sequence[str], printed: Sequence[str]) -> str | None:
        """The first difference between page and shell, or None; then the ids are bound."""
        found = _compare(_trimmed(shown), _trimmed(printed), self._real)
        if isinstance(found, str):
            return found
        self._real = found
        return None


def _compare(shown: Sequence[str], printed: Sequence[str], real: dict[str, str]) -> dict[str, str] | str:
    """Line by line: what the ids stand for, or what differs. A line of `…` takes as few lines as it can."""
    if not shown:
        return f"the shell printed {printed[0]!r}, and the page shows no more" if printed else real
    line, *rest = shown
    if line.strip() == ANYTHING:
        return _after_any(rest, printed, real)
    if not printed:
        return f"the page shows {line!r}, and the shell printed no more"
    found = _fitted(line, printed[0], real)
    if found is None:
        return f"the page shows   {line!r}\nthe shell printed {printed[0]!r}"
    return _compare(rest, printed[1:], found)


def _after_any(shown: Sequence[str], printed: Sequence[str], real: dict[str, str]) -> dict[str, str] | str:
    """Somewhere in what was printed; if nowhere, then what differs after the first line is what helps."""
    whys: list[str] = []
    for at in range(len(printed) + 1):
        found = _compare(shown, printed[at:], real)
        if not isinstance(found, str):
            return found
        whys.append(found)
    return next((why for why in whys if not why.startswith(f"the page shows   {shown[0]!r}")), whys[-1])


def _fitted(line: str, printed: str, real: dict[str, str]) -> dict[str, str] | None:
    """One line: the ids with those that it has."""
    pattern, names = _pattern(line.strip())
    found = re.fullmatch(pattern, printed.strip())
    if not found:
        return None
    new = dict(zip(names, found.groups(), strict=True))
    return None if any(real.get(name, value) != value for name, value in new.items()) else {**real, **new}


def _pattern(line: str) -> tuple[str, list[str]]:
    """A line of the page as a pattern, and the ids in it, in order."""
    out: list[str] = []
    names: list[str] = []
    end = 0
    for found in _SPLIT.finditer(line):
        out.append(re.escape(line[end : found.start()]))
        kind = str(found.lastgroup)
        taken = _TAKES[kind]
        if not taken:
            out.append(re.escape(found[0]))
        elif taken.startswith("(") and not taken.startswith("(?"):
            if found[0] in names:
                out.append(rf"(?:\{names.index(found[0]) + 1})")
            else:
                names.append(found[0])
                out.append(taken)
        else:
            out.append(taken)
        end = found.end()
    return "".join([*out, re.escape(line[end:])]), names
