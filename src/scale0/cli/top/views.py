"""The views of `scale0 top`: which rows, which columns, how they are sorted, filtered and opened; pure.

Lives here: a table of views, and text for cells. Never here: a terminal, or asking. Invariants: every view fits 80
columns; what came from the network is clean text; a column sorts by its value and not by its text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from scale0.cli.common import output
from scale0.cli.top.frame import Row, TopFrame
from scale0.client.admin.health import RANKS

WORST: Final = {"critical": 0, "unknown": 1, "warning": 2, "ok": 3}
COLOURS: Final = {
    "critical": "red",
    "lost": "red",
    "doubled": "red",
    "unknown": "magenta",
    "warning": "yellow",
    "away": "yellow",
    "draining": "yellow",
    "disabled": "yellow",
    "ok": "green",
    "active": "green",
    "connected": "green",
}
MILLI: Final = 0.001
MIN_TEXT: Final = 10
"""No text is cut shorter to make room."""


class TopColumn(NamedTuple):
    """One column: its head, its text, and what it sorts by."""

    head: str
    text: Callable[[Row, float], str]
    order: Callable[[Row], Any]
    number: bool = False
    width: int = 0
    """At most so many characters; 0: as many as there are."""


class TopView(NamedTuple):
    """One table of the screen."""

    name: str
    rows: Callable[[TopFrame], Sequence[Row]]
    columns: tuple[TopColumn, ...]
    sort: int
    """The column that it is sorted by at first."""
    key: Callable[[Row], str]
    empty: str
    hints: Callable[[Row], tuple[str, ...]]
    """What to type about a row."""


# Cells.


def plain(key: str, width: int = 0) -> TopColumn:
    """A text as it is."""
    return TopColumn(
        key.upper(),
        lambda row, _now: output.clean(str(row.get(key) or "-")),
        lambda row: str(row.get(key)),
        False,
        width,
    )


def count(key: str, head: str) -> TopColumn:
    """A whole number; the most first."""
    return TopColumn(head, lambda row, _now: dash(row.get(key), "{:.0f}"), lambda row: -(row.get(key) or 0), True)


def rate(key: str, head: str) -> TopColumn:
    """So many in a second; the most first."""
    return TopColumn(
        head, lambda row, _now: dash(rated(row, key), "{:,.1f}"), lambda row: -(rated(row, key) or 0.0), True
    )


def latency(key: str, head: str) -> TopColumn:
    """How long requests took; the longest first."""
    return TopColumn(head, lambda row, _now: short_span(rated(row, key)), lambda row: -(rated(row, key) or 0.0), True)


def rated(row: Row, key: str) -> float | None:
    """One of a row's rates, if they are known."""
    found: float | None = (row.get("rates") or {}).get(key)
    return found


def took(key: str, head: str) -> TopColumn:
    """A short time; the longest first."""
    return TopColumn(head, lambda row, _now: short_span(row.get(key)), lambda row: -(row.get(key) or 0.0), True)


def past(key: str, head: str) -> TopColumn:
    """How long ago; the latest first."""

    def text(row: Row, now: float) -> str:
        moment = row.get(key)
        return "-" if moment is None else output.span(max(0.0, now - moment))

    return TopColumn(head, text, lambda row: -(row.get(key) or 0.0), True)


def state(key: str, marks: Callable[[Row], str] = lambda _row: "") -> TopColumn:
    """A state, the worst first, with marks behind it."""
    return TopColumn(
        key.upper(),
        lambda row, _now: output.clean(f"{row.get(key)}{marks(row)}"),
        lambda row: (WORST.get(str(row.get(key)), 1), str(row.get(key))),
    )


def dash(value: Any, form: str) -> str:
    """A number, or a dash for what nobody knows."""
    return "-" if value is None else form.format(value)


def short_span(seconds: float | None) -> str:
    """Milliseconds below a second."""
    if seconds is None:
        return "-"
    if seconds < 1.0:
        return f"{seconds / MILLI:.1f} ms" if seconds < 0.1 else f"{seconds / MILLI:.0f} ms"
    return output.span(seconds)


