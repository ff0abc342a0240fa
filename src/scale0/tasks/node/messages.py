"""What a node reads and writes about its tasks: the bodies of TASKS, TASKSTATUS, TASKSDONE and so on (PROTOCOL 2.3).

Lives here: their entries, and bodies from entries and back. Never here: what is in hand, or what is said when (`node`).
Invariants: no body that comes in raises, and an entry that cannot be understood does not cost the others; a body that
goes out keeps to the limits, unless a single result is larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Final, TypeVar

import msgspec

MAX_BODY_BYTES: Final = 1024 * 1024
"""Results in one TASKSDONE; a larger one goes alone."""
MAX_BODY_TASKS: Final = 1_000
"""Tasks in one TASKSDONE or TASKSTATUS."""
RETURNED: Final = "returned"
"""In TASKSTATUS: it was recalled, had not begun, and never will."""
TaskKey = tuple[str, int]
"""A task's id and the attempt: two attempts of one task are two things in hand."""
Attempt = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
TaskId = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class AssignedEntry(msgspec.Struct, gc=False):
    """A task in TASKS."""

    id: TaskId
    method: str
    attempt: Attempt
    params: msgspec.Raw = msgspec.Raw(b"")
    timeout: float | None = None
    owner: str | None = None


class StartedEntry(msgspec.Struct, frozen=True, gc=False):
    """A task in TASKSTATUS that starts now, or is given back."""

    id: str
    attempt: int
    status: str = "running"


class ProgressEntry(msgspec.Struct, frozen=True, gc=False):
    """A task in TASKSTATUS that gets on."""

    id: str
    attempt: int
    status: str
    progress: float
    note: str


class FinishedEntry(msgspec.Struct, frozen=True, gc=False):
    """A result in TASKSDONE."""

    id: str
    attempt: int
    result: msgspec.Raw


class FailedEntry(msgspec.Struct, frozen=True, gc=False):
    """An error in TASKSDONE."""

    id: str
    attempt: int
    error: msgspec.Raw


to_json: Final = msgspec.json.Encoder().encode
decode_keys: Final = msgspec.json.Decoder(list[TaskKey]).decode
decode_codes: Final = msgspec.json.Decoder(list[tuple[str, int, int]]).decode
"""Of TASKSOK: a task, its attempt, and what became of the result."""
_hands: Final = msgspec.json.Decoder(list[AssignedEntry])
_hand: Final = msgspec.json.Decoder(AssignedEntry)
_elements: Final = msgspec.json.Decoder(list[msgspec.Raw])
Entry = TypeVar("Entry")


def read_tasks(body: bytes) -> list[AssignedEntry]:
    """The tasks in a body; one that cannot be understood does not cost the others."""
    try:
        return _hands.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError):
        pass
    found = []
    for element in decoded(_elements.decode, body):
        try:
            found.append(_hand.decode(element))
        except (msgspec.DecodeError, RecursionError, ValueError):
            continue
    return found


def decoded(decode: Callable[[bytes], list[Entry]], body: bytes) -> list[Entry]:
    """What a body holds; nothing if it cannot be understood: there is nobody to complain to."""
    try:
        return decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return []


def parts_of(entries: list[Entry], size_of: Callable[[Entry], int]) -> Iterator[list[Entry]]:
    """Entries in the order they have, in parts that keep to the limits of a body."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        more = size_of(entry)
        if part and (len(part) >= MAX_BODY_TASKS or size + more > MAX_BODY_BYTES):
            yield part
            part, size = [], 0
        part.append(entry)
        size += more
    if part:
        yield part
