"""Exact numbers of truths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from simulator.history import truths

if TYPE_CHECKING:
    from simulator.history.script import Script
    from simulator.history.truths import BootFacts, SourceFacts, Truth

_BREAKS: Final = frozenset(
    {truths.BROKER_KILLED, truths.BROKER_RESTARTED, truths.HELEN_RESTARTED, truths.LOST_SEGMENT, truths.REWIND}
)


def settled(script: Script, sources: list[SourceFacts]) -> list[Truth]:
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
