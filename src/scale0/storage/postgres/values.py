"""Values as PostgreSQL takes them.

Lives here: what it cannot keep as it is, and arrays in its own notation. Never here: a statement. Invariant: two
different texts stay different.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scale0.storage.interface import StoreFailed
from scale0.storage.rows import MAX_INTEGER

if TYPE_CHECKING:
    from collections.abc import Iterable

_NUL: Final = "\0"
_ESCAPE: Final = "\x01"


def clean(text: str) -> str:
    """A text without NUL, which PostgreSQL refuses: a client's key may have one."""
    if _NUL in text or _ESCAPE in text:
        text = text.replace(_ESCAPE, f"{_ESCAPE}1").replace(_NUL, f"{_ESCAPE}0")
    return text


def restore(text: str | None) -> str | None:
    """A text as it was before `clean`."""
    if text is None or _ESCAPE not in text:
        return text
    return text.replace(f"{_ESCAPE}0", _NUL).replace(f"{_ESCAPE}1", _ESCAPE)


def integers(values: Iterable[int]) -> str:
    """An array of numbers. As text: a list would have another type for each size, and each its own statement."""
    numbers = list(values)
    for number in numbers:
        if not -MAX_INTEGER <= number <= MAX_INTEGER:
            raise StoreFailed(f"{number} does not fit a store's integer")
    return f"{{{','.join(map(str, numbers))}}}"


def truths(values: Iterable[bool]) -> str:
    """An array of truth values."""
    return f"{{{','.join('t' if value else 'f' for value in values)}}}"
