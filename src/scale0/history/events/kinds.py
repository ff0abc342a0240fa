"""All kinds of events by name; a new noun is a module beside this one, and an entry of NOUNS."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from scale0.history.events import changes, checks, clients, requests, sources, tasks
from scale0.history.events.columns import Event

NOUNS: Final = (sources, clients, requests, tasks, checks, changes)
"""The modules that define events."""


def by_kind(classes: Iterable[type[Event]]) -> dict[str, type[Event]]:
    """The classes by their kind; two classes of one kind are a bug."""
    kinds: dict[str, type[Event]] = {}
    for each in classes:
        if each.kind in kinds:
            raise ValueError(f"two event classes of one kind: {each.kind}")
        kinds[each.kind] = each
    return kinds


KINDS: Final = by_kind(
    thing
    for noun in NOUNS
    for thing in vars(noun).values()
    if isinstance(thing, type) and issubclass(thing, Event) and hasattr(thing, "kind")
)