def line(key: str, width: int = 0) -> TopColumn:
    """The first line of a message."""

    def text(row: Row, _now: float) -> str:
        lines = str(row.get(key) or "").strip().splitlines()
        return output.clean(lines[0]) if lines else "-"

    return TopColumn(key.upper(), text, lambda row: str(row.get(key)), False, width)


def busy(row: Row, _now: float) -> str:
    """Busy of slots."""
    return f"{row['busy']}/{row['slots']}"


def first_in_line(row: Row, _now: float) -> str:
    """Who is handed work next."""
    line_ = row.get("lru") or ()
    return output.clean(f"{line_[0]['identity']} ({line_[0]['busy']}/{line_[0]['slots']})") if line_ else "-"


def check_marks(row: Row) -> str:
    """What there is to know of a check's state."""
    marks = [word for word, true in (("stale", row.get("stale")), ("flapping", row.get("flapping"))) if true]
    if row["state"] != "ok" and not row["hard"]:
        marks.append("soft")
    if row.get("suppressed"):
        marks.append("quiet")
    return f" ({', '.join(marks)})" if marks else ""


def wrong_rows(frame: TopFrame) -> list[Row]:
    """What is wrong, as rows."""
    return [
        {name: getattr(one, name) for name in ("severity", "what", "words", "page", "next")} for one in frame.findings
    ]


# The table of views.

WRONG: Final = TopView(
    "wrong",
    wrong_rows,
    (
        TopColumn("SEVERITY", lambda row, _now: row["severity"], lambda row: RANKS[row["severity"]]),
        plain("what", 26),
        plain("words"),
    ),
    0,
    lambda row: f"{row['what']} {row['words']}",
    "Nothing is wrong.",
    lambda row: (row["next"],),
)
SERVICES: Final = TopView(
    "services",
    lambda frame: frame.services,
    (
        plain("service", 24),
        rate("answered_per_second", "RATE/S"),
        rate("failed_per_second", "FAIL/S"),
        latency("p50_seconds", "P50"),
        latency("p99_seconds", "P99"),
        TopColumn("BUSY", busy, lambda row: -row["busy"], True),
        count("waiting", "WAIT"),
        count("backends", "BACK"),
    ),
    1,
    lambda row: row["service"],
    "Nobody offers a service yet: scale0 worker FILE.py:worker",
    lambda row: (f"scale0 call {row['service']}", f"scale0 queues --match {row['service']}"),
)
QUEUES: Final = TopView(
    "queues",
    lambda frame: frame.queues,
    (
        plain("service", 24),
        count("waiting", "WAIT"),
        took("oldest_seconds", "OLDEST"),
        count("tasks_queued", "TASKS"),
        count("backends", "BACK"),
        TopColumn("NEXT", first_in_line, lambda row: first_in_line(row, 0.0), False, 24),
    ),
    1,
    lambda row: row["service"],
    "Nothing can wait: nobody offers a service yet.",
    lambda row: (f"scale0 queues --match {row['service']}", f"scale0 task list --method {row['service']}"),
)
AGENTS: Final = TopView(
    "agents",
    lambda frame: frame.agents,
    (
        plain("agent", 24),
        state("state"),
        past("since", "SINCE"),
        plain("software", 12),
        plain("address", 22),
    ),
    1,
    lambda row: row["agent"],
    "No agent is known yet: scale0 helen token, then scale0 agent enrol",
    lambda row: (f"scale0 checks --agent {row['agent']}", f"scale0 explain {row['agent']}"),
)
CHECKS: Final = TopView(
    "checks",
    lambda frame: frame.checks,
    (
        plain("agent", 16),
        plain("check", 16),
        state("state", check_marks),
        past("at", "LAST"),
        line("message", 60),
    ),
    2,
    lambda row: f"{row['agent']}/{row['check']}",
    "No check has answered yet: scale0 check add disks --check disk --interval 60",
    lambda row: (
        f"scale0 check run {row['agent']} {row['check']}",
        f"scale0 silence add --agent {row['agent']} --check {row['check']} --for 2h",
        f"scale0 explain {row['agent']}/{row['check']}",
    ),
)
INCIDENTS: Final = TopView(
    "incidents",
    lambda frame: frame.incidents,
    (
        plain("agent", 16),
        plain("check", 16),
        state("worst"),
        past("opened", "OPENED"),
        line("message", 60),
    ),
    2,
    lambda row: row["id"],
    "No incident is open.",
    lambda row: (
        f"scale0 explain {row['agent']}/{row['check']}",
        f"scale0 silence add --agent {row['agent']} --check {row['check']} --for 2h",
    ),
)
BROKERS: Final = TopView(
    "brokers",
    lambda frame: frame.brokers,
    (
        plain("broker", 24),
        plain("group", 12),
        state("state"),
        count("load", "CLIENTS"),
        count("config_version", "CONFIG"),
        TopColumn(
            "HEARD",
            lambda row, _now: short_span(row.get("age")) if row.get("age") else "-",
            lambda row: row.get("age") or 0,
            True,
        ),
    ),
    0,
    lambda row: row["broker"],
    "No broker answers.",
    lambda _row: ("scale0 peers", "scale0 topology"),
)
VIEWS: Final = (SERVICES, QUEUES, AGENTS, CHECKS, INCIDENTS, BROKERS, WRONG)


