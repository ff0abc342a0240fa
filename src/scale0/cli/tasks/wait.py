"""Waiting for tasks, with something to look at: bars on a terminal, silence elsewhere.

Lives here: how a wait is shown, and what came of it. Never here: what is waited for, or an exit code. Invariant: bars
go to stderr and are gone at the end, so that stdout holds the answer alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from scale0.cli.common import output
from scale0.cli.tasks.connection import ANSWER_SECONDS

if TYPE_CHECKING:
    from rich.progress import Progress

    from scale0.client.results import TaskStatus
    from scale0.client.task import Task

QUICK_SECONDS: Final = 0.3
"""What ends within this needs no bar."""
LOOK_SECONDS: Final = 0.2
"""How often a bar asks how far a task is."""
MAX_BARS: Final = 8
"""With more tasks than this one bar counts them."""
LONG_SECONDS: Final = 86_400 * 366.0
"""A wait without a limit, as a number."""
NOTE_CHARS: Final = 40


def wait_for(tasks: Sequence[Task], timeout: float | None) -> bool:
    """Until all have ended, well or not; False if that takes longer than `timeout`."""
    until = time.monotonic() + (LONG_SECONDS if timeout is None else timeout)
    quick = min(until, time.monotonic() + QUICK_SECONDS) if sys.stderr.isatty() else until
    if all(task.wait(max(0.0, quick - time.monotonic())) for task in tasks):
        return True
    return sys.stderr.isatty() and _show(tasks, until)


def _show(tasks: Sequence[Task], until: float) -> bool:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True, highlight=False, no_color=not output.coloured())
    with Progress(*columns, console=console, transient=True) as shown:
        return _watch_each(tasks, until, shown) if len(tasks) <= MAX_BARS else _count(tasks, until, shown)


def _watch_each(tasks: Sequence[Task], until: float, shown: Progress) -> bool:
    bars = {task: shown.add_task(task.id, total=None, note="") for task in tasks}
    while bars and time.monotonic() < until:
        for task, bar in tuple(bars.items()):
            status = task.status()
            share, note = status.progress
            done = 1.0 if status.ended else share
            shown.update(bar, total=None if done is None else 1.0, completed=done or 0.0, note=_note(status, note))
            if status.ended:
                del bars[task]
        if bars:
            time.sleep(max(0.0, min(LOOK_SECONDS, until - time.monotonic())))
    return not bars


def _count(tasks: Sequence[Task], until: float, shown: Progress) -> bool:
    bar = shown.add_task(f"{len(tasks)} tasks", total=len(tasks), note="")
    under_way = list(tasks)
    while under_way and time.monotonic() < until:
        under_way = [task for task in under_way if not task.status().ended]
        ended = len(tasks) - len(under_way)
        shown.update(bar, completed=ended, note=f"{ended} have ended")
        if under_way:
            time.sleep(max(0.0, min(LOOK_SECONDS, until - time.monotonic())))
    return not under_way


def _note(status: TaskStatus, note: str) -> str:
    words = status.status if status.attempt < 2 else f"{status.status}, attempt {status.attempt}"
    return output.clean(f"{words}: {note}" if note else words).replace("\n", " ")[:NOTE_CHARS]


def outcome_of(task: Task) -> tuple[dict[str, Any], Exception | None]:
    """How an ended task ended, as an object and (if it did not go well) as an error."""
    from scale0.errors import TaskCancelled, TaskFailed

    try:
        value = task.result(timeout=ANSWER_SECONDS)
    except (TaskFailed, TaskCancelled) as error:
        state = "cancelled" if isinstance(error, TaskCancelled) else "failed"
        told = {"code": error.code, "message": error.message, "data": error.data}
        return {"task_id": task.id, "status": state, "error": told}, error
    return {"task_id": task.id, "status": "finished", "result": value}, None
