"""Which events are covered: merged ranges of seq by source and boot."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from scale0.pipeline.warehouse.records import Range


class Coverage:
    """The events that the warehouse has, as sorted seq ranges that neither overlap nor touch within a boot."""

    def __init__(self, covered: Mapping[str, tuple[Range, ...]]) -> None:
        self._ranges: dict[str, list[Range]] = {source: list(ranges) for source, ranges in covered.items()}

    def add(self, source: str, boot: int, first: int, last: int) -> None:
        ranges = self._ranges.setdefault(source, [])
        start, end = self._touching(ranges, boot, first - 1, last + 1)
        if start < end:
            first = min(first, ranges[start][1])
            last = max(last, ranges[end - 1][2])
        ranges[start:end] = [(boot, first, last)]

    def within(self, source: str, boot: int, first: int, last: int) -> list[tuple[int, int]]:
        """The covered parts of a range."""
        ranges = self._ranges.get(source, [])
        start, end = self._touching(ranges, boot, first, last)
        return [(max(first, low), min(last, high)) for _, low, high in ranges[start:end]]

    def holds(self, source: str, boot: int, first: int, last: int) -> bool:
        """True if the whole range is covered."""
        return self.within(source, boot, first, last) == [(first, last)]

    def frozen(self) -> dict[str, tuple[Range, ...]]:
        return {source: tuple(ranges) for source, ranges in sorted(self._ranges.items())}

    @staticmethod
    def _touching(ranges: list[Range], boot: int, first: int, last: int) -> tuple[int, int]:
        """The ranges [start, end) of this boot that intersect [first, last]."""
        start = bisect_left(ranges, (boot, first, first))
        if start > 0 and ranges[start - 1][0] == boot and ranges[start - 1][2] >= first:
            start -= 1
        end = start
        while end < len(ranges) and ranges[end][0] == boot and ranges[end][1] <= last:
            end += 1
        return start, end
