"""All kinds of events by name; a new noun is a module beside this one with `EVENTS`, and an entry below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scale0.history.events import changes, checks, clients, requests, sources, tasks

if TYPE_CHECKING:
    from collections.abc import Iterable

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


KINDS: Final[dict[str, type[Event]]] = by_kind(
    (*sources.EVENTS, *clients.EVENTS, *requests.EVENTS, *tasks.EVENTS, *checks.EVENTS, *changes.EVENTS),
)
