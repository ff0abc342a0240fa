"""Numbers the events of one source, and determines which are lost.

Seqs continue over boots without a gap, except after a restored disk. A piece is of one boot, and completely written or
completely lost.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from simulator.history import truths
from simulator.history.truths import BootFacts, SourceFacts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulator.history.rows import Array
    from simulator.history.script import Boot, Script
    from simulator.history.truths import Truth

SEGMENT_EVENTS: Final = 250_000
"""The maximum of a real segment."""


class SourceNumbering:
    def __init__(self, source: int, script: Script) -> None:
        self.source = source
        self.name = script.plan.sources[source]
        self.boots = script.boots[source]
        self._role = "broker" if source < script.plan.brokers else "helen"
        self._facts: dict[int, BootFacts] = {}
        self._next_seq = 1

    def number(self, boot: int, time: Array) -> int:
        """The first seq of these events of a boot; the others follow."""
        known = self._facts.get(boot)
        if known is None:
            self._next_seq -= self._rewound(boot)
        first_seq = self._next_seq
        self._next_seq = end = first_seq + time.size
        is_lost = self.is_lost(boot, time)
        if known is None:
            known = BootFacts(
                self.boots[boot].start_us, int(time[0]), int(time[0]), first_seq, first_seq, first_seq - 1
            )
        self._facts[boot] = BootFacts(
            known.boot,
            known.first_us,
            known.last_us if is_lost else int(time[-1]),
            known.first_seq,
            end - 1,
            known.written_seq if is_lost else end - 1,
        )
        return first_seq

    def _rewound(self, boot: int) -> int:
        """How far a restored disk goes back: at most half of the previous boot."""
        before = self._facts.get(boot - 1)
        if before is None:
            return 0
        return min(self.boots[boot].back, (before.last_seq - before.first_seq + 1) // 2)

    def is_lost(self, boot: int, time: Array) -> bool:
        """True if no segment holds these events."""
        lost_from_us = self.boots[boot].lost_from_us
        return bool(lost_from_us) and int(time[0]) >= lost_from_us

    def facts(self) -> SourceFacts:
        return SourceFacts(self.name, self._role, [self._facts[boot] for boot in sorted(self._facts)])


def pieces(boot: Array, boots: tuple[Boot, ...], time: Array) -> Iterator[tuple[int, int]]:
    """The ranges of segments; the events are ordered by time and have the numbers of their boots."""
    lost_from_us = np.array([each.lost_from_us or np.iinfo(np.int64).max for each in boots])
    part = boot * 2 + (time >= lost_from_us[boot])
    edges = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), part.size]
    for begin, end in itertools.pairwise(edges):
        for first in range(begin, end, SEGMENT_EVENTS):
            yield first, min(end, first + SEGMENT_EVENTS)


_BREAKS: Final = frozenset(
    {truths.BROKER_KILLED, truths.BROKER_RESTARTED, truths.HELEN_RESTARTED, truths.LOST_SEGMENT, truths.REWIND}
)


def exact_truths(script: Script, sources: list[SourceFacts]) -> list[Truth]:
    """All truths; those of sources last from the last written event to the first of the next boot."""
    by_name = {source.source: (source, script.boots[n]) for n, source in enumerate(sources)}
    found = []
    for truth in script.truths:
        if truth.kind in _BREAKS:
            source, boots = by_name[truth.subject]
            number = next(n for n, boot in enumerate(boots) if boot.end_us == truth.from_us)
            truth = _exact(truth, source.boots[number], source.boots[number + 1])
        found.append(truth)
    return found


def _exact(truth: Truth, before: BootFacts, after: BootFacts) -> Truth:
    facts: dict[str, Any] = {"boot_before": before.boot, "boot_after": after.boot}
    if truth.kind == truths.LOST_SEGMENT:
        facts |= {"first_seq": before.written_seq + 1, "last_seq": before.last_seq}
        facts |= {"events": before.last_seq - before.written_seq, "crashed_us": truth.from_us}
    if truth.kind == truths.REWIND:
        facts |= {"first_seq": after.first_seq, "last_seq": before.last_seq}
        facts |= {"events": before.last_seq - after.first_seq + 1}
    return msgspec.structs.replace(truth, from_us=before.last_us, to_us=after.first_us, facts=truth.facts | facts)
