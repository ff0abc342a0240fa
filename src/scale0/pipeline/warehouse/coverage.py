"""Which events are covered: ranges of seq by source and boot, merged.

Lives here: the arithmetic of ranges. Never here: a file. Invariants: ranges of one boot neither overlap nor touch; they
are sorted, so equal sets of events give equal coverage.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from scale0.pipeline.warehouse.records import Range


class Coverage:
    """The events that the warehouse has."""

    def __init__(self, covered: Mapping[str, tuple[Range, ...]]) -> None:
        self._ranges: dict[str, list[Range]] = {source: list(ranges) for source, ranges in covered.items()}

    def add(self, source: str, boot: int, first: int, last: int) -> None:
        """These are covered now; they may be already."""
        ranges = self._ranges.setdefault(source, [])
        start, end = self._touching(ranges, boot, first - 1, last + 1)
        if start < end:
            first = min(first, ranges[start][1])
            last = max(last, ranges[end - 1][2])
        ranges[start:end] = [(boot, first, last)]

    def within(self, source: str, boot: int, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of a range that are covered."""
        ranges = self._ranges.get(source, [])
        start, end = self._touching(ranges, boot, first, last)
        return [(max(first, low), min(last, high)) for _, low, high in ranges[start:end]]

    def holds(self, source: str, boot: int, first: int, last: int) -> bool:
        """True if all of a range is covered."""
        return self.within(source, boot, first, last) == [(first, last)]

    def frozen(self) -> dict[str, tuple[Range, ...]]:
        """As a manifest has it."""
        return {source: tuple(ranges) for source, ranges in sorted(self._ranges.items())}

    @staticmethod
    def _touching(ranges: list[Range], boot: int, first: int, last: int) -> tuple[int, int]:
        """The ranges [start, end) of this boot that have something of [first, last]."""
        start = bisect_left(ranges, (boot, first, first))
        if start > 0 and ranges[start - 1][0] == boot and ranges[start - 1][2] >= first:
            start -= 1
        end = start
        while end < len(ranges) and ranges[end][0] == boot and ranges[end][1] <= last:
            end += 1
        return start, end
