"""The page of `make bench`: its section of docs/performance.md and the plots, made of the figures in a file.

python -m benchmarks.report [FILE]          without a file: benchmarks/results/latest.json

Invariants: no figure of the section is written by hand, and the same file always makes the same section; it states what
was not measured, and whether the machine was busy or the run quick.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import plots

FORMAT = 1
ROOT = Path(__file__).resolve().parent.parent
LATEST = ROOT / "benchmarks" / "results" / "latest.json"
PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images" / "bench"
BEGIN = "<!-- bench:begin: made of benchmarks/results/latest.json by `python -m benchmarks.report`; not by hand -->"
END = "<!-- bench:end -->"
BUSY_SHARE = 0.5
"""Load for each core, before a run, from which on its figures are no good."""
DIGITS = 3

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """One table of the section, and one plot."""

    key: str
    title: str
    unit: str
    """`/s`: more is better; `µs`: less is."""
    promise: str = "durability: what has happened when it is acknowledged"
    """The head of the column that says it."""


TABLES = (
    Table("requests", "Requests a second: 100 bytes, 100 in flight", "/s", "what it does"),
    Table("requests_single", "One request at a time", "µs", "what it does"),
    Table("tasks", "Durable tasks a second: submitted, done by one worker, result fetched", "/s"),
    Table("submissions", "Acknowledged submissions a second", "/s"),
    Table("tasks_single", "One task at a time, from submission to result", "µs"),
    Table("postgres_tasks", "Tasks a second on PostgreSQL, done by one worker", "/s"),
    Table("postgres_submissions", "Acknowledged submissions a second on PostgreSQL", "/s"),
)
WANTED = {
    ("requests", "`zmq.proxy`, pyzmq"): 1.5,
    ("requests", "NATS, nats-py"): 5.0,
    ("requests", "Scale0, in batches, CURVE"): 1 / (1 - 0.35),
    ("requests_single", "`zmq.proxy`, pyzmq"): 1.25,
    ("tasks", "JetStream, nats-py, results not stored"): 4.0,
    ("tasks", "Dramatiq, Redis, everysec"): 25.0,
    ("tasks", "Celery, Redis, everysec"): 50.0,
    ("tasks", "beanstalkd"): 20.0,
    ("submissions", "JetStream, nats-py"): 3.0,
    ("tasks_single", "beanstalkd"): 1.0,
    ("postgres_tasks", "Procrastinate, `defer_async`"): 5.0,
}
"""The ratios that we aim at, by table and row: at least so much, at most where less is better or a row is our own."""


def number(value: float) -> str:
    """With as many digits as mean something."""
    if value <= 0:
        return "0"
    places = DIGITS - 1 - math.floor(math.log10(value))
    return f"{round(value, places):,.{max(0, min(1, places))}f}"


def ratio(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def plain(name: str) -> str:
    """Without Markdown."""
    return name.replace("`", "")


def middle(row: Row) -> float:
    return float(statistics.median(row["values"]))


def rows_of(found: Mapping[str, Any], table: Table) -> list[Row]:
    return [row for row in found["rows"] if row["table"] == table.key]


def first_of_ours(rows: Sequence[Row]) -> Row | None:
    """What the others are compared with: the first row of Scale0, if it was measured."""
    return next((row for row in rows if row["ours"] and row["values"]), None)


def table_lines(table: Table, rows: Sequence[Row]) -> Iterator[str]:
    """One line for each row; what was not measured says why."""
    is_rate = table.unit == "/s"
    base = first_of_ours(rows)
    heads = ("", "a second" if is_rate else "p50", "least to most" if is_rate else "p99")
    yield f"| {' | '.join(heads)} | rounds | first row to this | wanted | {table.promise} |"
    yield "| --- | ---: | ---: | ---: | ---: | --- | --- |"
    for row in rows:
        name, promise = row["name"], row["promise"]
        if not row["values"]:
            yield f"| {name} | - | - | 0 | - |  | not measured: {row['left_out'] or 'it failed'} |"
            continue
        own = "" if base is None or row is base else f"{ratio(middle(base) / middle(row))} ×"
        aim = "" if base is None else wanted(table, row, middle(base) / middle(row))
        if is_rate:
            shown = f"{number(middle(row))} | {number(min(row['values']))} to {number(max(row['values']))}"
        else:
            shown = f"{number(middle(row))} µs | {number(statistics.median(row['p99']))} µs"
        yield f"| {name} | {shown} | {len(row['values'])} | {own} | {aim} | {promise} |"


def wanted(table: Table, row: Row, found: float) -> str:
    """What we aim at for this row, and whether it is reached."""
    aim = WANTED.get((table.key, row["name"]))
    if aim is None:
        return ""
    at_most = table.unit == "µs" or row["ours"]
    is_reached = found <= aim if at_most else found >= aim
    return f"at {'most' if at_most else 'least'} {aim:.3g}: {'reached' if is_reached else '*missed*'}"


def busy(found: Mapping[str, Any]) -> bool:
    """Others used the machine when it began."""
    load: float = found["machine"]["load"]
    return bool(load > BUSY_SHARE * found["machine"]["cores"])


def warnings(found: Mapping[str, Any]) -> Iterator[str]:
    """Why these figures should not be believed, if so."""
    machine = found["machine"]
    if found["quick"]:
        yield "**These are of a quick run, which only shows that everything works: they are no figures to go by.**"
    if busy(found):
        load = f"{machine['load']:.1f} on {machine['cores']} cores"
        yield f"**The machine was busy before it began (load {load}): these figures are no good.**"
    for failure in found["failures"]:
        yield f"**Failed: {failure}**"


def about(found: Mapping[str, Any]) -> Iterator[str]:
    """On what, when, how often, and beside which versions."""
    machine = found["machine"]
    steps = f"{machine['core_steps'] / 1e6:.1f} million steps of a plain Python loop a second on one core"
    disk = f"4 KiB written and synchronised in {machine['fsync_p50_us']:,} µs (p99 {machine['fsync_p99_us']:,} µs)"
    rounds = f"{found['rounds']} round{'s' if found['rounds'] != 1 else ''}"
    yield (
        f"Measured on {found['date']} in {found['seconds']:,} s: {rounds}, in each all contenders one "
        "after the other, each round from another one on. Medians of all rounds; in the plots a line goes from the "
        "least to the most. Everything runs on one machine, over loopback; every client, worker and server is a "
        "process of its own, and starts anew in each round."
    )
    yield (
        f"- {machine['cores']} cores ({machine['processor']}), {machine['memory_gb']} GB, {machine['system']}\n"
        f"- {steps}\n"
        f"- the disk: {machine['filesystem']}, {disk}; load {machine['load']:.2f} before\n"
        f"- Python {machine['python']}, libzmq {machine['libzmq']}, pyzmq {machine['pyzmq']}, "
        f"uvloop {machine['uvloop']}, SQLite {machine['sqlite']}\n"
        f"- beside: {', '.join(found['versions'])}"
    )


def section(found: Mapping[str, Any]) -> str:
    """All between the two marks, and they."""
    blocks = [BEGIN, "## Side by side", *warnings(found), *about(found)]
    for table in TABLES:
        rows = rows_of(found, table)
        if rows:
            blocks += [f"### {table.title}", f"![{table.title}](images/bench/{table.key}.svg)"]
            blocks.append("\n".join(table_lines(table, rows)))
    return "\n\n".join([*blocks, END])


def pictures(found: Mapping[str, Any]) -> dict[str, str]:
    """The plots, by the names of their files."""
    out = {}
    for table in TABLES:
        rows = rows_of(found, table)
        if rows:
            bars = [bar_of(row, table.unit) for row in rows if row["values"]]
            out[f"{table.key}.svg"] = plots.svg(f"{table.title}{' (µs, p50)' if table.unit == 'µs' else ''}", bars)
    return out


def bar_of(row: Row, unit: str) -> plots.Bar:
    values = row["values"]
    text = number(middle(row)) if unit == "/s" else f"{number(middle(row))} µs"
    return plots.Bar(plain(row["name"]), middle(row), min(values), max(values), text, row["ours"])


def placed(page: str, made: str) -> str:
    """The page with its section in place of the old one; the two marks say where."""
    before, begun, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended or BEGIN in after:
        raise ValueError(f"the page needs these two lines once: {BEGIN} and {END}")
    return before + made + after


def write(found: Mapping[str, Any], page: Path = PAGE, images: Path = IMAGES) -> list[Path]:
    """Make the page and the plots; which files those are."""
    made = placed(page.read_text(encoding="utf-8"), section(found))
    images.mkdir(parents=True, exist_ok=True)
    drawn = pictures(found)
    for old in images.glob("*.svg"):
        if old.name not in drawn:
            old.unlink()
    for name, text in drawn.items():
        (images / name).write_text(text, encoding="utf-8")
    page.write_text(made, encoding="utf-8")
    return [page, *(images / name for name in drawn)]


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if found.get("format") != FORMAT:
        raise ValueError(f"{file} is of format {found.get('format')}, and this reads {FORMAT}: measure again")
    return found


def main() -> None:
    file = Path(sys.argv[1]) if sys.argv[1:] else LATEST
    for path in write(read(file)):
        print(f"written: {path}")


if __name__ == "__main__":
    main()
