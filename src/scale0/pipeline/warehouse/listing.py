"""Which segments are new: by name, without reading one, and without walking through history.

Lives here: the look at a place. Never here: the bytes of a segment. Invariants: a folder is passed over only while it
is as it was when all of it had been seen; a name that is not ours is said once, and nothing is done with it; what is
found names no key of a URL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from scale0.history.segments.names import Segment, day_of, parse
from scale0.history.segments.settings import redact_url
from scale0.pipeline.warehouse.records import Range
from scale0.pipeline.warehouse.segment_sources import SegmentSource, known_as

TRUTHS: Final = "truths.json"
"""What `python -m simulator.history` puts beside the segments that it made up."""


class ListedSegment(NamedTuple):
    """A segment that is not done with."""

    place: str
    """Without a key."""
    folder: str
    name: str
    segment: Segment

    @property
    def path(self) -> str:
        """As people are told of it."""
        return f"{self.place}/{self.folder}/{self.name}"

    @property
    def range(self) -> Range:
        """Its boot and seqs."""
        return self.segment.boot, self.segment.first_seq, self.segment.last_seq


class SegmentListing(NamedTuple):
    """What one look at a place saw."""

    place: str
    """As manifests know it."""
    new: list[ListedSegment]
    foreign: list[str]
    """Paths that are not segments."""
    stamps: dict[str, int]
    """Of every `written=` folder."""
    passed: frozenset[str]
    """Paths of those that were not opened, because nothing in them can be new."""


def list_segments(
    url: str,
    place: SegmentSource,
    settled: Mapping[str, int],
    seen_in: Callable[[str], set[tuple[str, Range]]],
    *,
    rescan: bool = False,
) -> SegmentListing:
    """Everything that is not done with. `settled` are the folders that were done with, and their stamps then.

    `rescan` opens all folders, whatever their stamps say. `url` may hold a key; what is found does not.
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
    """True for what a writer has not finished, what file systems keep for themselves, and what `synth` planted."""
    return name.startswith((".", "_")) or name == TRUTHS
