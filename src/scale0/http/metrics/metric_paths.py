"""Paths: a metric's name and labels as one dotted path, for receivers that know no labels.

Lives here: `prefix.broker.metric.label…`, sanitised. Never here: a value. Invariants: a path holds only what every
receiver takes (letters, digits, `_`, `-`, and dots between parts); two points of a batch never share one.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from scale0.http.metrics.catalog import PREFIX
from scale0.http.metrics.model import Distribution, Metric, Point

_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_-]+")
MAX_PART_CHARS: Final = 100
"""Of one part of a path: receivers make a file name of it."""
NONE: Final = "none"
"""An empty label."""

One = TypeVar("One", bound=Point | Distribution)


def part(text: str) -> str:
    """One part of a path: what is foreign becomes `_`."""
    return _FOREIGN.sub("_", text)[:MAX_PART_CHARS] or NONE


def prefix_of(prefix: str, broker: str) -> str:
    """What all paths of a broker begin with; dots in the configured prefix are meant so."""
    parts = [part(word) for word in prefix.split(".") if word]
    return ".".join([*parts, part(broker)])


def placed(start: str, metric: Metric, ones: Iterable[One]) -> Iterator[tuple[str, One]]:
    """Each point with its path. Where two labels look the same in a path, the second is told apart by its sum."""
    name = f"{start}.{metric.name.removeprefix(PREFIX)}"
    taken: set[str] = set()
    for one in sorted(ones, key=_labels):
        path = ".".join([name, *map(part, one.labels)])
        if path in taken:
            path = f"{path}_{_sum(one.labels):08x}"
        taken.add(path)
        yield path, one


def _labels(one: Point | Distribution) -> tuple[str, ...]:
    return one.labels


def _sum(labels: tuple[str, ...]) -> int:
    return zlib.crc32("\0".join(labels).encode())
