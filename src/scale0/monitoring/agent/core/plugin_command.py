"""The command of a plugin, and how the arguments of a check get into it: as words, never through a shell.

The words of a command in the agent's configuration may have placeholders `{name}` and `{name=default}`. Invariants:
filling them never changes the number of words; an argument never chooses the program; a value that the plugin would
read as an option is refused unless it is a number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from scale0.kernel.codes import MALFORMED
from scale0.kernel.errors import ConfigError, Refusal

MAX_VALUE_CHARS: Final = 1_024
MAX_ARGS_BYTES: Final = 65_536
"""Of a check's arguments, as JSON."""
MAX_COMMAND_BYTES: Final = 60_000
MAX_NUMBER: Final = 10.0**300

_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]{0,63})(?:=([^{}]*))?\}", re.ASCII)
_NUMBER: Final = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?", re.ASCII)
_decode: Final = msgspec.json.Decoder().decode


class _Placeholder:
    __slots__ = ("default", "name")

    def __init__(self, name: str, default: str | None) -> None:
        self.name = name
        self.default = default


class PluginCommand:
    def __init__(self, plugin: str, words: Sequence[str]) -> None:
        self._words = [_pieces(word) for word in words]
        self._plain = (
            None if any(isinstance(part, _Placeholder) for word in self._words for part in word) else list(words)
        )
        self.names = frozenset(part.name for word in self._words for part in word if isinstance(part, _Placeholder))
        if not words or not words[0]:
            raise ConfigError([f"plugins: {plugin}: command is empty"])
        if _PLACEHOLDER.search(words[0]):
            raise ConfigError([f"plugins: {plugin}: the program itself cannot be a placeholder: {words[0]}"])

    def fill(self, args: bytes) -> list[str]:
        """The words to run; raises Refusal if the arguments do not match the placeholders."""
        given = read_args(args)
        unknown = sorted(set(given) - self.names)
        if unknown:
            known = ", ".join(sorted(self.names)) or "none"
            raise Refusal(MALFORMED, f"unknown argument {unknown[0][:64]!r} (the plugin takes: {known})")
        if self._plain is not None:
            return self._plain
        words = [_fill_word(word, given) for word in self._words]
        if sum(map(len, words)) > MAX_COMMAND_BYTES // 4:  # a character is at most four bytes
            raise Refusal(MALFORMED, "the command is too long")
        return words


def read_args(args: bytes) -> dict[str, Any]:
    """A check's arguments: a JSON object, or empty; raises Refusal."""
    if not args or args == b"{}":
        return {}
    if len(args) > MAX_ARGS_BYTES:
        raise Refusal(MALFORMED, f"the arguments have {len(args)} bytes, more than {MAX_ARGS_BYTES}")
    try:
        given = _decode(args)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(MALFORMED, f"the arguments are not valid JSON: {error}") from None
    if not isinstance(given, dict):
        raise Refusal(MALFORMED, "the arguments are not a JSON object")
    return given


def _pieces(word: str) -> list[str | _Placeholder]:
    pieces: list[str | _Placeholder] = []
    end = 0
    for placeholder in _PLACEHOLDER.finditer(word):
        if placeholder.start() > end:
            pieces.append(word[end : placeholder.start()])
        pieces.append(_Placeholder(placeholder.group(1), placeholder.group(2)))
        end = placeholder.end()
    if end < len(word) or not pieces:
        pieces.append(word[end:])
    return pieces


def _fill_word(pieces: list[str | _Placeholder], given: dict[str, Any]) -> str:
    """Fill one word. Its beginning decides whether it is an option, which is not for an argument to decide."""
    word = ""
    for part in pieces:
        text = _fill_part(part, given)
        is_configured = isinstance(part, str) or part.name not in given
        if not word and not is_configured and text.startswith("-") and not _NUMBER.fullmatch(text):
            raise Refusal(MALFORMED, f"an argument would be read as an option: {text[:64]!r}")
        word += text
    return word


def _fill_part(part: str | _Placeholder, given: dict[str, Any]) -> str:
    if isinstance(part, str):
        return part
    if part.name not in given:
        if part.default is None:
            raise Refusal(MALFORMED, f"argument {part.name} is missing")
        return part.default
    value = given[part.name]
    if isinstance(value, str):
        return _checked(value, part)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refusal(MALFORMED, f"argument {part.name} is neither text nor a number")
    if not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise Refusal(MALFORMED, f"argument {part.name} is out of range")
    return str(value)


def _checked(value: str, placeholder: _Placeholder) -> str:
    if len(value) > MAX_VALUE_CHARS:
        raise Refusal(MALFORMED, f"argument {placeholder.name} is longer than {MAX_VALUE_CHARS} characters")
    if not value.isprintable():
        raise Refusal(MALFORMED, f"argument {placeholder.name} has characters that are not printable")
    return value
