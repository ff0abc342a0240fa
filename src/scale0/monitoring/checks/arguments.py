"""The args of a check: from JSON to a frozen value, or to an error message.

Also the types of args that several checks share. Invariant: for any bytes the result is a value or `WrongArgs`; the
error for an unknown key names the nearest known one.
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
"""Of a path, a pattern or a text to search for."""
MAX_GLOB_CHARS: Final = 256
MAX_GLOB_SIGNS: Final = 16
"""Of `*`, `?` and `[` in one glob: compiling a long glob with many of them would block the agent."""
MAX_HOST_CHARS: Final = 253
MAX_SHOWN_CHARS: Final = 60
"""Of an unknown key in an error message."""

Limit = str | float | None
"""A threshold in JSON: a number, a range, or null for none."""
Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARS)]
FullText = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT_CHARS)]
Texts = Annotated[tuple[FullText, ...], msgspec.Meta(max_length=MAX_PATTERNS)]
Host = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_HOST_CHARS)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
Family = Literal["any", "ipv4", "ipv6"]


class WrongArgs(Exception):
    """The args are invalid; the text says why."""


class ArgumentReader:
    def __init__(self, args_type: type[msgspec.Struct]) -> None:
        self._decode = msgspec.json.Decoder(args_type).decode
        self._fields = args_type.__struct_fields__
        self._limits = tuple(name for name in self._fields if name.endswith(("warn", "crit")))

    def read(self, body: bytes) -> Any:
        """The args; empty bytes mean no args."""
        try:
            args = self._decode(body or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise WrongArgs(self._reason(body, error)) from None
        for name in self._limits:  # so that a wrong threshold is an error even if there is nothing to compare
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
    """The range of one arg; None if it has none."""
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
    return not any(sign in pattern for sign in "*?[")


def checked_glob(glob: str) -> str:
    """A glob that is short and simple enough; else raises WrongArgs."""
    if len(glob) > MAX_GLOB_CHARS or sum(map(glob.count, "*?[")) > MAX_GLOB_SIGNS:
        raise WrongArgs(f"a pattern has at most {MAX_GLOB_CHARS} characters, and {MAX_GLOB_SIGNS} of * ? [")
    return glob


def matches(name: str, glob: str) -> bool:
    return name == glob if is_literal(glob) else fnmatchcase(name, checked_glob(glob))


def is_selected(name: str, include: tuple[str, ...], exclude: tuple[str, ...]) -> bool:
    """True if `include` has the name itself, or if it matches `include` (or that is empty) and not `exclude`."""
    if name in include:
        return True
    if include and not any(matches(name, glob) for glob in include):
        return False
    return not any(matches(name, glob) for glob in exclude)
