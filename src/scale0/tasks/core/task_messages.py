"""TASKS messages to a backend (PROTOCOL 2.3): tasks as JSON, in bodies of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from scale0.tasks.core.task import QueuedTask

MAX_PUSH_BYTES: Final = 4 * 1024 * 1024
"""Params in one TASKS message, unless a single task is larger."""


def bodies_of(tasks: Iterable[QueuedTask], quoted: Callable[[str], bytes], owner: bytes) -> Iterator[bytes]:
    """Yields the bodies for these tasks, in order. `owner`: the JSON-quoted name of the recipient of results."""
    parts: list[bytes] = []
    size = 0
    for task in tasks:
        parts.append(
            b'{"id":"%b","method":%b,"params":%b,"attempt":%d,"timeout":%a,"owner":%b}'
            % (task.id.encode(), quoted(task.method), task.params, task.attempt, task.kept.timeout, owner)
        )
        size += len(task.params)
        if size > MAX_PUSH_BYTES:
            yield b"[%b]" % b",".join(parts)
            parts, size = [], 0
    if parts:
        yield b"[%b]" % b",".join(parts)