# What is shown of a view.


class ViewState(NamedTuple):
    """How somebody wants to see a view."""

    column: int
    reverse: bool = False
    words: str = ""
    """Only rows in which all of these words stand."""


def chosen(view: TopView, frame: TopFrame, choice: ViewState, now: float) -> list[Row]:
    """The rows of a view, as somebody wants them."""
    rows: Iterable[Row] = view.rows(frame)
    words = choice.words.lower().split()
    if words:
        rows = (row for row in rows if all(word in searched(view, row, now) for word in words))
    order = view.columns[choice.column].order
    return sorted(rows, key=lambda row: (order(row), view.key(row)), reverse=choice.reverse)


def searched(view: TopView, row: Row, now: float) -> str:
    """The text that a filter looks in."""
    return " ".join(column.text(row, now) for column in view.columns).lower()


def cells(view: TopView, row: Row, now: float) -> list[str]:
    """A row as text, each cell as wide as it may be."""
    return [cut(column.text(row, now), column.width) for column in view.columns]


def fitted(view: TopView, rows: Sequence[Sequence[str]], marked: int, room: int, padding: int) -> list[list[str]]:
    """The same cells, the widest texts cut until a line fits into the room; numbers are never cut."""
    # A mark behind the head says what it is sorted by.
    heads = [len(column.head) + 2 * (at == marked) for at, column in enumerate(view.columns)]
    widths = [max([head, *(len(row[at]) for row in rows)]) for at, head in enumerate(heads)]
    over = sum(widths) + padding * len(widths) - room
    while over > 0:
        texts = [at for at, column in enumerate(view.columns) if not column.number and widths[at] > MIN_TEXT]
        if not texts:
            break
        widest = max(texts, key=widths.__getitem__)
        widths[widest] -= 1
        over -= 1
    return [[cut(cell, width) for cell, width in zip(row, widths, strict=True)] for row in rows]


def cut(text: str, width: int) -> str:
    """No wider than that, if there is a width."""
    return text if not width or len(text) <= width else f"{text[: width - 1]}…"


def detail(view: TopView, row: Row) -> list[tuple[str, str]]:
    """All that is known of a row, and what to type about it."""
    pairs = [(key, output.clean(value_text(value))) for key, value in row.items()]
    return [*pairs, *(("type", output.clean(hint)) for hint in view.hints(row))]


def value_text(value: Any) -> str:
    """A value for people."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
