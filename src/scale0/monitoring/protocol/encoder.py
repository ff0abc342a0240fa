"""Words of the line protocol become bytes.

Lives here: `encode`, by the grammar that the parser reads by, and `in_one_line` for text that is not ours. Never here:
whether a word may be said now. Invariant: what `encode` gives is read by the other end's parser as the same word; a
word that could not be is our own mistake, and a ValueError.
"""

from __future__ import annotations

from typing import Final

import msgspec

from scale0.monitoring.protocol.messages import MAX_INT, MAX_LINE_BYTES, Word
from scale0.monitoring.protocol.parser import FORMS, INT, NO_BLOB, STRING, CommandForm

MAX_ERROR_CHARS: Final = 500
"""Of a message that `in_one_line` makes: in UTF-8 it fits into a line whatever its characters."""

_FORM_OF: Final[dict[object, CommandForm]] = {form.word: form for form in FORMS}
_fields_of: Final = msgspec.structs.astuple


def encode(word: Word) -> bytes:
    """The bytes of a message, its blob and every end of line included. ValueError: it cannot be written so."""
    form = _FORM_OF.get(type(word))
    if form is None:
        raise ValueError(f"{type(word).__name__} is never sent")
    fields = _fields_of(word)
    line = form.command
    for kind, value in zip(form.parameters, fields, strict=False):
        line += b" " + (_number(value) if kind is INT else _text(value, spaces=kind is not STRING))
    if form.max_blob_bytes == NO_BLOB:
        return _line(line)
    body = fields[-1]
    if not isinstance(body, bytes):
        raise ValueError("a blob is bytes")
    if len(body) > form.max_blob_bytes:
        raise ValueError(f"a blob of {len(body)} bytes is longer than {form.max_blob_bytes}")
    return b"%b%b\n" % (_line(b"%b %d" % (line, len(body))), body)


def in_one_line(text: str) -> str:
    """Any text, fit for `error`: what cannot be printed becomes a question mark, and what is too long is cut."""
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in text[:MAX_ERROR_CHARS])


def _line(line: bytes) -> bytes:
    if line.endswith(b"\r"):
        raise ValueError("a return before the end of the line would be read as part of it")
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"a line of {len(line)} bytes is longer than {MAX_LINE_BYTES}")
    return line + b"\n"


def _number(value: object) -> bytes:
    if type(value) is not int or not 0 <= value <= MAX_INT:
        raise ValueError(f"{value!r} is no number from 0 to {MAX_INT}")
    return b"%d" % value


def _text(value: object, spaces: bool) -> bytes:
    if not isinstance(value, str) or "\n" in value:
        raise ValueError(f"{value!r} is no text of one line")
    if not spaces and (not value or " " in value):
        raise ValueError(f"{value!r} is empty or has a space")
    return value.encode()
