"""Lists new segments by name, without reading them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from scale0.history.segments.names import Segment, day_of, parse
from scale0.history.segments.settings import redact_url
from scale0.pipeline.warehouse.records import Range
from scale0.pipeline.warehouse.segment_sources import SegmentSource, known_as

TRUTHS: Final = "truths.json"
"""Written by `python -m simulator.history` beside its segments."""


class ListedSegment(NamedTuple):
    """A segment that was not ingested yet."""

    place: str
    """Without credentials."""
    folder: str
    name: str
    segment: Segment

    @property
    def path(self) -> str:
        """For messages."""
        return f"{self.place}/{self.folder}/{self.name}"

    @property
    def range(self) -> Range:
        return self.segment.boot, self.segment.first_seq, self.segment.last_seq


class SegmentListing(NamedTuple):
    """The result of listing one segment source."""

    place: str
    """Its name in manifests."""
    new: list[ListedSegment]
    foreign: list[str]
    """Paths that are not segments."""
    stamps: dict[str, int]
    """Change stamps of all `written=` directories."""
    passed: frozenset[str]
    """Paths of directories that were skipped because nothing in them can be new."""


def list_segments(
    url: str,
    place: SegmentSource,
    settled: Mapping[str, int],
    seen_in: Callable[[str], set[tuple[str, Range]]],
    *,
    rescan: bool = False,
) -> SegmentListing:
    """List everything that was not ingested. `settled` holds the completely ingested directories with their stamps.

    A directory is skipped only if its stamp has not changed since everything in it was ingested; `rescan` opens all.
    `url` may contain credentials; the result does not.
    """
    base = redact_url(url).rstrip("/")
    stamps: dict[str, int] = {}
    passed: set[str] = set()
    new: list[ListedSegment] = []
    foreign: list[str] = []
    for folder, stamp in sorted(place.folders().items()):
        if day_of(folder) is None:
            foreign += [] if _is_private(folder) else [f"{base}/{folder}"]
            continue
        stamps[folder] = stamp
        if stamp and settled.get(folder) == stamp and not rescan:
            passed.add(f"{base}/{folder}")
            continue
        names = place.names(folder)
        seen = seen_in(folder) if names else set()
        for name in names:
            segment = parse(name)
            if segment is None:
                foreign += [] if _is_private(name) else [f"{base}/{folder}/{name}"]
            elif (segment.source, (segment.boot, segment.first_seq, segment.last_seq)) not in seen:
                new.append(ListedSegment(base, folder, name, segment))
    return SegmentListing(known_as(url), new, foreign, stamps, frozenset(passed))


def _is_private(name: str) -> bool:
    """True for unfinished files of the exporter, files of the file system, and the truths of synthetic histories."""
    return name.startswith((".", "_")) or name == TRUTHS
