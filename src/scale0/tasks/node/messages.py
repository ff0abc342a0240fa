"""The bodies of TASKS, TASKSTATUS, TASKSDONE and TASKSOK (PROTOCOL 2.3), as a backend reads and writes them.

Invariants: no received body raises, and an invalid entry does not affect the others; a sent body is within the limits,
unless a single result is larger.
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
"""In TASKSTATUS: the task was recalled, has not started, and never will."""
TaskKey = tuple[str, int]
"""A task's id and its attempt."""
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
    """A task in TASKSTATUS that starts, or is returned."""

    id: str
    attempt: int
    status: str = "running"


class ProgressEntry(msgspec.Struct, frozen=True, gc=False):
    """The progress of a task in TASKSTATUS."""

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
"""The entries of TASKSOK: task, attempt, and code."""
_assigned_list: Final = msgspec.json.Decoder(list[AssignedEntry])
_assigned: Final = msgspec.json.Decoder(AssignedEntry)
_elements: Final = msgspec.json.Decoder(list[msgspec.Raw])
Entry = TypeVar("Entry")


def read_tasks(body: bytes) -> list[AssignedEntry]:
    try:
        return _assigned_list.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError):
        pass
    found = []
    for element in decoded(_elements.decode, body):
        try:
            found.append(_assigned.decode(element))
        except (msgspec.DecodeError, RecursionError, ValueError):
            continue
    return found


def decoded(decode: Callable[[bytes], list[Entry]], body: bytes) -> list[Entry]:
    """The entries of a body; none if it is invalid."""
    try:
        return decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return []


def chunks_of(entries: list[Entry], size_of: Callable[[Entry], int]) -> Iterator[list[Entry]]:
    """Entries in order, in chunks within the limits of a body."""
    chunk: list[Entry] = []
    size = 0
    for entry in entries:
        entry_size = size_of(entry)
        if chunk and (len(chunk) >= MAX_BODY_TASKS or size + entry_size > MAX_BODY_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += entry_size
    if chunk:
        yield chunk
