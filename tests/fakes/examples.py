"""How many examples or seeds a property is tried with, in proportion to what a test without a number gets.

With the profile `fixed`, which `make test` uses, the number is the given one; `make check` tries fewer, a search more.
"""

from __future__ import annotations

from typing import Any, Final

from hypothesis import settings

USUAL: Final = 100
"""What hypothesis tries where no number is given."""
LEAST: Final = 3


def examples(count: int, **more: Any) -> settings:
    return settings(max_examples=_share_of(count), **more)


def seeds(count: int) -> range:
    """So many seeds, for a test that has dice of its own."""
    return range(_share_of(count))


def _share_of(count: int) -> int:
    wanted = settings.default
    assert wanted is not None
    return max(min(count, LEAST), count * wanted.max_examples // USUAL)
