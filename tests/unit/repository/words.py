"""What no committed text may contain, as pure functions from text to complaints.

Every forbidden word is put together from pieces, so that this file passes its own check.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


NEW_LINE: Final = "\n"


def _any_of(*pieces: tuple[str, ...]) -> str:
    return "|".join(re.escape("".join(each).lower()) for each in pieces)


HOSTS: Final = re.compile(
    _any_of(
        ("py", "pi.org"),
        ("python", "hosted.org"),
        ("registry.npm", "js.org"),
        ("registry.yarn", "pkg.com"),
        ("npm", "mirror.com"),
        ("anaconda", ".org"),
        ("maven.apache", ".org"),
        ("maven", ".org"),
        ("docker", ".io"),
        ("docker", ".com"),
        ("gh", "cr.io"),
        ("qu", "ay.io"),
        ("gc", "r.io"),
        ("crates", ".io"),
        ("rubygems", ".org"),
        ("proxy.go", "lang.org"),
        ("deb.debian", ".org"),
        ("archive.ubuntu", ".com"),
        ("js", "delivr.net"),
        ("unp", "kg.com"),
        ("cdn", "js.com"),
    ),
)
"""Where packages come from is for each machine's own configuration to say. In small letters, as what is searched."""

PATHS: Final = re.compile(
    r"(?<![\w.)}\]/~*$-])/(?:" + _any_of(("ro", "ot"), ("wo", "rk")) + r")(?![\w-])|(?<![\w.])/(?:home|Users)/\w"
)
"""Directories that only one machine has."""

WORDS: Final = re.compile(
    r"\b(?:"
    + _any_of(
        ("Cla", "ude"),
        ("Chat", "GPT"),
        ("G", "PT-4"),
        ("G", "PT-5"),
        ("Open", "AI"),
        ("Anth", "ropic"),
        ("Co", "pilot"),
        ("AI ", "assistant"),
        ("AI ", "agent"),
        ("AI", "-generated"),
        ("language ", "model"),
        ("LL", "M"),
    )
    + r")s?\b",
)
"""The project speaks of itself alone. In small letters, too."""


def complaints(text: str) -> Iterator[str]:
    """Everything in one file that it must not say; none of it goes over the end of a line."""
    small = text.lower()  # a search that minds no case takes ten times as long
    for pattern, within, reason in (
        (HOSTS, small, "names a package host"),
        (PATHS, text, "a path of one machine"),
        (WORDS, small, "not about us"),
    ):
        for match in pattern.finditer(within):
            yield f"{within.count(NEW_LINE, 0, match.start()) + 1}: {match[0]!r}: {reason}"
