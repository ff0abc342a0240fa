"""The order in which a database is told of a commit's writes about tasks.

Lives here: one rule for every store that writes many rows in one statement. Never here: a statement.

Put, then change, then end is the order in which things happen to a task, so each kind goes at one time. Only reopening
turns it back, only sweeping frees an id, and only a release lets go of a lease: these wait for what came before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from scale0.storage.task_rows import ChangeTask, EndTask, LeaseTask, PutTask, ReleaseTask, ReopenTask, SweepTasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scale0.storage.rows import Write


class WriteBatch(NamedTuple):
    """Writes that may be done kind by kind, and the one behind them that may not."""

    puts: list[Any]
    changes: list[Any]
    ends: list[Any]
    rest: list[Any]
    turn: Write | None


def stretches(writes: Sequence[Write]) -> Iterator[WriteBatch]:
    """All of a commit, in few stretches; the last one has no turn behind it."""
    puts: list[Any] = []
    changes: list[Any] = []
    ends: list[Any] = []
    rest: list[Any] = []
    for write in writes:
        kind = type(write)
        if kind is PutTask:
            puts.append(write)
        elif kind is EndTask:
            ends.append(write)
        elif kind is LeaseTask or kind is ChangeTask:
            changes.append(write)
        elif kind is ReopenTask or kind is SweepTasks or kind is ReleaseTask:
            yield WriteBatch(puts, changes, ends, rest, write)
            puts, changes, ends, rest = [], [], [], []
        else:
            rest.append(write)
    yield WriteBatch(puts, changes, ends, rest, None)
