"""The timeline of a task: its events in order, each with a sentence of `pipeline.explain_sentences`.

If events are missing, or older ones were not read, the timeline says so in `unseen`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from scale0.history.events.journal import format_time_us
from scale0.history.segments.reader import Event, EventFilter, events_of, key_of
from scale0.http.events.event_index import EventIndex
from scale0.http.events.pages import BackwardReader
from scale0.pipeline.explain_sentences import sentence_of

MAX_ITEMS: Final = 1_000
"""The newest events of a task with many attempts."""
FIRST_KIND: Final = "task.submitted"
NODE_KINDS: Final = ("task.attempt_ended", "task.completed", "task.refused")
"""Kinds whose identity is the node's."""


class TimelineEntry(msgspec.Struct, frozen=True):
    """One event of a task."""

    time: str
    kind: str
    words: str
    node: str | None
    attempt: int | None
    state: str | None
    source: str


class TaskTimeline(msgspec.Struct, frozen=True):
    """The events of a task, the oldest first."""

    items: list[TimelineEntry]
    unseen: list[str]
    """What is missing, and why."""


def timeline_of(index: EventIndex, task_id: str) -> TaskTimeline:
    """The events of a task in the journals and segments of this machine."""
    reader = BackwardReader(index, EventFilter(ref=task_id))
    found: list[Event] = []
    began_us: int | None = None
    unseen: list[str] = []
    for part in reader:
        events = events_of(part.table)
        found += events
        began_us = next((event["time"] for event in events if event["kind"] == FIRST_KIND), began_us)
        if part.reason and part.last_seq > 0:
            unseen.append(f"events {part.first_seq:,} to {part.last_seq:,} of {part.source}: {part.reason}")
        if (began_us is not None and reader.bound_us < began_us) or len(found) > MAX_ITEMS:
            break
    found.sort(key=key_of)
    if len(found) > MAX_ITEMS:
        unseen.append(f"only the newest {MAX_ITEMS:,} events are shown")
    elif began_us is None and not reader.is_over:
        unseen.append(
            f"events before {format_time_us(reader.bound_us)} were not read: `scale0 explain {task_id}` reads all"
        )
    elif began_us is None and found:
        unseen.append("the first events of the task have expired")
    return TaskTimeline([_entry(event) for event in found[-MAX_ITEMS:]], unseen if began_us is None else [])


def _entry(event: Event) -> TimelineEntry:
    node: Any = event["identity"] if event["kind"] in NODE_KINDS else None
    words = sentence_of(event, "task")
    return TimelineEntry(
        format_time_us(event["at"]), event["kind"], words, node, event["attempt"], event["state"], event["source"]
    )
