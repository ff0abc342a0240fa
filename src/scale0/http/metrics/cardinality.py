"""Folding: which services have a label of their own, so that the number of series stays bounded.

Lives here: `LabelLimit`. Never here: a metric. Invariant: a service keeps its place as long as it is there, and one
that was counted under `other` stays there: so neither counter ever goes back because another service came.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MAX_SERVICES: Final = 1_000
"""Services with a label of their own. Each has some thirty series, and a scrape of all of them two megabytes."""
OTHER: Final = "other"
"""What the rest is called; the broker's own name for services that nobody offers, the empty one, is there too."""


class LabelLimit:
    """Who came first."""

    __slots__ = ("_folded", "_kept", "_most")

    def __init__(self, most: int = MAX_SERVICES) -> None:
        self._most = most
        self._kept: set[str] = set()
        self._folded: set[str] = set()

    def see(self, services: Iterable[str]) -> None:
        """The services of a new sample, in the order in which they may have a place."""
        found = dict.fromkeys(services)
        self._kept &= found.keys()
        self._folded &= found.keys()
        for service in found:
            if service in self._kept or service in self._folded:
                continue
            (self._kept if service and len(self._kept) < self._most else self._folded).add(service)

    def label(self, service: str) -> str:
        """What a service is called in labels."""
        return service if service in self._kept else OTHER

    @property
    def folded(self) -> int:
        """How many have no label of their own."""
        return len(self._folded - {""})
