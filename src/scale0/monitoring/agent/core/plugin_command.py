"""The command of a plugin, and how a check's arguments get into it: as words, never through a shell.

Lives here: places `{name}` and `{name=default}` in the words of an agent's own file, and what may fill them. Never
here: starting anything. Invariants: there are as many words after filling as before; the program is never an argument's
business; a value that would be read as an option is refused unless it is a number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from scale0.kernel.codes import MALFORMED
from scale0.kernel.errors import ConfigError, Refusal

MAX_VALUE_CHARS: Final = 1_024
"""Of one argument."""
MAX_ARGS_BYTES: Final = 65_536
"""Of a check's arguments, as JSON."""
MAX_COMMAND_BYTES: Final = 60_000
"""Of all words together."""

MAX_NUMBER: Final = 10.0**300
"""Of one argument."""

_PLACE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]{0,63})(?:=([^{}]*))?\}", re.ASCII)
_NUMBER: Final = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?", re.ASCII)
_decode: Final = msgspec.json.Decoder().decode


class _Place:
    """Where an argument goes."""

    __slots__ = ("default", "name")

    def __init__(self, name: str, default: str | None) -> None:
        self.name = name
        self.default = default


class PluginCommand:
    """A command with its places."""

    def __init__(self, plugin: str, words: Sequence[str]) -> None:
        self._words = [_pieces(word) for word in words]
        self._plain = None if any(isinstance(part, _Place) for word in self._words for part in word) else list(words)
        self.names = frozenset(part.name for word in self._words for part in word if isinstance(part, _Place))
        if not words or not words[0]:
            raise ConfigError([f"plugins: {plugin}: command is empty"])
        if _PLACE.search(words[0]):
            raise ConfigError([f"plugins: {plugin}: the program itself cannot be an argument: {words[0]}"])

    def fill(self, args: bytes) -> list[str]:
        """The words to run; raises Refusal when the arguments do not fit."""
        given = read_args(args)
        strange = sorted(set(given) - self.names)
        if strange:
            known = ", ".join(sorted(self.names)) or "none"
            raise Refusal(MALFORMED, f"the plugin takes no argument {strange[0][:64]!r} (it takes: {known})")
        if self._plain is not None:
            return self._plain
        words = [_word(word, given) for word in self._words]
        if sum(map(len, words)) > MAX_COMMAND_BYTES // 4:  # a character is at most four bytes
            raise Refusal(MALFORMED, "the command is too long")
        return words


def read_args(args: bytes) -> dict[str, Any]:
    """A check's arguments: a JSON object, or nothing at all; raises Refusal."""
    if not args or args == b"{}":
        return {}
    if len(args) > MAX_ARGS_BYTES:
        raise Refusal(MALFORMED, f"the arguments have {len(args)} bytes, more than {MAX_ARGS_BYTES}")
    try:
        given = _decode(args)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(MALFORMED, f"the arguments are no JSON: {error}") from None
    if not isinstance(given, dict):
        raise Refusal(MALFORMED, "the arguments are no JSON object")
    return given


def _pieces(word: str) -> list[str | _Place]:
    """A word as text and places."""
    pieces: list[str | _Place] = []
    end = 0
    for place in _PLACE.finditer(word):
        if place.start() > end:
            pieces.append(word[end : place.start()])
        pieces.append(_Place(place.group(1), place.group(2)))
        end = place.end()
    if end < len(word) or not pieces:
        pieces.append(word[end:])
    return pieces


def _word(pieces: list[str | _Place], given: dict[str, Any]) -> str:
    """One word. What begins it decides whether it is an option, and that is not for an argument to say."""
    word = ""
    for part in pieces:
        text = _filled(part, given)
        is_ours = isinstance(part, str) or part.name not in given
        if not word and not is_ours and text.startswith("-") and not _NUMBER.fullmatch(text):
            raise Refusal(MALFORMED, f"an argument would be read as an option: {text[:64]!r}")
        word += text
    return word


def _filled(part: str | _Place, given: dict[str, Any]) -> str:
    if isinstance(part, str):
        return part
    if part.name not in given:
        if part.default is None:
            raise Refusal(MALFORMED, f"the argument {part.name} is missing")
        return part.default
    value = given[part.name]
    if isinstance(value, str):
        return _checked(value, part)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refusal(MALFORMED, f"the argument {part.name} is no text and no number")
    if not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise Refusal(MALFORMED, f"the argument {part.name} is too large")
    return str(value)


def _checked(value: str, place: _Place) -> str:
    if len(value) > MAX_VALUE_CHARS:
        raise Refusal(MALFORMED, f"the argument {place.name} is longer than {MAX_VALUE_CHARS} characters")
    if not value.isprintable():
        raise Refusal(MALFORMED, f"the argument {place.name} has characters that cannot be printed")
    return value
