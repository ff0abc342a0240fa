"""The content of `scale0 top`: frames, views, sorting, filtering, and plain text. The module does no I/O except `show`.

Every view fits 80 columns, text from the network is cleaned, and a column sorts by its value and not by its text. A
value that is not known is None and is shown as a dash.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from scale0.cli.common import output
from scale0.cli.network.listing import counted, state_of
from scale0.cli.network.snapshot import Snapshot
from scale0.client.admin.health import RANKS, HealthFinding, PartHealth, found_in, parts
from scale0.client.admin.rates import ServiceRates, rates_between, total_between

Row = dict[str, Any]

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
"""Texts are not cut shorter than this."""
ONCE_ROWS: Final = 20
"""Of each view if all are printed; a single view is printed completely."""
NO_CREDENTIALS: Final = "rates need credentials: give --data-dir FOLDER (the broker's), --token or --auth-id NAME"


class TopFrame(NamedTuple):
    """Everything that one screen can show."""

    status: Row
    findings: list[HealthFinding]
    parts: list[PartHealth]
    services: list[Row]
    queues: list[Row]
    agents: list[Row]
    checks: list[Row]
    incidents: list[Row]
    brokers: list[Row]
    total: ServiceRates | None
    managed: bool
    watched: bool


def frame_of(now: Snapshot, before: Snapshot | None) -> TopFrame:
    """A frame from a snapshot, with the rates since the one before."""
    seconds = now.at - before.at if before is not None else 0.0
    old = (before.rates if before is not None else None) or []
    by_service: dict[str, ServiceRates] = {}
    total = None
    if now.rates is not None and before is not None and before.rates is not None:
        by_service = rates_between(old, now.rates, seconds)
        total = total_between(old, now.rates, seconds)
    services = [with_rates(dict(row), by_service) for row in now.seen.services or ()]
    seen = msgspec.structs.replace(now.seen, services=services)
    found = found_in(seen)
    return TopFrame(
        status=dict(seen.status or {}),
        findings=found,
        parts=parts(seen, found),
        services=services,
        queues=[dict(row) for row in seen.queues] if seen.queues is not None else queues_of(services),
        agents=[dict(row) for row in seen.agents or ()],
        checks=[dict(row) for row in seen.checks or ()],
        incidents=[dict(row) for row in seen.incidents or ()],
        brokers=now.brokers,
        total=total,
        managed=now.managed,
        watched=seen.watched,
    )


def with_rates(row: Row, by_service: dict[str, ServiceRates]) -> Row:
    """A service with its rates; one that never answered has zeros, if rates are known at all."""
    found = by_service.get(row["service"], ServiceRates(0.0, 0.0, None, None)) if by_service else None
    return {**row, "rates": None if found is None else msgspec.to_builtins(found)}


def queues_of(services: list[Row]) -> list[Row]:
    """What discovery tells about queues, without credentials."""
    kept = [row for row in services if row["backends"] or row["waiting"]]
    unknown: Row = {"oldest_seconds": None, "tasks_queued": None, "lru": []}
    return [
        {"service": row["service"], "waiting": row["waiting"], "backends": row["backends"], **unknown} for row in kept
    ]


def as_data(frame: TopFrame) -> Row:
    found: Row = msgspec.to_builtins(frame._asdict())
    return found


class TopColumn(NamedTuple):
    """One column: its head, its text, and what it sorts by."""

    head: str
    text: Callable[[Row, float], str]
    order: Callable[[Row], Any]
    number: bool = False
    width: int = 0
    """The maximum number of characters; 0: no maximum."""


class TopView(NamedTuple):
    name: str
    rows: Callable[[TopFrame], Sequence[Row]]
    columns: tuple[TopColumn, ...]
    sort: int
    """The index of the column that it is sorted by at first."""
    key: Callable[[Row], str]
    empty: str
    hints: Callable[[Row], tuple[str, ...]]
    """Commands about a row."""


def plain(key: str, width: int = 0) -> TopColumn:
    return TopColumn(
        key.upper(),
        lambda row, _now: output.clean(str(row.get(key) or "-")),
        lambda row: str(row.get(key)),
        False,
        width,
    )


def count(key: str, head: str) -> TopColumn:
    """A whole number; the highest first."""
    return TopColumn(head, lambda row, _now: dash(row.get(key), "{:.0f}"), lambda row: -(row.get(key) or 0), True)


def rate(key: str, head: str) -> TopColumn:
    """Per second; the highest first."""
    return TopColumn(
        head, lambda row, _now: dash(rated(row, key), "{:,.1f}"), lambda row: -(rated(row, key) or 0.0), True
    )


def latency(key: str, head: str) -> TopColumn:
    """Of requests; the longest first."""
    return TopColumn(head, lambda row, _now: short_span(rated(row, key)), lambda row: -(rated(row, key) or 0.0), True)


def rated(row: Row, key: str) -> float | None:
    found: float | None = (row.get("rates") or {}).get(key)
    return found


def took(key: str, head: str) -> TopColumn:
    """A duration; the longest first."""
    return TopColumn(head, lambda row, _now: short_span(row.get(key)), lambda row: -(row.get(key) or 0.0), True)


def past(key: str, head: str) -> TopColumn:
    """How long ago; the latest first."""

    def text(row: Row, now: float) -> str:
        moment = row.get(key)
        return "-" if moment is None else output.span(max(0.0, now - moment))

    return TopColumn(head, text, lambda row: -(row.get(key) or 0.0), True)


def state(key: str, marks: Callable[[Row], str] = lambda _row: "") -> TopColumn:
    """A state, the worst first, with remarks behind it."""
    return TopColumn(
        key.upper(),
        lambda row, _now: output.clean(f"{row.get(key)}{marks(row)}"),
        lambda row: (WORST.get(str(row.get(key)), 1), str(row.get(key))),
    )


def dash(value: Any, form: str) -> str:
    """A number, or a dash if it is not known."""
    return "-" if value is None else form.format(value)


def short_span(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 1.0:
        return f"{seconds / MILLI:.1f} ms" if seconds < 0.1 else f"{seconds / MILLI:.0f} ms"
    return output.span(seconds)


def line(key: str, width: int = 0) -> TopColumn:
    def text(row: Row, _now: float) -> str:
        lines = str(row.get(key) or "").strip().splitlines()
        return output.clean(lines[0]) if lines else "-"

    return TopColumn(key.upper(), text, lambda row: str(row.get(key)), False, width)


def busy(row: Row, _now: float) -> str:
    return f"{row['busy']}/{row['slots']}"


def next_backend(row: Row, _now: float) -> str:
    """The backend that gets the next request."""
    lru = row.get("lru") or ()
    return output.clean(f"{lru[0]['identity']} ({lru[0]['busy']}/{lru[0]['slots']})") if lru else "-"


def check_marks(row: Row) -> str:
    marks = [word for word, true in (("stale", row.get("stale")), ("flapping", row.get("flapping"))) if true]
    if row["state"] != "ok" and not row["hard"]:
        marks.append("soft")
    if row.get("suppressed"):
        marks.append("suppressed")
    return f" ({', '.join(marks)})" if marks else ""


WRONG: Final = TopView(
    "wrong",
    lambda frame: [msgspec.structs.asdict(one) for one in frame.findings],
    (
        TopColumn("SEVERITY", lambda row, _now: row["severity"], lambda row: RANKS[row["severity"]]),
        plain("what", 26),
        plain("words"),
    ),
    0,
    lambda row: f"{row['what']} {row['words']}",
    "There are no problems.",
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
    "There is no service yet: scale0 worker FILE.py:worker",
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
        TopColumn("NEXT", next_backend, lambda row: next_backend(row, 0.0), False, 24),
    ),
    1,
    lambda row: row["service"],
    "There is no queue: no worker offers a service yet.",
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
    "No check has a result yet: scale0 check add disks --check disk --interval 60",
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
            "LAST SEEN",
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


class ViewState(NamedTuple):
    column: int
    reverse: bool = False
    words: str = ""
    """Only rows that contain all of these words."""


def chosen(view: TopView, frame: TopFrame, choice: ViewState, now: float) -> list[Row]:
    rows: Iterable[Row] = view.rows(frame)
    words = choice.words.lower().split()
    if words:
        rows = (row for row in rows if all(word in searched(view, row, now) for word in words))
    order = view.columns[choice.column].order
    return sorted(rows, key=lambda row: (order(row), view.key(row)), reverse=choice.reverse)


def searched(view: TopView, row: Row, now: float) -> str:
    return " ".join(column.text(row, now) for column in view.columns).lower()


def cells(view: TopView, row: Row, now: float) -> list[str]:
    """A row as texts, each cut to the width of its column."""
    return [cut(column.text(row, now), column.width) for column in view.columns]


def fitted(view: TopView, rows: Sequence[Sequence[str]], marked: int, room: int, padding: int) -> list[list[str]]:
    """The same cells, with the widest texts cut until a line fits; numbers are never cut."""
    # The column that it is sorted by has a mark behind its head.
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
    return text if not width or len(text) <= width else f"{text[: width - 1]}…"


def detail(view: TopView, row: Row) -> list[tuple[str, str]]:
    """All values of a row, and commands about it."""
    pairs = [(key, output.clean(value_text(value))) for key, value in row.items()]
    return [*pairs, *(("type", output.clean(hint)) for hint in view.hints(row))]


def value_text(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def head_of(frame: TopFrame) -> str:
    """The state of the broker, on one line."""
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


def problems_of(frame: TopFrame) -> str:
    bad = [one for one in frame.findings if one.severity != "ok"]
    if not bad:
        return "no problems"
    counts = {name: sum(one.severity == name for one in bad) for name in ("critical", "warning")}
    summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return output.clean(f"{summary}: {bad[0].what}: {bad[0].words}")


def show(frame: TopFrame, view: TopView | None, choice: ViewState | None, now: float) -> None:
    """Print a frame: every view that has rows, or only the given one."""
    output.say(head_of(frame))
    output.say(problems_of(frame))
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
        cut_column = "" if one.columns[-1].number else heads[-1]
        output.table(heads, [cells(one, row, now) for row in shown], numbers, cut=cut_column)
        if len(shown) < len(rows):
            output.say(f"… {len(rows) - len(shown)} more: --view {one.name}")
    if not frame.managed:
        output.note(NO_CREDENTIALS)
