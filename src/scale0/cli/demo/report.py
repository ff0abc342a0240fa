"""The last chapter of `scale0 demo`: Spark computes what has just happened, and a report says it.

Lives here: the commands that a person would type for it, and the few numbers of it that the demo knows by itself. Never
here: how a number is made, or whether it is right (`demo_judge`). Invariants: only the demo's own segments are read;
every process is one of the demo's network, which ends it; the page is the one thing that stays.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scale0.cli.common.child_process import ChildFailed

if TYPE_CHECKING:
    from scale0.cli.demo.network import DemoNetwork

PARTS: Final = ("pyspark", "pyarrow", "duckdb")
RUN_SECONDS: Final = 600.0
"""How long a command may take on a machine that has other things to do."""
MEMORY: Final = "1g"
FEW_ROWS: Final = ("--conf", "spark.sql.shuffle.partitions=1", "--conf", "spark.sql.adaptive.enabled=false")
"""For a minute of history: planning costs more than the rows."""
SPAN: Final = ("--last", "2h")
"""A demo may begin in one hour and end in the next."""
BACKEND: Final = "backend"
BROKER: Final = "broker"
CHECK: Final = "check"
DIED: Final = ("lost", "replaced")
"""How a session ends whose client was killed: it is missed, or it is back before that."""


class Computed(NamedTuple):
    """What the tables say of the demo."""

    finished: int
    """Tasks."""
    retried: int
    answered: int
    """Requests."""
    died: frozenset[str]
    """Brokers that were down, and workers of whom a session ended without their leave or their broker's end."""
    incidents: dict[str, float]
    """Of checks: how long each was down, in seconds."""


def missing() -> str:
    """What Spark would need and is not there, and how to get it; blank: all of it is there."""
    if any(importlib.util.find_spec(name) is None for name in PARTS):
        return "it needs Spark: pip install 'scale0[pipeline]'"
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        return "it needs Java 17 or newer: set JAVA_HOME, or on Debian: sudo apt-get install openjdk-17-jre-headless"
    return ""


def compute(network: DemoNetwork, looked: Callable[[], None]) -> str:
    """`scale0 pipeline run` over everybody's history, its progress where there is a terminal; what it said."""
    places = [word for place in network.segments() for word in ("--segments", str(place))]
    words = ("pipeline", "run", *places, "--warehouse", str(network.warehouse), "--memory", MEMORY, *FEW_ROWS)
    if sys.stderr.isatty():
        _run(network, words, None)
        return ""
    return _run(network, words, subprocess.PIPE, looked)


def write_page(network: DemoNetwork, page: Path | None) -> Path:
    """All reports, as one page; where it is."""
    written = network.data_dir / "report.html"
    _asked(network, "all", "--format", "html", "--out", str(written))
    page = page or _new_page()
    shutil.copyfile(written, page)  # all at once: a demo that is ended meanwhile leaves no empty page
    return page


def computed(network: DemoNetwork) -> Computed:
    """What the reports and the sessions say, for a program."""
    lines = _asked(network, "all", "--format", "json").splitlines()
    reports = {report["report"]: report["tables"][0]["rows"] for report in map(json.loads, lines)}
    words = ("pipeline", "show", "sessions", "--warehouse", str(network.warehouse), "--all", "--format", "json")
    shown = _run(network, words, subprocess.PIPE)
    return count(reports, [json.loads(line) for line in shown.splitlines()])


def count(reports: dict[str, Sequence[dict[str, Any]]], sessions: Sequence[dict[str, Any]]) -> Computed:
    """The few things of it that a demo knows by itself."""
    tasks, requests, subjects = reports["tasks"], reports["requests"], reports["availability"]
    # When its broker comes back, a worker is down for a moment, too: only its sessions tell that it died itself.
    workers = {row["identity"] for row in sessions if row["role"] == BACKEND and row["reason"] in DIED}
    down = [row for row in subjects if row["incidents"]]
    return Computed(
        finished=sum(row["finished"] for row in tasks),
        retried=sum(row["retried"] for row in tasks),
        answered=sum(row["answered"] for row in requests if row["service"] == "demo.work"),
        died=frozenset(workers | {row["subject"] for row in down if row["subject_kind"] == BROKER}),
        incidents={row["subject"]: row["down_seconds"] for row in down if row["subject_kind"] == CHECK},
    )


def _new_page() -> Path:
    """A file that nobody else has."""
    descriptor, name = tempfile.mkstemp(prefix="scale0-demo-", suffix=".html")
    os.close(descriptor)
    return Path(name)


def _asked(network: DemoNetwork, name: str, *more: str) -> str:
    """What `scale0 report …` prints."""
    return _run(network, ("report", name, "--warehouse", str(network.warehouse), *SPAN, *more), subprocess.PIPE)


def _run(network: DemoNetwork, words: Sequence[str], to: int | None, looked: Callable[[], None] | None = None) -> str:
    """A command of ours, to its end; Broken with its last words if it fails."""
    code, said, troubled = network.run(words, RUN_SECONDS, to, looked=looked)
    if code:
        raise ChildFailed(f"scale0 {words[0]} {words[1]} ended with {code} {troubled.strip()[-500:]}".rstrip())
    return said
