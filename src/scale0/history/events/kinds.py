"""Every kind of event, by name.

Lives here: the registry. A new noun is a file beside this one with its classes and `EVENTS`, and a line below.
Invariant: one kind, one class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scale0.history.events import changes, checks, clients, requests, sources, tasks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scale0.history.events.columns import Event

NOUNS: Final = (sources, clients, requests, tasks, checks, changes)
"""The files that define events."""


def by_kind(classes: Iterable[type[Event]]) -> dict[str, type[Event]]:
    """The classes by their kind; two of one kind are our own mistake."""
    kinds: dict[str, type[Event]] = {}
    for each in classes:
        if each.kind in kinds:
            raise ValueError(f"two events of one kind: {each.kind}")
        kinds[each.kind] = each
    return kinds


KINDS: Final[dict[str, type[Event]]] = by_kind(
    (*sources.EVENTS, *clients.EVENTS, *requests.EVENTS, *tasks.EVENTS, *checks.EVENTS, *changes.EVENTS),
)
