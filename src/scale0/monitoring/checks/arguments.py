"""The args of a check: from JSON to a frozen value, or to a text that says what is wrong.

Lives here: reading args, and the types that several checks share. Never here: the args of one check. Invariant:
whatever bytes come, the answer is the value or `WrongArgs`; an unknown key is told with the nearest known one.
"""

from __future__ import annotations

import difflib
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

import msgspec

from scale0.monitoring.checks.thresholds import Range

MAX_PATTERNS: Final = 100
"""Globs or texts in one list."""
MAX_TEXT_CHARS: Final = 4_096
"""Of a path, a pattern, a text to look for."""
MAX_GLOB_CHARS: Final = 256
MAX_GLOB_SIGNS: Final = 16
"""Of `*`, `?` and `[` in one glob: a long one with many takes so long to prepare that the agent would stand still."""
MAX_HOST_CHARS: Final = 253
MAX_SHOWN_CHARS: Final = 60
"""Of a wrong key, in the answer."""

Limit = str | float | None
"""A threshold as it is written: a number, a range, or null for none."""
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARS)]
FullText = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT_CHARS)]
Texts = Annotated[tuple[FullText, ...], msgspec.Meta(max_length=MAX_PATTERNS)]
Host = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_HOST_CHARS)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
Family = Literal["any", "ipv4", "ipv6"]


class WrongArgs(Exception):
    """The args cannot be used; the text says why."""


class ArgumentReader:
    """Reads the args of one check."""

    __slots__ = ("_decode", "_fields", "_limits")

    def __init__(self, args_type: type[msgspec.Struct]) -> None:
        self._decode = msgspec.json.Decoder(args_type).decode
        self._fields = args_type.__struct_fields__
        self._limits = tuple(name for name in self._fields if name.endswith(("warn", "crit")))

    def read(self, body: bytes) -> Any:
        """The args; no bytes at all are no args."""
        try:
            args = self._decode(body or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise WrongArgs(self._reason(body, error)) from None
        for name in self._limits:  # told at once, and not only when there is something to judge
            given = getattr(args, name)
            for one in given if isinstance(given, tuple) else (given,):
                limit(name, one)
        return args

    def _reason(self, body: bytes, error: Exception) -> str:
        try:
            given = msgspec.json.decode(body or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return "the args are not JSON"
        if not isinstance(given, dict):
            return "the args are not a JSON object"
        for key in given:
            if key not in self._fields:
                near = difflib.get_close_matches(key[:MAX_SHOWN_CHARS], self._fields, 1, 0.0)
                return f"there is no arg {key[:MAX_SHOWN_CHARS]!r}; the nearest known one is {near[0]}"
        text, _, place = str(error).partition(" - at `$.")
        return f"arg {place.rstrip('`')}: {text}" if place else text


_parse: Final = lru_cache(maxsize=1_024)(Range.parse)


def limit(key: str, given: Limit) -> Range | None:
    """The range of one arg; None where none is wanted."""
    if given is None:
        return None
    try:
        return _parse(given)
    except ValueError as error:
        raise WrongArgs(f"arg {key}: {error}") from None


def limits(args: msgspec.Struct, prefix: str = "") -> tuple[Range | None, Range | None]:
    """The pair `warn` and `crit` of the args, or `<prefix>warn` and `<prefix>crit`."""
    warn, crit = f"{prefix}warn", f"{prefix}crit"
    return limit(warn, getattr(args, warn)), limit(crit, getattr(args, crit))


def is_literal(pattern: str) -> bool:
    """True for a name, False for a pattern."""
    return not any(sign in pattern for sign in "*?[")


def checked(glob: str) -> str:
    """A pattern that is short and plain enough; WrongArgs if it is not."""
    if len(glob) > MAX_GLOB_CHARS or sum(map(glob.count, "*?[")) > MAX_GLOB_SIGNS:
        raise WrongArgs(f"a pattern has at most {MAX_GLOB_CHARS} characters, and {MAX_GLOB_SIGNS} of * ? [")
    return glob


def fits(name: str, glob: str) -> bool:
    """True if a name is the one that is meant, or one of those."""
    return name == glob if is_literal(glob) else fnmatchcase(name, checked(glob))


def wanted(name: str, include: tuple[str, ...], exclude: tuple[str, ...]) -> bool:
    """True for what is asked for: by its own name in any case, else by a pattern (or none) and not excluded."""
    if name in include:
        return True
    if include and not any(fits(name, glob) for glob in include):
        return False
    return not any(fits(name, glob) for glob in exclude)
