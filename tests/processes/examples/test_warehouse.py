"""The script over the warehouse answers its three questions rightly, and the notebook is the script.

Spark is left to tests/pipeline and tests/cli, which run `scale0 pipeline run`: here a warehouse is written from rows,
so that what the script must say is known.
"""

# Promise: CLI-3
from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from scale0.pipeline.time_ranges import DAY_US, HOUR_US, to_time
from tests.docs.blocks import read_page
from tests.docs.machines import machines
from tests.docs.transcripts import typed
from tests.fakes.shell import EXAMPLES
from tests.pipeline.reports_made import FIRST_DAY, START_US, Rows, write
from tests.processes.examples.notebook import cells_of_notebook, cells_of_script, notebook

pytestmark = [pytest.mark.processes, pytest.mark.slow]

FOLDER = EXAMPLES / "warehouse"
PAGE = read_page((FOLDER / "README.md").read_text(encoding="utf-8"))
PLOTS = next(typed(PAGE.blocks[-1].lines, PAGE.blocks[-1].line))
FIRST_HOUR = START_US // HOUR_US
SERVICES = ("auth.check", "geo.lookup", "price.quote", "stock.read", "seldom.asked")


def requests() -> dict[str, Rows]:
    """By hour, 100 answers each, 10 of the last; the slowest hour is the fourth of the second service."""
    hours: Rows = []
    for hour in range(6):
        for service in SERVICES:
            slow = 0.0451 if (hour, service) == (3, "geo.lookup") else 0.02
            row = {"service": service, "grain": "hour", "start": to_time((FIRST_HOUR + hour) * HOUR_US)}
            answered = 10 if service == SERVICES[-1] else 100
            hours.append((FIRST_HOUR + hour, {**row, "answered": answered, "p50": 0.004, "p99": slow}))
    quiet = {"service": "auth.check", "grain": "hour", "start": to_time((FIRST_HOUR + 6) * HOUR_US), "answered": 0}
    hours.append((FIRST_HOUR + 6, quiet))  # an hour in which nobody was answered has no percentiles
    days: Rows = [
        (
            FIRST_DAY,
            {"service": service, "grain": "day", "start": to_time(START_US), "answered": 60 if at == 4 else 600},
        )
        for at, service in enumerate(SERVICES)
    ]
    return {"request_stats.hour": hours, "request_stats.day": days}


def availability() -> Rows:
    """One check was down for a tenth of a day, one unobserved for a fifth of it, one was always up."""
    seconds = (("web-1/disk", 0.0, 0.0), ("web-1/load", 8_640.0, 0.0), ("web-2/load", 0.0, 17_280.0))
    return [
        (
            FIRST_DAY,
            {
                "subject_kind": "check",
                "subject": subject,
                "grain": "day",
                "start": to_time(START_US),
                "up_seconds": DAY_US / 1e6 - down - unobserved,
                "down_seconds": down,
                "unobserved_seconds": unobserved,
            },
        )
        for subject, down, unobserved in seconds
    ]


def tasks() -> Rows:
    """Three wait together; one more is never handed out, because it is cancelled before; one starts later."""
    second = 1_000_000
    waits = ((0, 4, 0.0), (1, 5, 0.0), (2, 6, 0.0), (100, 160, 60.0))
    rows: Rows = []
    for number, (submitted, assigned, delay) in enumerate(waits):
        row = {"ref": f"t-{number}", "submitted": to_time(START_US + submitted * second), "delay_seconds": delay}
        row |= {"first_assigned": to_time(START_US + assigned * second), "wait_seconds": assigned - submitted - delay}
        rows.append((FIRST_HOUR, row))
    gone = {"ref": "t-9", "submitted": to_time(START_US + 3 * second), "ended": to_time(START_US + 4 * second)}
    return [*rows, (FIRST_HOUR, gone)]


def drawn(scratch: Path, tables: dict[str, Rows]) -> list[str]:
    """What the page's command says of these tables."""
    with machines(PAGE, scratch, here=True) as at:
        write(at.home("") / "warehouse", tables, restated=False)
        printed, status = at.shell("", "1").run(PLOTS.command)
    assert status == 0, printed
    return printed


def test_it_prints_what_is_in_the_tables(tmp_path):
    printed = drawn(tmp_path, {**requests(), "availability.day": availability(), "tasks": tasks()})
    assert printed == [
        "auth.check: 600 answers, worst p99 20.0 ms at 2026-05-10 00:00",
        "geo.lookup: 600 answers, worst p99 45.1 ms at 2026-05-10 03:00",
        "price.quote: 600 answers, worst p99 20.0 ms at 2026-05-10 00:00",
        "stock.read: 600 answers, worst p99 20.0 ms at 2026-05-10 00:00",
        "web-1/load: available between 90.00% and 90.00%",
        "web-2/load: available between 80.00% and 100.00%",
        "web-1/disk: available between 100.00% and 100.00%",
        "queue: at most 4 at once; in the worst hour p99 of the wait was 4.0 s",
    ]
    for name in ("latency.png", "availability.png", "queue.png"):
        assert (tmp_path / "laptop" / name).read_bytes().startswith(b"\x89PNG")
    words = [re.sub("[0-9][0-9.,:-]*", "0", line) for line in (*PLOTS.shown, *printed) if "available" not in line]
    assert words[:5] == words[5:], "the page shows other words"


def test_a_warehouse_without_rows_is_no_error(tmp_path):
    assert drawn(tmp_path, {}) == ["queue: nothing was submitted"]


def test_the_notebook_is_the_script():
    script, made = (FOLDER / "plots.py").read_text(), (FOLDER / "plots.ipynb").read_text()
    assert cells_of_notebook(made) == cells_of_script(script), (
        "make it again: tests/processes/examples/notebook.py, notebook()"
    )
    assert made == notebook(script)
    for cell in json.loads(made)["cells"]:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
