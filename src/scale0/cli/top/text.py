"""`scale0 top` as plain text: the head of the screen, and a frame for pipes.

Lives here: lines. Never here: keys, colours, or a terminal that is taken over.
"""

from __future__ import annotations

from typing import Final

from scale0.cli.common import output
from scale0.cli.network.listing import counted, state_of
from scale0.cli.top.frame import TopFrame
from scale0.cli.top.views import VIEWS, TopView, ViewState, cells, chosen, short_span

ONCE_ROWS: Final = 20
"""Of each view, where all are printed; one view by itself is printed whole."""
NO_RIGHT: Final = "rates need a right: give --data-dir FOLDER (the broker's), --token or --auth-id NAME"


def head_of(frame: TopFrame) -> str:
    """How the broker is, on one line."""
    status = frame.status
    state = "draining" if status.get("draining") else state_of(status)
    words = [f"{status['broker']} {state}"]
    if status.get("uptime") is not None:
        words.append(f"up {output.span(status['uptime'])}")
    words.append(counted(sum(status["clients"].values()), "client"))
    if frame.total is not None:
        total = frame.total
        words.append(f"{total.answered_per_second:,.1f}/s, {total.failed_per_second:,.1f} failed/s")
        words.append(f"p99 {short_span(total.p99_seconds)}")
    elif not frame.managed:
        words.append("no rates")
    tasks = status.get("tasks")
    if tasks:
        number = tasks.get("open")
        words.append("- tasks" if number is None else counted(number, "task"))
    return output.clean(" · ".join(words))


def wrong_of(frame: TopFrame) -> str:
    """What is wrong, on one line."""
    bad = [one for one in frame.findings if one.severity != "ok"]
    if not bad:
        return "nothing is wrong"
    counts = {name: sum(one.severity == name for one in bad) for name in ("critical", "warning")}
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return output.clean(f"{told}: {bad[0].what}: {bad[0].words}")


def show(frame: TopFrame, view: TopView | None, choice: ViewState | None, now: float) -> None:
    """One frame for a pipe: every view that has rows, or the one that was asked for."""
    output.say(head_of(frame))
    output.say(wrong_of(frame))
    for one in VIEWS if view is None else (view,):
        rows = chosen(one, frame, choice or ViewState(one.sort), now)
        if not rows and view is None:
            continue
        output.say()
        output.say(f"{one.name} ({len(rows)})")
        if not rows:
            output.say(one.empty)
            continue
        shown = rows if view is not None else rows[:ONCE_ROWS]
        heads = [column.head for column in one.columns]
        numbers = [column.head for column in one.columns if column.number]
        output.table(heads, [cells(one, row, now) for row in shown], numbers, cut=cut_column(one))
        if len(shown) < len(rows):
            output.say(f"… {len(rows) - len(shown)} more: --view {one.name}")
    if not frame.managed:
        output.note(NO_RIGHT)


def cut_column(view: TopView) -> str:
    """The column that gives way where there is no room."""
    last = view.columns[-1]
    return "" if last.number else last.head
