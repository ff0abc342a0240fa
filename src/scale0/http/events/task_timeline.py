"""A task's timeline: what happened to it, in words, from its own events.

Lives here: which events, and their order. Never here: the words (`pipeline.explain_sentences` has them, and needs
neither Spark nor a warehouse). Invariants: each event is told once; what was not looked at is said.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from scale0.history.events.journal import format_time_us
from scale0.history.segments.reader import Event, EventFilter, events_of, key_of
from scale0.http.events.event_index import EventIndex
from scale0.http.events.pages import BackwardReader
from scale0.pipeline.explain_sentences import words_of

MAX_ITEMS: Final = 1_000
"""The newest, of a task that was tried so often."""
BEGINNING: Final = "task.submitted"
NODES: Final = ("task.attempt_ended", "task.completed", "task.refused")
"""Kinds whose identity is the node's."""


class TimelineEntry(msgspec.Struct, frozen=True):
    """One thing that happened to a task."""

    time: str
    kind: str
    words: str
    node: str | None
    attempt: int | None
    state: str | None
    source: str


class TaskTimeline(msgspec.Struct, frozen=True):
    """All of them, the oldest first."""

    items: list[TimelineEntry]
    unseen: list[str]
    """What is not in it, and why."""


def story_of(library: EventIndex, task_id: str) -> TaskTimeline:
    """What journals and segments here hold of a task."""
    look = BackwardReader(library, EventFilter(ref=task_id))
    found: list[Event] = []
    began_us: int | None = None
    unseen: list[str] = []
    for part in look:
        events = events_of(part.table)
        found += events
        began_us = next((event["time"] for event in events if event["kind"] == BEGINNING), began_us)
        if part.reason and part.last_seq > 0:
            unseen.append(f"events {part.first_seq:,} to {part.last_seq:,} of {part.source}: {part.reason}")
        if (began_us is not None and look.bound_us < began_us) or len(found) > MAX_ITEMS:
            break
    found.sort(key=key_of)
    if len(found) > MAX_ITEMS:
        unseen.append(f"only its newest {MAX_ITEMS:,} events are told")
    elif began_us is None and not look.is_over:
        unseen.append(
            f"nothing before {format_time_us(look.bound_us)} was looked at: `scale0 explain {task_id}` looks further"
        )
    elif began_us is None and found:
        unseen.append("its beginning is too old to be kept here")
    return TaskTimeline([_moment(event) for event in found[-MAX_ITEMS:]], unseen if began_us is None else [])


def _moment(event: Event) -> TimelineEntry:
    node: Any = event["identity"] if event["kind"] in NODES else None
    words = words_of(event, "task")
    return TimelineEntry(
        format_time_us(event["at"]), event["kind"], words, node, event["attempt"], event["state"], event["source"]
    )
