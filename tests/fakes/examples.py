"""How many examples or seeds a property is tried with, in proportion to what a test without a number gets.

Lives here: the one way to say such a number, so that the floor tries fewer of them and a search more. Never here: how
many simulated worlds `make sim` runs.
Invariant: with the profile `fixed`, which `make test` uses, the number is the one that was said.
"""

from __future__ import annotations

from typing import Any, Final

from hypothesis import settings

USUAL: Final = 100
"""What hypothesis tries where no number is said."""
LEAST: Final = 3


def examples(count: int, **more: Any) -> settings:
    """Settings with so many examples."""
    return settings(max_examples=_share_of(count), **more)


def seeds(count: int) -> range:
    """So many seeds, for a test that has dice of its own."""
    return range(_share_of(count))


def _share_of(count: int) -> int:
    wanted = settings.default
    assert wanted is not None
    return max(min(count, LEAST), count * wanted.max_examples // USUAL)
